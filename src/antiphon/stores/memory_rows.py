"""The rows of the memory store, and what can be told from one row. Owns no bound and no index."""

import asyncio

import msgspec

from antiphon.ports import Begin, Busy, Effect, FailedEffect, Finished, Mismatch, Uncertain

_BUSY = Busy()


class RoundRow(msgspec.Struct, gc=False):
    """One redeemed round. Not tracked by the collector: a chain of rows has no cycle."""

    call: str
    round: int
    answers: bytes
    lease: float
    expires: float
    below: "RoundRow | None"
    fence: int = 1
    state: str = "running"
    body: bytes | None = None
    """The outcome once recorded; until then the prefix."""

    why: str = "released"
    waiters: "set[asyncio.Future[None]] | None" = None


class BegunRow(msgspec.Struct, gc=False):
    """One effect that was begun."""

    effect: Effect
    fence: int
    lease: float
    expires: float
    started: float
    settled: float | None = None
    result: bytes | None = None
    error: str | None = None


class SegmentRow(msgspec.Struct, gc=False):
    """One journal that no token carries."""

    call: str
    round: int
    owner: str
    data: bytes
    expires: float


def find(row: RoundRow | None, round: int) -> RoundRow | None:
    """Find a round in the chain below a row."""
    while row is not None and row.round > round:
        row = row.below
    return row if row is not None and row.round == round else None


def unlink(top: RoundRow, row: RoundRow) -> None:
    """Take a row out of the chain below `top`."""
    while top.below is not None and top.below is not row:
        top = top.below
    top.below = row.below


def wake(row: RoundRow) -> None:
    """Tell everybody who waits for this round."""
    waiters, row.waiters = row.waiters, None
    for waiter in waiters or ():
        if not waiter.done():
            waiter.set_result(None)


def in_the_way(
    row: BegunRow, effect: Effect, now: float, *, retry: bool, window: float | None
) -> Begin | None:
    """What stands in the way of beginning, or None when it may be begun anew."""
    if row.settled is not None and window is not None and now >= row.settled + window:
        return None
    if row.effect.function != effect.function or row.effect.arguments != effect.arguments:
        return Mismatch(row.effect.function)
    if row.error is not None:
        return FailedEffect(row.error)
    if row.result is not None:
        return Finished(row.result, row.effect.call)
    if now < row.lease:
        return _BUSY
    return None if retry else Uncertain(row.effect.call)


def state_of(row: BegunRow, now: float) -> str:
    """Say how an effect stands, as operators read it."""
    if row.settled is None:
        return "started" if now < row.lease else "uncertain"
    return "done" if row.error is None else "failed"
