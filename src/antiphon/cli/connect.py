"""The connection of one command: its options, its headers, and the log of a stdio server."""

import os
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from antiphon.cli import output
from antiphon.cli.login.commands import LoginMethod, login_of
from antiphon.cli.output import USAGE, errors, fail
from antiphon.client.errors import CannotConnect
from antiphon.client.flow_types import Timeouts
from antiphon.client.targets.named import File, NamedTarget, parse_target
from antiphon.protocol.text import safe

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient

TARGET = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="URL of the server, a command that speaks MCP on stdio (quoted), or a server of "
        "yours: path/to/file.py[:server] or module:server.",
    ),
]
HEADER = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="An HTTP header. Repeatable."),
]
ENV = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable for a stdio server; without a value, yours. It inherits only PATH, HOME, "
        "USER, LOGNAME, SHELL and TERM. Repeatable.",
    ),
]
ERA = Annotated[
    str,
    typer.Option(
        "--era", help="Revision of the protocol to speak: auto, modern (2026-07-28) or legacy."
    ),
]
TIMEOUT = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Longest wait for a reply.", min=0.1)
]
VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show what a stdio server writes to its stderr.")
]

_TAIL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a connection."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables of a stdio server besides the few that it inherits."""

    era: str = "auto"
    timeout: float = 300.0
    verbose: bool = False
    json: bool = False
    login: LoginMethod = ""
    """How a person may be asked to sign in."""

    ambient: bool = True
    """Whether kept logins and the proxies of the environment may be used."""

    def __post_init__(self) -> None:
        """Refuse an unknown era."""
        if self.era not in ("auto", "modern", "legacy"):
            fail(f"--era is auto, modern or legacy, not {self.era!r}", USAGE)


def settings_of(
    header: Sequence[str] | None,
    env: Sequence[str] | None,
    era: str,
    timeout: float,
    verbose: bool,
    json: bool,
    *,
    login: LoginMethod = "",
    ambient: bool = True,
) -> Settings:
    """Read the options that every command with a connection has."""
    try:
        headers, variables = headers_of(header or ()), variables_of(env or (), os.environ)
    except ValueError as error:
        fail(str(error), USAGE)
    return Settings(
        headers=headers,
        env=variables,
        era=era,
        timeout=timeout,
        verbose=verbose,
        json=json,
        login=login,
        ambient=ambient,
    )


def variables_of(texts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read `NAME=VALUE` texts; `NAME` alone takes its value from `environ`.

    Raises:
        ValueError: A text has no name, or the variable is not set.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in environ):
            raise ValueError(f"--env takes NAME=VALUE or the name of a set variable, not {name!r}")
        found[name] = value if equals else environ[name]
    return found


def headers_of(lines: Iterable[str]) -> dict[str, str]:
    """Read `Name: value` lines.

    Raises:
        ValueError: A line has no colon.
    """
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError("a header is written 'Name: value'")
        found[name.strip()] = value.strip()
    return found


def interactive() -> bool:
    """Whether a person can be asked at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_named(text: str, *, json: bool) -> NamedTarget:
    """Read the server that a word of the command line names, or print what is wrong and exit.

    Every command does so once, before anything else; what is behind takes the value.
    """
    try:
        target = parse_target(text)
    except CannotConnect as error:
        output.failed(error, json=json, code=USAGE)
    if isinstance(target, File) and not Path(target.path).is_file():
        fail(f"there is no file {target.path}", USAGE)
    return target


@contextmanager
def connected(target: NamedTarget, settings: Settings, answers: Any) -> Generator["BlockingClient"]:
    """Open a client, or print why it cannot be opened and exit.

    What a stdio server writes to standard error is shown only if connecting failed.
    """
    # Loaded here: the SDK behind it takes longer to load than most commands take to run.
    from antiphon.client.blocking import BlockingClient

    with ExitStack() as stack:
        log: Any = sys.stderr if settings.verbose else stack.enter_context(_log())
        login = None
        if settings.ambient:
            login = login_of(target, list(settings.headers), method=settings.login)
        if login is not None:
            stack.callback(login.close)
        try:
            client = BlockingClient(
                target,
                answers=answers,
                era=cast("Any", settings.era),
                headers=settings.headers,
                auth=login,
                proxies=settings.ambient,
                timeouts=Timeouts(reply=settings.timeout),
                env=settings.env,
                errlog=log,
            )
            stack.enter_context(client)
        except CannotConnect as error:
            _show_tail(log)
            output.failed(error, json=settings.json)
        yield client


def _log() -> TextIO:
    return cast("TextIO", tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))


def _show_tail(log: TextIO) -> None:
    if log is sys.stderr:
        return
    log.seek(0)
    text = log.read()[-_TAIL:].strip()
    if text:
        errors().print(
            "the server's last output:", safe(text, _TAIL), markup=False, sep="\n", soft_wrap=True
        )
