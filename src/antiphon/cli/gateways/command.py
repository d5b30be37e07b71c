"""`antiphon gateway`: any MCP server behind an Antiphon server, without changing either side."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from antiphon import Server
from antiphon.apps.gateway.pins import ToolPins, is_lock
from antiphon.apps.gateway.policy import ApprovalRule
from antiphon.cli.gateways.settings import (
    GatewayFile,
    OAuthClient,
    UpstreamEntry,
    check_callers,
    gateway_server,
    is_url,
    read_gateway,
    write_gateway,
)
from antiphon.cli.local_server import serve_beside_stdio
from antiphon.cli.logs import LOG_FORMAT, VERBOSE, LogOptions, log_to_stderr
from antiphon.cli.output import USAGE, fail, say
from antiphon.cli.serve import (
    ALLOW_HOST,
    ALLOW_ORIGIN,
    HTTP,
    PATH,
    PORT,
    STDIO,
    configured,
    listen_address,
)
from antiphon.cli.written_files import NotWritten, write_new, write_own
from antiphon.errors import AntiphonError, ConfigError
from antiphon.transports.http.app import App

TARGETS = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="A URL, a command in quotes, or a file that --save has written (.toml).",
    ),
]
NAMES = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="NAME", help="Prefix of a target's names, in their order."),
]
ERA = Annotated[
    Literal["auto", "modern", "legacy"],
    typer.Option("--era", help="legacy: for servers of both eras that ask during a request."),
]
APPROVE = Annotated[
    list[str] | None,
    typer.Option(
        "--approve",
        metavar="TOOL[=ROLE]",
        help="Tools that need a yes first: of the caller, or of somebody with a role. Repeatable.",
    ),
]
ALLOW = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="PATTERN", help="Pass on only what matches. Repeatable."),
]
DENY = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="PATTERN", help="Never pass on what matches. Repeatable."),
]
HEADER = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME=VALUE", help="Sent to URLs; env:VARIABLE as value. Repeatable."
    ),
]
OAUTH = Annotated[
    str | None,
    typer.Option("--oauth", metavar="ID=env:SECRET", help="OAuth client credentials for a URL."),
]
OAUTH_ISSUER = Annotated[
    str | None,
    typer.Option("--oauth-issuer", metavar="URL", help="Where --oauth gets its tokens."),
]
STORE = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Default: ANTIPHON_STORE, else a file here."),
]
CONSOLE = Annotated[
    str | None,
    typer.Option("--console", metavar="URL", help="Where people reach the pages to approve."),
]
AUDIT = Annotated[
    str | None,
    typer.Option("--audit", metavar="FILE", help="Append a JSON line for every call; - is stderr."),
]
TIMEOUT = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For one reply.")
]
SAVE = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Write the settings, and exit.")
]


DEFAULT = Annotated[
    Literal["allow", "approve", "deny"] | None,
    typer.Option("--default", help="What becomes of tools that no pattern names."),
]
LOCK = Annotated[
    str | None,
    typer.Option(
        "--lock", metavar="FILE", help="Pass on only tools with the digests in this file."
    ),
]
ACCEPT = Annotated[
    bool, typer.Option("--accept", help="Show what there is, write the lock file, and exit.")
]
OPEN = Annotated[
    bool, typer.Option("--open", help="Serve callers whom nobody knows, with every credential.")
]


def gateway(
    target: TARGETS,
    name: NAMES = None,
    http: HTTP = None,
    port: PORT = None,
    stdio: STDIO = False,
    era: ERA = "auto",
    approve: APPROVE = None,
    allow: ALLOW = None,
    deny: DENY = None,
    header: HEADER = None,
    oauth: OAUTH = None,
    oauth_issuer: OAUTH_ISSUER = None,
    store: STORE = None,
    console: CONSOLE = None,
    audit: AUDIT = None,
    timeout: TIMEOUT = 300.0,
    path: PATH = "/mcp",
    allow_host: ALLOW_HOST = None,
    allow_origin: ALLOW_ORIGIN = None,
    save: SAVE = None,
    default: DEFAULT = None,
    lock: LOCK = None,
    accept: ACCEPT = False,
    open: OPEN = False,
    verbose: VERBOSE = 0,
    log_format: LOG_FORMAT = None,
) -> None:
    """Serve what other MCP servers offer, to clients of either era, over HTTP or stdio.

    Tools, prompts, resources, completion, progress, log messages and changes of lists pass. What a
    server asks is asked of the client; its state is sealed in ours, and a token works once. A call
    that waits goes on after a restart of the gateway if the store and its keys are kept; a legacy
    server that waits for an answer is kept open, and its call is lost with the gateway, never
    repeated. All clients share one identity at the server: their credentials are not passed on.

    What passes, what needs an approval and what is denied is logged at the start. A pattern that
    names nothing is an error. Callers are known by the access tokens of [auth] in a file; without
    it the gateway serves this machine only, and only if it holds no credentials, unless --open.

    An approval by a role is decided in the console's inbox: give --console, and --save the settings
    to a file, which `antiphon inbox FILE --role ROLE`, `antiphon serve`, `antiphon worker` and
    `antiphon console` take as a server.

    Exit codes: 0 ended by a signal, 1 a server cannot be reached, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon gateway https://mcp.example.com/mcp
      antiphon gateway "npx -y some-server" --stdio --approve 'delete_*'
      antiphon gateway URL COMMAND --name shop --name files --deny 'files_rm*'
      antiphon gateway URL --approve 'rm_*=ops' --console https://tools.example
    """
    _check_places(stdio=stdio, listens=bool(http) or port is not None, console=console)
    if len(target) == 1 and target[0].endswith(".toml"):
        settings = configured(read_gateway, Path(target[0]))
        beside = (name, header, oauth, oauth_issuer, allow, deny, approve, audit, default, lock)
        if any(beside) or console is not None:
            fail(f"write rules, names and credentials into {target[0]}, not beside it", USAGE)
    else:
        client = _client(oauth, oauth_issuer)
        try:
            entries = _entries(target, name or [], era, timeout, header or [], client)
        except ConfigError as error:
            fail(str(error), USAGE)
        settings = GatewayFile(
            upstream=entries,
            store=store,
            console=console,
            allow=allow or [],
            deny=deny or [],
            approve=_rules(approve or []),
            audit=audit,
            default=default,
            lock=lock,
            open=open,
        )
    if open and not settings.open:
        settings = msgspec.structs.replace(settings, open=True)
    if accept:
        _accept(settings)
        return
    server = configured(gateway_server, settings)
    if save is not None:
        _save(save, settings)
        return
    hosts, origins = tuple(allow_host or ()), tuple(allow_origin or ())
    _say_how_to_decide(settings.console, target)
    try:
        if stdio:
            _run_stdio(server)
        else:
            where = listen_address(http, port)
            configured(lambda given: check_callers(given, where[0], *hosts), settings)
            app = server.asgi(path, allowed_hosts=hosts, allowed_origins=origins)
            _run_http(app, where, LogOptions(verbose, log_format))
    except AntiphonError as error:
        fail(str(error))


def _check_places(*, stdio: bool, listens: bool, console: str | None) -> None:
    if stdio and listens:
        fail("--stdio excludes --http and --port", USAGE)
    if console is not None and not console.startswith(("http://", "https://")):
        fail(
            "--console takes the URL of the pages, such as http://127.0.0.1:8400/console, not "
            f"{console!r}",
            USAGE,
        )


def _say_how_to_decide(url: str | None, target: list[str]) -> None:
    """Say where the pages are, if there are any, and how their inbox is opened."""
    if url is None:
        return
    saved = target[0].endswith(".toml")
    file = target[0] if saved else "FILE"
    first = "" if saved else "save the settings with --save FILE, then "
    say(f"console: {url}")
    say(f"To decide, {first}open the inbox: antiphon inbox {file} --role ROLE")


def _accept(settings: GatewayFile) -> None:
    """Write the digests of the tools that there are now, and say what has changed."""
    from antiphon.transports.processes.event_loop import run_loop

    if settings.lock is None:
        fail("--accept needs a lock file: lock = FILE, or --lock FILE", USAGE)
    file, pins = Path(settings.lock), ToolPins({}, accepts=True)
    known = configured(ToolPins.read, file) if file.exists() else ToolPins({})
    server = configured(lambda given: gateway_server(given, pins), settings)
    log_to_stderr()

    async def look() -> None:
        async with server.running():
            pass

    try:
        run_loop(look())
        write_own(file, pins.dump(), is_lock)
    except NotWritten as error:
        fail(str(error), USAGE)
    except AntiphonError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
    for line in known.compared(pins):
        say(line)
    say(f"written: {file}")


def _save(file: Path, settings: GatewayFile) -> None:
    """Write the settings to a new file."""
    try:
        write_new(file, write_gateway(settings))
    except AntiphonError as error:
        fail(str(error), USAGE)
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
    say(f"written: {file}")


def _run_stdio(server: Server) -> None:
    from antiphon.transports.processes.event_loop import run_loop
    from antiphon.transports.processes.http_server import serve_http

    if server.console is None:
        run_loop(server.serve_stdio())
    else:
        run_loop(serve_beside_stdio(server, serve_http))


def _run_http(app: App, where: tuple[str, int], log: LogOptions) -> None:
    from antiphon.transports.processes.http_server import run_http

    log_to_stderr(log)
    run_http(app, *where, access_log=log.access)


def _entries(
    targets: list[str],
    names: list[str],
    era: Literal["auto", "modern", "legacy"],
    timeout: float,
    headers: list[str],
    client: OAuthClient | None,
) -> list[UpstreamEntry]:
    if len(names) > len(targets):
        fail("--name is given more often than there are targets", USAGE)
    names = names + [""] * (len(targets) - len(names))
    given = dict(_pair(text, "--header") for text in headers)
    return [
        UpstreamEntry(
            target=target,
            name=name,
            era=era,
            timeout=timeout,
            headers=given if is_url(target) else {},
            oauth=client if is_url(target) else None,
        )
        for target, name in zip(targets, names, strict=True)
    ]


def _client(oauth: str | None, issuer: str | None) -> OAuthClient | None:
    if (oauth is None) != (issuer is None):
        fail("--oauth and --oauth-issuer go together", USAGE)
    return None if oauth is None else OAuthClient(*_pair(oauth, "--oauth"), issuer or "")


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name.strip() or not sign or not value:
        fail(f"{option} takes NAME=VALUE", USAGE)
    return name.strip(), value


def _rules(texts: list[str]) -> dict[str, str]:
    try:
        rules = [ApprovalRule.parse(text) for text in texts]
    except ConfigError as error:
        fail(str(error), USAGE)
    return {rule.pattern: rule.role for rule in rules}
