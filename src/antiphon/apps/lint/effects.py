"""Guesses from its name whether a call changes the world.

A wrong guess costs a comment on the line; a missing one costs nothing more than before.
"""

import ast

VERBS = {
    "add", "append", "book", "cancel", "charge", "close", "create", "debit", "delete",
    "deploy", "destroy", "drop", "email", "enqueue", "execute", "grant", "import", "insert",
    "install", "invite", "kill", "launch", "mail", "mark", "migrate", "notify", "order",
    "pay", "post", "provision", "publish", "purchase", "push", "put", "reboot", "refund",
    "register", "release", "remove", "rename", "replace", "reserve", "reset", "restart",
    "revoke", "rollback", "save", "schedule", "send", "ship", "shutdown", "start", "stop",
    "store", "submit", "terminate", "transfer", "trigger", "unlink", "update", "upload",
    "upsert", "withdraw", "write",
}  # fmt: skip
# Verbs that collections have too: on an attribute they count only with a word behind them.
PLAIN_ON_VALUES = {
    "add", "append", "close", "execute", "import", "insert", "mark", "order", "put", "remove",
    "replace", "reset", "start", "stop", "store", "update", "write",
}  # fmt: skip
WRITES = {
    "write_text", "write_bytes", "touch", "mkdir", "rmdir", "rmtree", "symlink_to",
    "hardlink_to", "chmod", "makedirs",
}  # fmt: skip
HTTP_WRITES = frozenset({"post", "put", "patch", "delete"})
MODULES = frozenset({"subprocess", "shutil", "smtplib"})
OS_WRITES = frozenset({"system", "remove", "rename", "replace", "popen"})
SQL_WRITES = ("insert", "update", "delete", "create", "drop", "alter", "merge", "replace")


def is_effect(call: ast.Call, dotted: str) -> bool:
    """Say whether a call looks as if it changed something outside the process.

    Args:
        call: The call.
        dotted: The full name of what it calls, as the file's imports have it; empty for none.
    """
    module, _, rest = dotted.partition(".")
    if rest and module in MODULES:
        return True
    if rest and module == "os":
        return rest in OS_WRITES or _is_verb(rest)
    match call.func:
        case ast.Name(id="open"):
            return _opens_for_writing(call)
        case ast.Name(id=name):
            return _is_verb(name)
        case ast.Attribute(attr=name):
            return _is_effect_of(name, call)
        case _:
            return False


def _is_effect_of(name: str, call: ast.Call) -> bool:
    if name in WRITES or name in HTTP_WRITES or name == "commit":
        return True
    if name in {"execute", "executemany", "fetch", "fetchrow", "fetchval"}:
        return _is_sql_write(call)
    if name == "open":
        return _opens_for_writing(call, mode_at=0)
    return _is_verb(name) and name not in PLAIN_ON_VALUES


def _is_verb(name: str) -> bool:
    """Say whether a name begins with a verb; one that begins with a capital is a class."""
    return name.lstrip("_").split("_")[0] in VERBS


def _opens_for_writing(call: ast.Call, mode_at: int = 1) -> bool:
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    modes += call.args[mode_at : mode_at + 1]
    return any(
        isinstance(mode, ast.Constant)
        and isinstance(mode.value, str)
        and not {"w", "a", "x", "+"}.isdisjoint(mode.value)
        and len(mode.value) <= 3
        for mode in modes
    )


def _is_sql_write(call: ast.Call) -> bool:
    text = _leading_text(call.args[0]) if call.args else ""
    return text.lstrip().lower().startswith(SQL_WRITES)


def _leading_text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr) and node.values:
        return _leading_text(node.values[0])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""
