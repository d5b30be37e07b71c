"""`antiphon serve` and `antiphon worker`: run a server, or the tasks of one.

`python -m antiphon.cli.serve SERVER OPTIONS` is one of several workers; `antiphon serve --workers`
starts it. What runs servers is imported by the commands that need it, so that the help of the
others does not wait for it.
"""

import os
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from antiphon.cli.load_server import check_reach, load_server
from antiphon.cli.local_server import console_of, serve_beside_stdio
from antiphon.cli.logs import LOG_FORMAT, VERBOSE, LogOptions, log_to_stderr
from antiphon.cli.output import FAILED, USAGE, errors, fail
from antiphon.cli.written_files import NotWritten, make_folder
from antiphon.errors import AntiphonError, ConfigError
from antiphon.seal.key_file import keep_keys, key_file, make_keys, read_key_file
from antiphon.seal.key_sources import FILE_VARIABLE, keys_from
from antiphon.seal.keyring import VARIABLE
from antiphon.seal.keys_in_use import HELD
from antiphon.transports.http.app import App
from antiphon.transports.processes.task_worker import run

_T = TypeVar("_T")
_A = TypeVar("_A")
DEFAULT_HTTP = "127.0.0.1:8400"
LEDGER = "sqlite:///.antiphon/ledger.db"
"""The store that several workers share if none is configured."""

_LEDGER_FILE = LEDGER.removeprefix("sqlite:///")

SERVER = Annotated[
    str,
    typer.Argument(
        metavar="SERVER",
        help="module:server, importable from the working directory, or path/to/file.py[:server].",
    ),
]
HTTP = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help=f"Default {DEFAULT_HTTP}.")
]
PORT = Annotated[
    int | None,
    typer.Option(
        "--port", "-p", metavar="PORT", min=0, max=65535, help="A port of this machine; 0: any."
    ),
]
STDIO = Annotated[bool, typer.Option("--stdio", help="Serve on standard input and output.")]
WORKERS = Annotated[
    int,
    typer.Option(
        "--workers", metavar="N", min=1, help="Number of processes on the port; not on Windows."
    ),
]
PATH = Annotated[str, typer.Option("--path", help="Path of the endpoint.")]
ALLOW_HOST = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A host name of the server besides loopback. Repeatable.",
    ),
]
ALLOW_ORIGIN = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        metavar="ORIGIN",
        help="An origin whose browser pages may call. Repeatable.",
    ),
]
STATELESS = Annotated[
    bool,
    typer.Option("--stateless", help="Keep no sessions of legacy clients; they cannot be asked."),
]
CONSOLE = Annotated[
    bool,
    typer.Option(
        "--console",
        help="Serve the console's pages, and say where: with --stdio on a port of this machine.",
    ),
]
METRICS = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics for Prometheus there; several workers take the ports from it on.",
    ),
]
CONCURRENCY = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", min=1, help="Tasks at a time; 16 unless set."),
]
PER_TOOL = Annotated[
    list[str] | None,
    typer.Option("--per-tool", metavar="TOOL=N", help="At most N of one tool; repeatable."),
]


class Endpoint(msgspec.Struct, frozen=True):
    """The options of the HTTP endpoint and of its log, the same in every worker."""

    path: str = "/mcp"
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    stateless: bool = False
    metrics: str | None = None
    log: LogOptions = LogOptions()
    port: int = 0
    """Where it listens; 0 where that is not known."""

    def application(self, name: str, link: Any = None) -> App:
        """Load the server and return its application; `link` connects it to the other workers."""
        server = load_server(name)
        wrong = server.console.warning_of(self.port) if server.console is not None else ""
        if wrong:
            errors().print(f"warning: {wrong}", markup=False, soft_wrap=True)
        return server.asgi(
            path=self.path,
            allowed_hosts=self.hosts,
            allowed_origins=self.origins,
            stateless=self.stateless,
            link=link,
        )


def serve(
    server: SERVER,
    http: HTTP = None,
    port: PORT = None,
    stdio: STDIO = False,
    workers: WORKERS = 1,
    path: PATH = "/mcp",
    allow_host: ALLOW_HOST = None,
    allow_origin: ALLOW_ORIGIN = None,
    stateless: STATELESS = False,
    console: CONSOLE = False,
    metrics: METRICS = None,
    verbose: VERBOSE = 0,
    log_format: LOG_FORMAT = None,
) -> None:
    """Run a server over HTTP, or on standard input and output.

    Keys are read from ANTIPHON_KEYS or the file or directory that ANTIPHON_KEYS_FILE names (see
    `antiphon keygen`), the store from the server's store= or ANTIPHON_STORE. Without keys, a key
    is made: kept beside a SQLite store, gone with the process where the store is in memory. With
    several workers and neither configured, the workers get common keys and a SQLite store in
    .antiphon, so that any worker can serve any round. Keys leave the environment when they are
    read: programs that tools start do not see them.

    Over HTTP the pages of a server's console are served beside the endpoint in any case; --console
    checks that there are some. With --stdio they are served only if it is given.

    --metrics needs the extra `metrics` and a server with telemetry=OpenTelemetry(). It listens
    apart from the endpoint, without authentication: name an address that only Prometheus reaches.

    Exit codes: 0 ended by a signal, 1 the server could not start, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon serve shop:server
      antiphon serve path/to/shop.py --port 8490 -v
      antiphon serve shop:server --http 0.0.0.0:8400 --allow-host shop.example
      antiphon serve shop:server --workers 4
      antiphon serve shop:server --stdio
      antiphon serve shop:server --stdio --console
      antiphon serve shop:server --metrics 127.0.0.1:9464
    """
    if stdio and (http or port is not None or workers > 1):
        fail("--stdio excludes --http, --port and --workers", USAGE)
    log = LogOptions(verbose, log_format)
    if stdio:
        show_metrics(metrics)
        _run_stdio(server, log, console=console)
        return
    if console:
        _check_console(server)
    host, port = listen_address(http, port)
    hosts, origins = tuple(allow_host or ()), tuple(allow_origin or ())
    configured(lambda name: check_reach(name, host, *hosts), server)
    endpoint = Endpoint(path, hosts, origins, stateless, metrics, log, port)
    try:
        if workers > 1:
            raise typer.Exit(_run_several(server, endpoint, host, port, workers))
        show_metrics(metrics)
        _run_one(configured(endpoint.application, server), host, port, log)
    except AntiphonError as error:
        fail(str(error))


def worker(
    server: SERVER,
    concurrency: CONCURRENCY = None,
    per_tool: PER_TOOL = None,
    metrics: METRICS = None,
    verbose: VERBOSE = 0,
    log_format: LOG_FORMAT = None,
) -> None:
    """Run the tasks of a server, in a process that serves no clients.

    The server needs a store that its processes share: postgresql://..., or sqlite:///... on one
    machine. ANTIPHON_KEYS must hold the keys of the processes that accept the calls. Start any
    number of workers; if one dies, another continues its tasks. SIGTERM lets running tasks finish
    for ten seconds and releases the others. Tasks are claimed from the store, or come from the
    engine that the server's carrier= or ANTIPHON_CARRIER names: temporal://host:port/namespace or
    nats://host:port, the same in every process.

    Exit codes: 0 ended by a signal, 1 the worker could not start, 2 wrong arguments or settings.

    Examples:

    \b
      ANTIPHON_KEYS=... antiphon worker shop:server
      ANTIPHON_KEYS=... antiphon worker shop.py --concurrency 32
      ANTIPHON_KEYS=... antiphon worker shop.py --per-tool rebuild=2
      ANTIPHON_KEYS=... ANTIPHON_CARRIER=nats://n1:4222 antiphon worker shop.py
    """
    limits = dict(_limit(text) for text in per_tool or ())
    loaded = configured(load_server, server)
    log_to_stderr(LogOptions(verbose, log_format))
    show_metrics(metrics)
    try:
        run(loaded, concurrency=concurrency, per_tool=limits)
    except ConfigError as error:
        fail(str(error), USAGE)
    except AntiphonError as error:
        fail(str(error))


def _limit(text: str) -> tuple[str, int]:
    tool, equals, number = text.rpartition("=")
    if not equals or not tool or not number.isdigit() or int(number) < 1:
        fail(f"--per-tool takes TOOL=N, not {text!r}", USAGE)
    return tool, int(number)


def configured(make: Callable[[_A], _T], argument: _A) -> _T:
    """Load a server or keys; wrong settings are wrong usage."""
    try:
        return make(argument)
    except (ConfigError, NotWritten) as error:
        fail(str(error), USAGE)


def _check_console(server: str) -> None:
    """Say where the pages are; refuse a server that has none."""
    pages = console_of(configured(load_server, server))
    errors().print(f"console: {pages.place.url}", markup=False, soft_wrap=True)


def _run_stdio(server: str, log: LogOptions, *, console: bool) -> None:
    from antiphon.transports.processes.event_loop import run_loop

    loaded = configured(load_server, server)
    if log != LogOptions():
        log_to_stderr(log)
    try:
        if console:
            from antiphon.transports.processes.http_server import serve_http

            run_loop(serve_beside_stdio(loaded, serve_http))
        else:
            run_loop(loaded.serve_stdio())
    except AntiphonError as error:
        fail(str(error))


def _run_one(app: App, host: str, port: int, log: LogOptions) -> None:
    from antiphon.transports.processes.http_server import run_http

    log_to_stderr(log)
    run_http(app, host, port, access_log=log.access)


def _run_several(server: str, endpoint: Endpoint, host: str, port: int, workers: int) -> int:
    from antiphon.transports.processes.supervisor import can_share, run_workers

    if not can_share():
        fail("several workers need Unix; on Windows leave --workers out", USAGE)
    keys = share_among_workers()
    log_to_stderr(endpoint.log)
    options = msgspec.json.encode(endpoint).decode()
    command = [sys.executable, "-m", "antiphon.cli.serve", server, options]
    return run_workers(command, host, port, workers=workers, path=endpoint.path, secret=keys)


def share_among_workers() -> str:
    """Return the keys of all workers, and set their common store in the environment."""
    keys = HELD.take(os.environ)[VARIABLE]
    if os.environ.get(FILE_VARIABLE):
        configured(keys_from, {**os.environ, VARIABLE: keys})  # refused here, not in every worker
    elif not keys.strip():
        ledger = ledger_path(os.environ.get("ANTIPHON_STORE") or LEDGER)
        if ledger == _LEDGER_FILE:
            _make_folder(Path(ledger).parent)
        file = key_file(Path(ledger))
        keys = ",".join(configured(_kept_keys, file))
        errors().print(
            f"ANTIPHON_KEYS is not set: the workers share keys that are kept in {file}. Whoever "
            "can read it can open what the store keeps; set ANTIPHON_KEYS (antiphon keygen) to "
            "keep them elsewhere.",
            soft_wrap=True,
        )
    if not os.environ.get("ANTIPHON_STORE"):
        os.environ["ANTIPHON_STORE"] = LEDGER
        _make_folder(Path(_LEDGER_FILE).parent)
        errors().print(
            f"ANTIPHON_STORE is not set: the workers share {LEDGER}, unless the server has store=",
            soft_wrap=True,
        )
    return keys


def _make_folder(folder: Path) -> None:
    try:
        configured(make_folder, folder)
    except OSError as error:
        fail(
            f"{folder} cannot be made: {error.strerror}. Run the command in a folder that you can "
            "write to, or set ANTIPHON_STORE and ANTIPHON_KEYS",
            USAGE,
        )


def _kept_keys(file: Path) -> list[str]:
    keys = read_key_file(file)
    if not keys:
        keys = make_keys(secrets.token_bytes)
        keep_keys(file, keys)
    return keys


def ledger_path(store: str) -> str:
    """Return the file beside which common keys are kept: that of the store, if it is one."""
    scheme, _, path = store.partition(":///")
    if scheme == "sqlite" and path:
        return path
    if store.startswith("memory:"):
        return _LEDGER_FILE
    fail(
        "ANTIPHON_KEYS is not set, and what ANTIPHON_STORE keeps could not be opened after a "
        "restart. Make a key with `antiphon keygen`, and set it everywhere.",
        USAGE,
    )


def listen_address(http: str | None, port: int | None) -> tuple[str, int]:
    """Return where to listen, by --http or --port."""
    if http is not None and port is not None:
        fail("--http names a port already: leave out --port", USAGE)
    if port is not None:
        return "127.0.0.1", port
    return address(http or DEFAULT_HTTP)


def address(text: str, option: str = "--http") -> tuple[str, int]:
    """Read HOST:PORT or PORT, or print what is wrong with it and exit."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        fail(f"{option} takes HOST:PORT or a port, not {text!r}", USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)


def show_metrics(at: str | None, worker: int = 0) -> None:
    """Serve the metrics of this process, if it is wanted, and say where.

    Raises:
        ConfigError: They cannot be served.
    """
    if at is None:
        return
    from antiphon.integrations.telemetry.prometheus import serve_metrics

    host, port = address(at, "--metrics")
    port = configured(partial(serve_metrics, host), port + worker if port else 0)
    shown = f"[{host}]" if ":" in host else host
    errors().print(f"metrics: http://{shown}:{port}/metrics", markup=False, soft_wrap=True)


def _application_with_log(endpoint: Endpoint, server: str, link: Any) -> App:
    app = endpoint.application(server, link)
    log_to_stderr(endpoint.log)
    return app


def work(server: str, options: str) -> int:
    """Run one worker; return the exit code."""
    try:
        from antiphon.transports.processes.supervisor import find_place, receive_secret, run_worker

        place = find_place()
        HELD.hold(receive_secret(place))
        endpoint = msgspec.json.decode(options, type=Endpoint)
        show_metrics(endpoint.metrics, place.worker)
        make = partial(_application_with_log, endpoint, server)
        run_worker(make, place, access_log=endpoint.log.access)
    except typer.Exit as refused:
        return refused.exit_code
    except AntiphonError as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]))
