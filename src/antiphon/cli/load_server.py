"""Which server a command runs: `module:server`, or `path/to/file.py:server`.

Owns how such a name is read and loaded, and what is said when that fails. Without `:server` it is
the one called `server`, or the only one there is.
"""

import importlib
import importlib.util
import re
import shlex
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

import antiphon
from antiphon import Server
from antiphon.cli.gateways.settings import check_callers, gateway_server, read_gateway
from antiphon.cli.output import USAGE, fail
from antiphon.client.targets.named import split_name
from antiphon.errors import ConfigError

_USUAL = "server"
_OTHERS = ("fastmcp", "mcp")
_NAMES = ("FastMCP", "Server")
"""Packages that servers of others come from, and how the names of their classes end."""

_PUBLIC = ("antiphon.console", "antiphon.telemetry", "antiphon.testing", "antiphon.ports")
"""Modules with public names that the package itself does not have."""

_IMPORTED = re.compile(r"cannot import name '(\w+)'")
_RECORDS = (".json", ".jsonl")
_STORES = (".db", ".sqlite", ".sqlite3")

_IMPORTING = ("importlib", "_frozen_importlib", __name__)
"""Modules whose frames say nothing about a mistake in a module that is loaded."""


def load_server(name: str) -> Server:
    """Import the server that a name stands for, or print why not and exit."""
    place, variable = split_name(name)
    if place.endswith(".toml"):
        return _gateway(Path(place))
    if "://" in name:
        fail(
            f"{name} is a URL. This command loads the server itself: name it as module:server or "
            "path/to/file.py",
            USAGE,
        )
    if not place:
        fail(f"{name!r} does not name a server: write module:server or path/to/file.py", USAGE)
    module = _from_file(Path(place)) if place.endswith(".py") else _from_path(place)
    if not variable:
        return _only_server(module, place)
    found = vars(module).get(variable)
    if found is None:
        servers = ", ".join(_servers(module)) or "no server"
        fail(f"{place!r} has no {variable!r}; it has {servers}", USAGE)
    if not isinstance(found, Server):
        fail(f"{name} is a {type(found).__name__}, not a Server{_hint_for(place, found)}", USAGE)
    return found


def check_reach(name: str, *hosts: str) -> None:
    """Refuse to serve a gateway to strangers, with the credentials it holds or beyond loopback.

    Raises:
        ConfigError: It would be.
    """
    place, _ = split_name(name)
    if place.endswith(".toml"):
        check_callers(read_gateway(Path(place)), *hosts)


def _gateway(file: Path) -> Server:
    """Make the gateway that a file describes."""
    try:
        return gateway_server(read_gateway(file))
    except ConfigError as error:
        fail(str(error), USAGE)


def _only_server(module: ModuleType, place: str) -> Server:
    servers = _servers(module)
    if len(servers) > 1 and _USUAL not in servers:
        names = ", ".join(servers)
        fail(f"{place!r} has several servers ({names}): write {place}:NAME", USAGE)
    if not servers:
        hints = (_hint_for(place, value) for value in vars(module).values())
        hint = next(filter(None, hints), "")
        fail(f"{place!r} has no server: a variable of the module must be a Server{hint}", USAGE)
    return servers.get(_USUAL) or next(iter(servers.values()))


def _hint_for(place: str, value: object) -> str:
    """Return what to do with the server of another library; nothing for other values."""
    kind = type(value)
    if kind.__module__.partition(".")[0] not in _OTHERS or not kind.__name__.endswith(_NAMES):
        return ""
    command = f"python {place}" if place.endswith(".py") else f"python -m {place}"
    return (
        f". Put its {kind.__name__} behind a gateway, `antiphon gateway {shlex.quote(command)}`, "
        "or add tools of Antiphon to it with AntiphonTools"
    )


def _servers(module: ModuleType) -> dict[str, Server]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Server)}


def _from_path(module: str) -> ModuleType:
    """Import a module from the working directory or the installed ones."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        fail(_not_imported(module, error), USAGE)
    except ConfigError as error:
        fail(f"{_line_of(error)}{error}", USAGE)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code, which may raise anything
        _fail_with_mistake(module, error)


def _from_file(file: Path) -> ModuleType:
    """Import a file; what it imports may stand beside it."""
    file = file.expanduser().resolve()
    if not file.is_file():
        fail(f"there is no file {file}", USAGE)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    # A file may be called like a module that is loaded already.
    name = file.stem if file.stem not in sys.modules else f"{file.stem}_file"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        fail(_not_imported(name, error), USAGE)
    except ConfigError as error:
        fail(f"{_line_of(error)}{error}", USAGE)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code, which may raise anything
        _fail_with_mistake(name, error)
    return module


def _not_imported(module: str, error: ImportError) -> str:
    """Tell a module that does not exist from one whose own import fails."""
    name = error.name or ""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{name}."):
        if Path(module).suffix in _STORES:
            return f"{module} names no server. A store is named by its URL: sqlite:///{module}"
        if Path(module).suffix in _RECORDS:
            return f"there is no file {module}"
        return (
            f"there is no module {name!r} in {Path.cwd()}: run the command in the module's folder, "
            "install it, or name the file: path/to/file.py"
        )
    importer, trace = module, error.__traceback__
    while trace is not None:
        importer = importer if _importing(trace) else str(trace.tb_frame.f_globals["__name__"])
        trace = trace.tb_next
    if isinstance(error, ModuleNotFoundError):
        return f"module {importer!r} imports {name!r}, which is not installed: install it"
    return f"module {importer!r} cannot be imported: {error}{_where_it_is(error)}"


def _where_it_is(error: ImportError) -> str:
    """Return which module of Antiphon has a name that `antiphon` itself does not have."""
    found = _IMPORTED.match(str(error))
    if found is None or error.name != "antiphon":
        return ""
    homes = (home for home in _PUBLIC if found[1] in dir(importlib.import_module(home)))
    home = next(homes, "")
    return f". Write `from {home} import {found[1]}`" if home else ""


def _line_of(error: BaseException) -> str:
    """Return the line of a module that a mistake was made in: "shop.py, line 3: "."""
    ours = str(Path(antiphon.__file__).parent)
    frames = [(trace.tb_frame.f_code.co_filename, trace.tb_lineno) for trace in _frames(error)]
    theirs = [(file, line) for file, line in frames if not file.startswith((ours, "<"))]
    return f"{Path(theirs[-1][0]).name}, line {theirs[-1][1]}: " if theirs else ""


def _frames(error: BaseException) -> Generator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        if not _importing(trace):
            yield trace
        trace = trace.tb_next


def _fail_with_mistake(module: str, error: BaseException) -> NoReturn:
    """Show where a module went wrong, from its own first line on."""
    if isinstance(error, SystemExit):
        fail(f"module {module!r} cannot be loaded: it exits ({error.code})", USAGE)
    trace = error.__traceback__
    while trace is not None and _importing(trace):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
    fail(f"module {module!r} cannot be loaded: it raised {type(error).__name__}", USAGE)


def _importing(trace: TracebackType) -> bool:
    name = str(trace.tb_frame.f_globals.get("__name__", ""))
    return not name or name.startswith(_IMPORTING)
