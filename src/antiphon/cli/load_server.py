"""Which server a command runs: `module:server`, or `path/to/file.py:server`.

Owns how such a name is read and loaded, and what is said when that fails. Without `:server` it is
the one called `server`, or the only one there is.
"""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from antiphon import Server
from antiphon.cli.gateways.settings import check_callers, gateway_server, read_gateway
from antiphon.cli.output import USAGE, fail
from antiphon.client.targets.named import split_name
from antiphon.errors import ConfigError

_USUAL = "server"
_IMPORTING = ("importlib", "_frozen_importlib", __name__)
"""Modules whose frames say nothing about a mistake in a module that is loaded."""


def load_server(name: str) -> Server:
    """Import the server that a name stands for, or print why not and exit."""
    place, variable = split_name(name)
    if place.endswith(".toml"):
        return _gateway(Path(place))
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
        fail(f"{name} is a {type(found).__name__}, not a Server", USAGE)
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
        fail(f"{place!r} has no server: a variable of the module must be a Server", USAGE)
    return servers.get(_USUAL) or next(iter(servers.values()))


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
    except ConfigError:
        raise
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
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code, which may raise anything
        _fail_with_mistake(name, error)
    return module


def _not_imported(module: str, error: ImportError) -> str:
    """Tell a module that does not exist from one whose own import fails."""
    name = error.name or ""
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{name}."):
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
    return f"module {importer!r} cannot be imported: {error}"


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
