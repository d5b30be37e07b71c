"""Effects of equal calls: what one caller must not do again by calling once more."""

import asyncio

import msgspec

from antiphon.ports import (
    About,
    Effect,
    EqualCalls,
    FailedEffect,
    Finished,
    InEqualCall,
    Started,
    Store,
)
from antiphon.testing.contracts.parts import (
    ARGS,
    LONG,
    TTL,
    Contract,
    begun_of,
    effect_of,
    name,
    start,
)

_ANSWERS, _INPUTS = b"digest-of-answer", b"digest-of-inputs"


def _equal(*names: str, answers: bytes = _ANSWERS, inputs: bytes = _INPUTS) -> EqualCalls:
    return EqualCalls(names, answers, inputs)


def _effect(equal: EqualCalls) -> Effect:
    return msgspec.structs.replace(effect_of(name()), equal=equal)


async def an_effect_of_unknown_end_is_not_begun_by_an_equal_call(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first, second = _effect(equal), _effect(equal)
    await begun_of(a, first, lease=0.0)
    found = InEqualCall(first.call, first.id, "uncertain", ARGS, _INPUTS)
    assert await start(b, second) == found
    assert await start(b, second, retry=True) == found


async def an_effect_that_runs_in_an_equal_call_is_waited_for(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first, second = _effect(equal), _effect(equal)
    begun = await begun_of(a, first)
    running = InEqualCall(first.call, first.id, "running", ARGS, _INPUTS)
    assert await start(b, second) == running
    assert await a.settle(first.id, begun.fence, result=b"paid", error=None)
    found = await start(b, second)
    assert isinstance(found, InEqualCall)
    assert found.state == "running"
    await a.tell(first.call)
    await begun_of(b, second)


async def an_equal_call_gets_a_result_that_nobody_was_told(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first = _effect(equal)
    begun = await begun_of(a, first)
    assert await a.settle(first.id, begun.fence, result=b"paid", error=None, lost=True)
    assert await start(b, _effect(equal)) == InEqualCall(
        first.call, first.id, "done", ARGS, _INPUTS, b"paid"
    )
    other = msgspec.structs.replace(equal, answers=b"other", inputs=b"others")
    await begun_of(b, _effect(other))


async def a_failure_stands_for_equal_calls_until_it_is_settled(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first, second = _effect(equal), _effect(equal)
    begun = await begun_of(a, first)
    assert await a.settle(first.id, begun.fence, result=None, error="KeyError")
    assert await start(b, second) == InEqualCall(
        first.call, first.id, "failed", ARGS, _INPUTS, error="KeyError"
    )
    assert await start(b, first) == FailedEffect("KeyError")
    assert await b.settle_uncertain(first.call, first.key, result=None)
    await begun_of(b, second)


async def a_failure_that_stands_is_listed_for_operators(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first, refused = (
        msgspec.structs.replace(_effect(one), shown=b"sealed")
        for one in (equal, _equal(name("equal")))
    )
    about = About("reimburse", "anna")
    for effect, told in ((first, False), (refused, True)):
        begun = await a.begin(effect, lease=LONG, ttl=TTL, under=None, retry=False, about=about)
        assert isinstance(begun, Started)
        assert await a.settle(effect.id, begun.fence, result=None, error="KeyError", told=told)
    listed = {row.call: row for row in await b.calls(limit=1000, uncertain=True)}
    assert refused.call not in listed, "its caller was told, and it keeps nobody from anything"
    row = listed[first.call]
    assert (row.tool, row.caller, row.uncertain, row.blocking) == ("reimburse", "anna", 0, 1)
    assert await b.count_calls(uncertain=True) >= 1
    [seen] = await b.effects(first.call)
    assert (seen.state, seen.blocks, seen.open) == ("failed", True, True)
    assert (seen.tool, seen.caller, seen.shown) == ("reimburse", "anna", b"sealed")
    [free] = await b.effects(refused.call)
    assert (free.state, free.blocks, free.open, free.shown) == ("failed", False, False, b"")
    assert await b.settle_uncertain(first.call, first.key, result=b"paid")
    assert first.call not in {row.call for row in await a.calls(limit=1000, uncertain=True)}
    [seen] = await a.effects(first.call)
    assert (seen.state, seen.open) == ("done", False)


async def a_refusal_leaves_equal_calls_free(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first = _effect(equal)
    begun = await begun_of(a, first)
    assert await a.settle(first.id, begun.fence, result=None, error="no", told=True)
    await begun_of(b, _effect(equal))


async def what_did_not_happen_leaves_equal_calls_free(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first = _effect(equal)
    begun = await begun_of(a, first)
    await a.abandon(first.id, begun.fence)
    await begun_of(b, _effect(equal))


async def what_an_operator_settled_counts_for_equal_calls(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first = _effect(equal)
    await begun_of(a, first, lease=0.0)
    assert await b.settle_uncertain(first.call, first.key, result=b"paid")
    await a.tell(first.call)
    await a.end_call(first.call, ttl=0.0)
    found = await start(b, _effect(equal))
    assert isinstance(found, InEqualCall)
    assert (found.state, found.result) == ("done", b"paid")


async def a_doubted_result_counts_for_equal_calls_after_the_call(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    first = _effect(equal)
    begun = await begun_of(a, first)
    assert await a.settle(first.id, begun.fence, result=b"paid", error=None, doubted=True)
    await a.end_call(first.call, ttl=0.0)
    found = await start(b, _effect(equal))
    assert isinstance(found, InEqualCall)
    assert (found.state, found.result) == ("done", b"paid")


async def effects_of_unknown_end_outlive_the_end_of_their_call(a: Store, b: Store) -> None:
    equal, other = _equal(name("equal")), _equal(name("equal"))
    failed, done = _effect(equal), _effect(other)
    done = msgspec.structs.replace(done, call=failed.call, id=f"{failed.call}/second", key="second")
    first, second = await begun_of(a, failed), await begun_of(a, done)
    assert await a.settle(done.id, second.fence, result=b"1", error=None)
    assert await a.settle(failed.id, first.fence, result=None, error="KeyError")
    await a.end_call(failed.call, ttl=0.0)
    for one, state in ((equal, "failed"), (other, "done")):
        found = await start(b, _effect(one))
        assert isinstance(found, InEqualCall)
        assert found.state == state


async def equal_calls_are_found_by_keys_of_before(a: Store, b: Store) -> None:
    old, new = name("equal"), name("equal")
    await begun_of(a, _effect(_equal(old)), lease=0.0)
    found = await start(b, _effect(_equal(new, old)))
    assert isinstance(found, InEqualCall)
    assert found.state == "uncertain"
    await begun_of(b, _effect(_equal(new)))


async def of_many_equal_calls_one_begins_the_effect(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    begins = await asyncio.gather(*(start(store, _effect(equal)) for store in (a, b) * 12))
    assert sum(isinstance(begin, Started) for begin in begins) == 1, begins
    assert sum(isinstance(begin, InEqualCall) for begin in begins) == 23, begins


async def a_call_meets_its_own_effect_and_not_an_equal_one(a: Store, b: Store) -> None:
    equal = _equal(name("equal"))
    effect = _effect(equal)
    await begun_of(a, effect, lease=0.0)
    begun = await begun_of(b, effect, retry=True, lease=LONG)
    assert await b.settle(effect.id, begun.fence, result=b"paid", error=None)
    assert await start(a, effect) == Finished(b"paid", effect.call)


EQUAL_CALL_CONTRACTS: tuple[Contract, ...] = (
    an_effect_of_unknown_end_is_not_begun_by_an_equal_call,
    an_effect_that_runs_in_an_equal_call_is_waited_for,
    an_equal_call_gets_a_result_that_nobody_was_told,
    a_failure_stands_for_equal_calls_until_it_is_settled,
    a_failure_that_stands_is_listed_for_operators,
    a_refusal_leaves_equal_calls_free,
    what_did_not_happen_leaves_equal_calls_free,
    what_an_operator_settled_counts_for_equal_calls,
    a_doubted_result_counts_for_equal_calls_after_the_call,
    effects_of_unknown_end_outlive_the_end_of_their_call,
    equal_calls_are_found_by_keys_of_before,
    of_many_equal_calls_one_begins_the_effect,
    a_call_meets_its_own_effect_and_not_an_equal_one,
)
"""What one caller must not do again by calling once more."""
