"""One connection for one command: target, answers, bounds, what a stdio server says. Thin."""

import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from antiphon.cli import show
from antiphon.cli.arguments import headers as read_headers
from antiphon.cli.exits import USAGE, errors, fail
from antiphon.client.errors import CannotConnect
from antiphon.client.flow_types import Timeouts
from antiphon.core.text import safe

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient

_TAIL = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the options of a command say about its connection."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    era: str = "auto"
    timeout: float = 300.0
    verbose: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown era."""
        if self.era not in ("auto", "modern", "legacy"):
            fail(f"--era is auto, modern or legacy, not {self.era!r}", USAGE)


def settings_of(
    header: Sequence[str] | None, era: str, timeout: float, verbose: bool, json: bool
) -> Settings:
    """Read the options that every command with a connection has."""
    try:
        given = read_headers(header or ())
    except ValueError as error:
        fail(str(error), USAGE)
    return Settings(headers=given, era=era, timeout=timeout, verbose=verbose, json=json)


def interactive() -> bool:
    """Tell whether a person sits here."""
    return sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def connected(
    target: str | Sequence[str], settings: Settings, answers: Any
) -> Generator["BlockingClient"]:
    """Open a client, or say why not and exit.

    A stdio server's standard error is kept aside and shown only when connecting failed.
    """
    # Loaded here: the SDK behind it takes longer to load than most commands take to run.
    from antiphon.client.blocking import BlockingClient

    with ExitStack() as stack:
        log: Any = sys.stderr if settings.verbose else stack.enter_context(_log())
        try:
            client = BlockingClient(
                target,
                answers=answers,
                era=cast("Any", settings.era),
                headers=settings.headers,
                timeouts=Timeouts(reply=settings.timeout),
                env=dict(os.environ),
                errlog=log,
            )
            stack.enter_context(client)
        except CannotConnect as error:
            _show_tail(log)
            show.failed(error, json=settings.json)
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
            "the server's last words:", safe(text, _TAIL), markup=False, sep="\n", soft_wrap=True
        )
