"""Middleware of a server under development: writes down which lines ran in each run of a handler.

It is outermost, sees what the author's own middleware does, and changes nothing.
"""

from typing import Any

from antiphon.dev.line_counts import Lines, counting
from antiphon.dev.records import RecordWriter, RoundRecord, RunBegan
from antiphon.errors import Diverged
from antiphon.handlers.middleware import CallInfo, Middleware, Next
from antiphon.ports import Clock


def recording(writer: RecordWriter, clock: Clock) -> Middleware:
    """Return the middleware."""

    async def record(call: CallInfo, next: Next) -> Any:
        lines: Lines = {}
        number, began = call.round, clock()
        writer.write(RunBegan(call.id, call.kind, call.name, began))
        before = counting.set(lines)
        failed: BaseException | None = None
        try:
            return await next()
        except Exception as error:
            failed = error
            raise
        finally:
            counting.reset(before)
            writer.write(
                RoundRecord(
                    call=call.id,
                    round=number,
                    kind=call.kind,
                    name=call.name,
                    began=began,
                    ended=clock(),
                    outcome=call.outcome,
                    lines=lines,
                    error="" if failed is None else f"{type(failed).__name__}: {failed}",
                    diverged=_sides(failed),
                )
            )

    return record


def _sides(failed: BaseException | None) -> tuple[str, str, str] | None:
    if not isinstance(failed, Diverged):
        return None
    return failed.recorded, failed.now, failed.cure
