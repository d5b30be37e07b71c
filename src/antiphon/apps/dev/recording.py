"""What is put around a server under development: a middleware that records, and who calls it.

The middleware writes down which lines ran in each run of a handler. It is outermost, sees what the
author's own middleware does, and changes nothing. A run that takes long, because it is parked,
waits in a session or works, is written down while it lasts.
"""

import asyncio
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.apps.dev.line_counts import AuthorFiles, Lines, counting
from antiphon.apps.dev.records import RecordWriter, RoundRecord, RunBegan
from antiphon.errors import Diverged
from antiphon.handlers.middleware import CallInfo, Middleware, Next
from antiphon.ports import Clock
from antiphon.protocol.request import Principal
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller, insufficient_scope

WRITE_EVERY = 0.25
"""Seconds between two records of a run that lasts."""

ISSUER = "antiphon dev"
DEVELOPER = "developer"
"""Who calls unless a person is named."""


def recording(writer: RecordWriter, files: AuthorFiles, clock: Clock) -> Middleware:
    """Return the middleware."""

    async def record(call: CallInfo, next: Next) -> Any:
        lines: Lines = {}
        began = clock()
        run = RoundRecord(call.id, call.round, call.kind, call.name, began, 0.0, "", lines)
        writer.write(RunBegan(call.id, call.kind, call.name, began))
        writing = asyncio.create_task(_write_often(writer, run), name="antiphon dev lines")
        before = counting.set(lines)
        failed: BaseException | None = None
        try:
            return await next()
        except Exception as error:
            failed = error
            raise
        finally:
            counting.reset(before)
            writing.cancel()
            writer.write(
                msgspec.structs.replace(
                    run,
                    ended=clock(),
                    outcome=call.outcome,
                    error=_raised(failed, files),
                    diverged=_sides(failed),
                )
            )

    return record


async def _write_often(writer: RecordWriter, run: RoundRecord) -> None:
    """Write down the lines of a run as they change; threads may count at the same time."""
    known = 0
    while True:
        await asyncio.sleep(WRITE_EVERY)
        lines = {file: dict(counts.copy()) for file, counts in run.lines.copy().items()}
        number = sum(sum(counts.values()) for counts in lines.values())
        if number != known:
            known = number
            writer.write(msgspec.structs.replace(run, lines=lines))


def _raised(failed: BaseException | None, files: AuthorFiles) -> str:
    """Return what was raised, and the author's line that it came through last."""
    if failed is None:
        return ""
    said = f"{type(failed).__name__}: {failed}"
    for frame in reversed(traceback.extract_tb(failed.__traceback__)):
        if frame.filename in files:
            return f"{said} ({Path(frame.filename).name}, line {frame.lineno})"
    return said


def _sides(failed: BaseException | None) -> tuple[str, str, str] | None:
    if not isinstance(failed, Diverged):
        return None
    return failed.recorded, failed.now, failed.cure


class DeveloperAccess:
    """Asks for no credential: every call is made by one person, who has every scope."""

    def __init__(self, person: str = "", issuer: str = "") -> None:
        """Name the person, and who would have issued the credential."""
        principal = Principal(issuer or ISSUER, person or DEVELOPER)
        self._caller = IdentifiedCaller(principal, scopes=None)

    async def identify(self, scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        """Return the person."""
        return self._caller

    def document(self, scope: Mapping[str, Any]) -> HttpRefusal | None:
        """Nobody issues tokens."""
        return None

    def insufficient(self, needed: frozenset[str]) -> HttpRefusal:
        """Return what a request without enough scopes would be told."""
        return insufficient_scope(needed)
