"""Calling the function of an effect: how often, and how it ended.

Tries of one effect are judged together. One that may have reached the other side is not made good
by a later one that did not.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.engine.effects.names import Once
from antiphon.engine.execution import Execution
from antiphon.engine.handler import call_to_end
from antiphon.engine.serialization.codec import JsonCodec
from antiphon.errors import NotDone
from antiphon.protocol.digest import idempotency_key
from antiphon.protocol.effect_ends import FAILED, NOT_DONE, REFUSED, EffectEnd, end_of, worst

_RETRIES = (0.1, 0.5, 2.0)
"""Seconds between the tries of an effect with `retry=True`."""


class Returned(msgspec.Struct, frozen=True):
    """The result of an effect, encoded."""

    payload: bytes
    doubted: bool = False
    """Whether an earlier try may have happened."""


class Ended(msgspec.Struct, frozen=True):
    """An effect without a result."""

    end: EffectEnd
    error: Exception
    ran: bool = False
    """Whether the function returned, and what it returned cannot be recorded."""


async def try_effect(
    execution: Execution, spec: Once, codec: JsonCodec, call: str
) -> Returned | Ended:
    """Call the function; again after a pause if it may be.

    Args:
        execution: The run of the handler.
        spec: What the author says about the effect.
        codec: How its result is kept.
        call: The call that the idempotency key is made of.
    """
    kwargs = extra_arguments(spec.fn, call, spec.key)
    unknown = (*execution.environment.unknown_after, *spec.unknown_after)
    ends: list[EffectEnd] = []
    for pause in (*_RETRIES, None):
        try:
            with execution.inside(spec.key):
                value = await call_to_end(spec.fn, spec.args, kwargs)
        except Exception as error:  # noqa: BLE001 - user code: what it means is judged
            ends.append(end_of(error, unknown))
            final = isinstance(error, NotDone) or ends[-1] is REFUSED
            if final or not spec.retry or pause is None:
                return Ended(worst(iter(ends)), error)
            await asyncio.sleep(pause)
        else:
            return _kept(codec, value, spec.key, doubted=any(end is not NOT_DONE for end in ends))
    raise AssertionError("the last try has no pause after it")


def _kept(codec: JsonCodec, value: Any, key: str, *, doubted: bool) -> Returned | Ended:
    """Encode a result; what cannot be read back is not settled as done."""
    try:
        payload, _ = codec.keep(value, f"the result of effect {key!r}")
    except Exception as error:  # noqa: BLE001 - user code: types and validators of the author
        return Ended(FAILED, error, ran=True)
    return Returned(payload, doubted)


def did_nothing(ended: Ended) -> bool:
    """Return whether the author has said that nothing happened, in every try."""
    return ended.end is NOT_DONE and isinstance(ended.error, NotDone)


def extra_arguments(fn: Callable[..., Any], call: str, key: str) -> dict[str, Any]:
    """Return the idempotency key for a function that takes one."""
    try:
        wanted = "idempotency_key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        wanted = False
    return {"idempotency_key": idempotency_key(call, key)} if wanted else {}
