"""How an execution ends that failed: read from everything it knows, leaf by leaf.

An exception that comes out of a handler may be a group, may hide another, or may stand for what a
branch found. So the shape of it never decides alone. Effects of unknown end are noted on the
execution where they are found (`Doubt`), and a group is read by its leaves.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import (
    DELIBERATE,
    AntiphonError,
    CallerError,
    EffectUncertain,
    MemoFailed,
    NotDone,
    StoreError,
)
from antiphon.protocol.journal import Entry, encode_value


class Doubt(msgspec.Struct, eq=False):
    """An effect of unknown end that this execution has met."""

    error: EffectUncertain
    entry: Entry | None
    """What the journal keeps of it."""

    task: "asyncio.Task[Any] | None"
    """The task that met it."""

    known: bool
    """Whether an earlier round or run has met it, and the handler went on after it."""

    settled: bool = False
    """Whether its end is known by now, although the handler is shown what it saw before."""

    @property
    def passing(self) -> bool:
        """Whether nothing can depend on it yet: it was met just now, and nothing was done since."""
        return self.entry is not None and not self.known and not seen_in(self.entry).acted


class SeveralUncertain(EffectUncertain):
    """Several effects of one execution have an unknown end; named by the first."""

    def __init__(
        self, effects: tuple[EffectUncertain, ...], refusal: Exception | None = None
    ) -> None:
        super().__init__(effects[0].call_id, effects[0].key)
        self.effects = effects
        self.refusal = refusal
        """What the handler raised deliberately instead."""

    def __str__(self) -> str:
        """Name all of them."""
        return " ".join(map(str, self.effects))


class SeveralRefusals(Exception):
    """Branches of one handler have ended it deliberately, or had nothing done, at once."""

    def __init__(self, errors: tuple[Exception, ...]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


def uncertain_effects(error: EffectUncertain) -> tuple[EffectUncertain, ...]:
    """Return every effect that an error names."""
    return error.effects if isinstance(error, SeveralUncertain) else (error,)


def name_uncertain(effects: Iterable[EffectUncertain]) -> str:
    """Say which effects have an unknown end, call by call."""
    calls: dict[str, list[str]] = {}
    for one in effects:
        calls.setdefault(one.call_id, []).append(repr(one.key))
    return "; ".join(
        f"effect {keys[0]} of call {call} was started and its end is not known"
        if len(keys) == 1
        else f"effects {', '.join(keys)} of call {call} were started and their ends are not known"
        for call, keys in calls.items()
    )


def leaves_of(error: Exception) -> list[Exception]:
    """Return the errors of a group and of the groups in it, in order; others as they are.

    What a memo raised counts as itself.
    """
    if isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        return [leaf for one in group.exceptions for leaf in leaves_of(one)]
    if isinstance(error, SeveralRefusals):
        return list(error.errors)
    if isinstance(error, MemoFailed) and isinstance(error.__cause__, Exception):
        return leaves_of(error.__cause__)
    return [error]


def decisive(error: Exception) -> Exception:
    """Return the error that says how an execution ended, from all that a group holds.

    The store first, because the same may go well in the next try; then effects of unknown end, all
    of them; then what the client or the author did wrong. Only a group in which every leaf is
    deliberate is deliberate.
    """
    found = leaves_of(error)
    if len(found) == 1:
        return found[0]
    for kind in (StoreError, EffectUncertain, CallerError):
        some = [leaf for leaf in found if isinstance(leaf, kind)]
        if some and kind is EffectUncertain:
            return _joined(cast("list[EffectUncertain]", some))
        if some:
            return some[0]
    for leaf in found:
        if isinstance(leaf, AntiphonError) and not isinstance(leaf, DELIBERATE):
            return leaf
    if all(isinstance(leaf, (*DELIBERATE, NotDone)) for leaf in found):
        return SeveralRefusals(tuple(found))
    return error


def _joined(errors: Iterable[EffectUncertain], refusal: Exception | None = None) -> EffectUncertain:
    named = {(one.call_id, one.key): one for error in errors for one in uncertain_effects(error)}
    effects = tuple(named.values())
    if len(effects) == 1 and refusal is None:
        return effects[0]
    return SeveralUncertain(effects, refusal)


# --- effects of unknown end ----------------------------------------------------------------------


def doubted_end(error: Exception, doubts: Mapping[str, Doubt]) -> Exception:
    """Return how an execution ended that failed and has met effects of unknown end.

    Whatever the handler made of them, the call cannot be over: it would be told that it failed, or
    would be begun again, while something may have happened. All of them are named, after the words
    that the author chose.
    """
    end = decisive(error)
    if isinstance(end, StoreError):
        return end
    errors = [doubt.error for doubt in doubts.values()]
    if isinstance(end, EffectUncertain):
        errors = [*uncertain_effects(end), *errors]
    deliberate = isinstance(end, (*DELIBERATE, SeveralRefusals))
    joined = _joined(errors, end if deliberate else None)
    if joined is not end and not deliberate:
        joined.__cause__ = error
    return joined


def doubtful(entry: Entry) -> bool:
    """Return whether an entry says that the handler met an effect of unknown end."""
    return entry.kind == "effect" and entry.outcome == "uncertain"


class Seen(msgspec.Struct, frozen=True):
    """What the entry of an effect of unknown end keeps: no verdict, only that it was met."""

    call: str
    """The call that began the effect."""

    acted: bool = False
    """Whether the handler has begun another effect after it, by whatever it made of it."""


def seen_in(entry: Entry) -> Seen:
    """Read the entry of an effect of unknown end."""
    return msgspec.convert(entry.value(), Seen)


def with_acted(entry: Entry) -> Entry:
    """Return the entry of an effect of unknown end after which the handler has acted."""
    seen = msgspec.structs.replace(seen_in(entry), acted=True)
    return msgspec.structs.replace(entry, payload=encode_value(seen))
