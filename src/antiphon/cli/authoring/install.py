"""`antiphon install`: the lines by which a client starts a server, printed or written.

A file is changed only where it is understood: plain JSON whose members are what the client expects.
Everything else in it stays as it is, and what was there before is kept beside it.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from antiphon.cli.load_server import load_server
from antiphon.cli.output import FAILED, USAGE, fail, say
from antiphon.cli.serve import SERVER, configured
from antiphon.cli.written_files import NotWritten, keep_copy, read_plain, write_new, write_own
from antiphon.client.targets.named import split_name

CLIENT = Annotated[
    str,
    typer.Option(
        "--client", metavar="CLIENT", help="claude-code, claude-desktop, cursor or vscode."
    ),
]
WRITE = Annotated[
    bool, typer.Option("--write", help="Write it into the client's file instead of printing it.")
]
FILE = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="The client's file, if it is not the usual one."),
]


@dataclass(frozen=True)
class ClientFile:
    """Where a client keeps its servers, and under which member."""

    member: str
    path: Callable[[], Path]


def _claude_desktop() -> Path:
    name = Path("Claude", "claude_desktop_config.json")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / name
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / name
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / name


CLIENTS: Mapping[str, ClientFile] = {
    "claude-code": ClientFile("mcpServers", lambda: Path(".mcp.json")),
    "claude-desktop": ClientFile("mcpServers", _claude_desktop),
    "cursor": ClientFile("mcpServers", lambda: Path(".cursor", "mcp.json")),
    "vscode": ClientFile("servers", lambda: Path(".vscode", "mcp.json")),
}
"""Claude Code, Cursor and VS Code read theirs from the folder of a project."""


def install(server: SERVER, client: CLIENT, write: WRITE = False, file: FILE = None) -> None:
    """Print the settings by which a client starts a server, or write them into the client's file.

    The client starts the server on standard input and output with this very Python. With --write
    the file is changed in one step, other servers and settings in it stay, and a copy of the file
    as it was is kept beside it with the ending .before-antiphon. A file that is not understood is
    left alone: one with comments, one that is no JSON, or one whose servers are no object. So is a
    link: name the file that it leads to with --file.

    Exit codes: 0 printed or written, 1 the file was left alone, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon install shop:server --client claude-code
      antiphon install path/to/shop.py --client claude-desktop --write
    """
    if client not in CLIENTS:
        fail(f"no client {client!r}: choose one of {', '.join(CLIENTS)}", USAGE)
    loaded = configured(load_server, server)
    target = CLIENTS[client]
    entry = _entry(server, client)
    if not write:
        print(json.dumps({target.member: {loaded.name: entry}}, indent=2, ensure_ascii=False))
        say(f"put this into {file or target.path()}, or let --write do it")
        return
    path = file or target.path()
    try:
        _install(path, target.member, loaded.name, entry)
    except NotWritten as error:
        fail(str(error))
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def _install(path: Path, member: str, name: str, entry: dict[str, Any]) -> None:
    """Put a server into a client's file; keep a copy of the file as it was, and its mode."""
    found = read_plain(path)
    before = None if found is None else _parse(path, found[0])
    after, known = _with_entry(before, member, name, entry, path)
    if known == entry:
        say(f"{path} has it already")
        return
    text = _as_json(after) + "\n"
    if found is None:
        write_new(path, text)
    else:
        content, mode = found
        keep_copy(path, content)
        write_own(path, text, lambda now: now == content, mode=mode)
    print(path)


def _as_json(value: object) -> str:
    """Return JSON with letters of all scripts as they are, where they can be written so."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        return json.dumps(value, indent=2)
    return text


def _entry(server: str, client: str) -> dict[str, Any]:
    """Return how the client starts the server, wherever it is itself started."""
    place, variable = split_name(server)
    words = [sys.executable, "-m", "antiphon.cli.app", "serve"]
    entry: dict[str, Any] = {"type": "stdio"} if client == "vscode" else {}
    if place.endswith(".py"):
        named = str(Path(place).expanduser().resolve()) + (f":{variable}" if variable else "")
        return entry | {"command": words[0], "args": [*words[1:], named, "--stdio"]}
    # A module is found from the folder in which this command was given.
    if sys.platform == "win32":
        env = {"PYTHONPATH": str(Path.cwd())}
        return entry | {"command": words[0], "args": [*words[1:], server, "--stdio"], "env": env}
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*words, server, '--stdio'])}"
    return entry | {"command": "/bin/sh", "args": ["-c", line]}


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """Return what is in a client's file."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        fail(f"{path} cannot be read: {error}", FAILED)
    if not text.strip():
        return {}
    try:
        found = json.loads(
            text,
            object_pairs_hook=_no_repetition,
            parse_constant=_no_constant,
            parse_float=_same_number,
        )
    except (ValueError, RecursionError) as error:
        fail(
            f"{path} is not plain JSON ({error}): comments and trailing commas cannot be kept. It "
            "was left alone; leave out --write, and put the lines in yourself",
            FAILED,
        )
    if not isinstance(found, dict):
        fail(f"{path} holds no JSON object, so it was left alone", FAILED)
    return cast("dict[str, Any]", found)


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a member stands there twice")
    return dict(pairs)


def _same_number(text: str) -> float:
    """Return a number that is written as it was read."""
    value = float(text)
    if Decimal(repr(value)) != Decimal(text):
        raise ValueError(f"the number {text[:40]} cannot be kept")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _with_entry(
    before: dict[str, Any] | None, member: str, name: str, entry: dict[str, Any], path: Path
) -> tuple[dict[str, Any], object]:
    """Return the file's content with the server in it, and what was there under its name."""
    after = dict(before or {})
    servers: object = after.get(member, {})
    if not isinstance(servers, dict):
        fail(f"{member!r} in {path} is no object, so the file was left alone", FAILED)
    listed = cast("dict[str, Any]", servers)
    known = listed.get(name)
    if known is not None and known != entry and not _is_ours(known):
        fail(
            f"{path} has another server called {name!r}, so it was left alone: give one of the two "
            "another name",
            FAILED,
        )
    after[member] = {**listed, name: entry}
    return after, known


def _is_ours(entry: object) -> bool:
    """Whether an entry was written by this command, so that it may be replaced."""
    words: object = cast("dict[str, Any]", entry).get("args") if isinstance(entry, dict) else None
    if not isinstance(words, list):
        return False
    return any("antiphon.cli.app" in str(word) for word in cast("list[object]", words))
