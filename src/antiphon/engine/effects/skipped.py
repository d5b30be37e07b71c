"""Effects that an earlier try of a call has begun, and that a later try ends without reaching.

A guard above an effect that reads the world anew sees what the effect itself has done. The handler
then ends before it, and its words would hide that the effect may have happened, or that this very
call has done it.
"""

from collections.abc import Sequence

from antiphon.engine.effects.names import is_someone
from antiphon.engine.execution import Execution
from antiphon.engine.outcome import Completed, ExecutionOutcome, Failed
from antiphon.errors import DELIBERATE, Diverged, EffectUncertain, StoreError
from antiphon.ports import EffectRow

_FIX = (
    "What decides whether an effect is reached must be the same in every run: read it with "
    "ctx.memo, or put it inside the effect."
)


async def report_skipped(execution: Execution, outcome: ExecutionOutcome) -> ExecutionOutcome:
    """Return the end of a call; if it hides an effect of an earlier try, one that names it.

    Args:
        execution: The run that ended the call, which may not have been its first try.
        outcome: How it ended.
    """
    if not isinstance(outcome, Completed | Failed):
        return outcome
    try:
        rows = await execution.environment.store.effects(execution.call.id)
    except StoreError as error:
        return Failed(error)
    reached = [row for row in rows if execution.replay.peek("effect", row.key) is not None]
    skipped = [row for row in rows if row not in reached]
    open_ = [row for row in skipped if row.state in ("started", "uncertain")]
    for row in open_:
        guarded = is_someone(execution)
        error = EffectUncertain(execution.call.id, row.key, guarded=guarded)
        execution.doubt(error, None, known=True)
    if open_:
        ended = outcome if isinstance(outcome, Failed) else Failed(_skipping(open_[0]))
        return execution.judge(ended)
    if isinstance(outcome, Failed) and not isinstance(outcome.error, DELIBERATE):
        return outcome  # the round is tried again in any case
    hidden = [row for row in skipped if not _is_excused(execution, row, reached)]
    return Failed(_skipping(hidden[0])) if hidden else outcome


def _is_excused(execution: Execution, row: EffectRow, reached: Sequence[EffectRow]) -> bool:
    """Return whether a run may well end without reaching an effect that an earlier one has ended.

    Who starts a call over may answer differently. And where the end of an effect before it became
    known only later, the handler now takes the path that belongs to it.
    """
    later = any(one.settled is None or one.settled > row.started for one in reached)
    return later or execution.call.generation > 0


def _skipping(row: EffectRow) -> Diverged:
    return Diverged(
        recorded=f"effect {row.key!r} ({row.function})",
        now="the end of the handler before it",
        cure=_FIX,
    )
