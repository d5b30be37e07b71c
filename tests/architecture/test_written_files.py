"""No command writes a file but through the one module that is careful about prepared folders."""

import ast
from pathlib import Path

from tests.architecture.source import read_modules

MODULES = read_modules()
WRITER = "cli/written_files.py"

WRITING = {
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to",
    "symlink", "link", "rename", "renames", "copy", "copy2", "copyfile", "copytree", "move",
    "mkstemp", "mkdtemp", "NamedTemporaryFile", "chmod", "fdopen", "truncate",
}  # fmt: skip
OF_DICTIONARIES = {"copy"}
READ_MODES = {"r", "rb", "rt"}


def writes(node: ast.Call) -> bool:
    """Whether a call can change what is on the disk."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "open":
        return not _reads(node)
    if name == "replace":  # of a path it takes one argument, of a text two
        return len(node.args) == 1 and not node.keywords
    return name in WRITING and not (name in OF_DICTIONARIES and not node.args)


def _reads(node: ast.Call) -> bool:
    """Whether `open(...)` names a mode that only reads, or opens something that is no file."""
    if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "os":
        return False
    of_path = isinstance(node.func, ast.Attribute)
    given = node.args[0 if of_path else 1 :][:1] + [
        word.value for word in node.keywords if word.arg == "mode"
    ]
    mode = given[0] if given else None
    if of_path and not isinstance(mode, ast.Constant):
        return True  # a store, a page of a browser; a path without a mode is read
    return mode is None or (isinstance(mode, ast.Constant) and mode.value in READ_MODES)


def found_in(text: str) -> list[int]:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [node.lineno for node in calls if writes(node)]


def test_commands_write_files_through_one_module() -> None:
    found: list[str] = []
    for module in MODULES.values():
        if module.package == "cli" and module.within != WRITER:
            lines = found_in(Path(module.path).read_text("utf-8"))
            found += [f"{module.within}:{line}" for line in lines]
    assert found == []


def test_the_search_knows_ways_to_write() -> None:
    text = """
path.write_text("x")
path.open("wb")
path.open(mode="a")
open(path, "w")
os.open(path, flags)
shutil.copy2(a, b)
path.replace(other)
folder.mkdir()
path.open("rb")
open(path)
text.replace("a", "b")
store.open()
"""
    assert found_in(text) == list(range(2, 10))
