"""What every store must do, as plain async functions. Knows the ports only; runs on any store.

Each contract takes two handles of one store: the second stands for another process. A store that
lives in one process is passed twice. Contracts use names of their own, so that one database can
serve them all, and none waits longer than its store needs to notice the end of a lease.

    @pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
    async def test_my_store(contract, my_store):
        await contract(my_store, my_store)
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antiphon.ports import (
    Begun,
    Busy,
    Claim,
    Effect,
    FailedEffect,
    Fenced,
    Mine,
    Mismatch,
    Recorded,
    Running,
    Settled,
    Spent,
    Store,
    Uncertain,
    Under,
)

Contract: TypeAlias = Callable[[Store, Store], Awaitable[None]]

_YES = b"digest-of-yes---"
_NO = b"digest-of-no----"
_ARGS = b"digest-of-args--"
_LONG = 30.0
_PATIENCE = 5.0
"""How long a contract waits for what should come at once."""


def _name(kind: str = "call") -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _later() -> float:
    return time.time() + 600


async def _claim(
    store: Store,
    call: str,
    round: int = 2,
    answers: bytes = _YES,
    *,
    lease: float = _LONG,
    tries: int = 5,
) -> Claim:
    return await store.claim(call, round, answers, lease=lease, expires=_later(), tries=tries)


async def _mine(store: Store, call: str, round: int = 2, *, lease: float = _LONG) -> Mine:
    claim = await _claim(store, call, round, lease=lease)
    assert isinstance(claim, Mine), claim
    return claim


async def _record(store: Store, call: str, round: int, fence: int, outcome: bytes = b"out") -> bool:
    return await store.record(call, round, fence, outcome, expires=_later())


def _spent(claim: Claim, reason: str) -> None:
    assert isinstance(claim, Spent), claim
    assert claim.reason == reason, claim


# --- redeeming ---------------------------------------------------------------------------------


async def a_round_is_claimed_once_and_its_outcome_given_to_duplicates(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    assert mine.prefix is None
    assert await _claim(b, call) == Running()
    outcome = secrets.token_bytes(3000)
    assert await _record(a, call, 2, mine.fence, outcome)
    assert await _claim(b, call) == Recorded(outcome)
    assert await _claim(a, call) == Recorded(outcome)


async def many_claims_of_one_round_have_one_winner(a: Store, b: Store) -> None:
    for _ in range(5):
        call = _name()
        claims = await asyncio.gather(*(_claim(store, call) for store in (a, b) * 16))
        assert sum(isinstance(claim, Mine) for claim in claims) == 1, claims
        assert sum(claim == Running() for claim in claims) == 31, claims


async def many_claims_of_a_lapsed_round_have_one_winner(a: Store, b: Store) -> None:
    call = _name()
    first = await _mine(a, call, lease=0.0)
    claims = await asyncio.gather(*(_claim(store, call) for store in (b, a) * 16))
    fences = [claim.fence for claim in claims if isinstance(claim, Mine)]
    assert len(fences) == 1
    assert fences[0] > first.fence


async def other_answers_are_refused_in_every_state(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    _spent(await _claim(b, call, answers=_NO), "other-answers")
    await a.release(call, 2, mine.fence)
    _spent(await _claim(b, call, answers=_NO), "other-answers")
    mine = await _mine(b, call)
    assert await _record(b, call, 2, mine.fence)
    _spent(await _claim(a, call, answers=_NO), "other-answers")


async def a_round_below_the_mark_without_a_row_is_spent(a: Store, b: Store) -> None:
    call = _name()
    await _mine(a, call, 7)
    _spent(await _claim(b, call, 6), "evicted")
    _spent(await _claim(a, call, 1), "evicted")


async def rounds_of_a_call_follow_each_other_and_keep_their_outcomes(a: Store, b: Store) -> None:
    call = _name()
    for round in (2, 3, 5):
        mine = await _mine(a, call, round)
        assert await _record(a, call, round, mine.fence, b"outcome %d" % round)
    assert await _claim(b, call, 2) == Recorded(b"outcome 2")
    assert await _claim(b, call, 3) == Recorded(b"outcome 3")
    _spent(await _claim(b, call, 4), "evicted")
    assert await _claim(b, call, 5) == Recorded(b"outcome 5")


async def a_released_round_is_claimed_again_under_a_greater_fence(a: Store, b: Store) -> None:
    call = _name()
    first = await _mine(a, call)
    await a.release(call, 2, first.fence)
    second = await _mine(b, call)
    assert second.fence > first.fence
    assert await _claim(a, call) == Running()


async def a_spent_round_is_never_claimed_again(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    await a.release(call, 2, mine.fence, spend=True)
    _spent(await _claim(b, call), "released")
    assert not await _record(a, call, 2, mine.fence)


async def a_round_is_tried_again_so_many_times_and_no_more(a: Store, b: Store) -> None:
    call = _name()
    claim = await _claim(a, call, tries=2)
    for _ in range(2):
        assert isinstance(claim, Mine)
        await a.release(call, 2, claim.fence)
        claim = await _claim(b, call, tries=2)
    assert isinstance(claim, Mine)
    await b.release(call, 2, claim.fence)
    _spent(await _claim(a, call, tries=2), "tries")


async def a_crash_counts_as_a_try(a: Store, b: Store) -> None:
    call = _name()
    for _ in range(3):
        assert isinstance(await _claim(a, call, lease=0.0, tries=2), Mine)
    _spent(await _claim(b, call, tries=2), "tries")


async def a_lost_fence_can_do_nothing(a: Store, b: Store) -> None:
    call = _name()
    old = await _mine(a, call, lease=0.0)
    new = await _mine(b, call)
    assert not await a.renew(call, 2, old.fence, lease=_LONG)
    assert not await _record(a, call, 2, old.fence, b"old")
    await a.release(call, 2, old.fence)
    await a.release(call, 2, old.fence, spend=True)
    assert await _claim(a, call) == Running()
    assert await _record(b, call, 2, new.fence, b"new")
    assert await _claim(a, call) == Recorded(b"new")


async def a_lapsed_lease_that_nobody_took_can_still_record(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call, lease=0.0)
    assert await _record(a, call, 2, mine.fence, b"late")
    assert await _claim(b, call) == Recorded(b"late")


async def an_ended_round_cannot_be_renewed_released_or_recorded_again(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    assert await _record(a, call, 2, mine.fence, b"first")
    assert not await _record(a, call, 2, mine.fence, b"second")
    assert not await a.renew(call, 2, mine.fence, lease=_LONG)
    await a.release(call, 2, mine.fence)
    assert await _claim(b, call) == Recorded(b"first")
    released = await _mine(a, call, 3)
    await a.release(call, 3, released.fence)
    assert not await a.renew(call, 3, released.fence, lease=_LONG)
    assert not await _record(a, call, 3, released.fence)


async def an_unknown_round_can_be_neither_renewed_nor_recorded(a: Store, b: Store) -> None:
    call = _name()
    assert not await a.renew(call, 2, 1, lease=_LONG)
    assert not await _record(a, call, 2, 1)
    await a.release(call, 2, 1, spend=True)
    assert isinstance(await _claim(b, call), Mine)


async def a_renewed_lease_outlives_its_first_end(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call, lease=0.0)
    assert await a.renew(call, 2, mine.fence, lease=_LONG)
    assert await _claim(b, call) == Running()


async def a_waiter_wakes_when_the_round_is_recorded(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    waiting = asyncio.ensure_future(b.settled(call, 2, timeout=_LONG))
    await b.settled(call, 2, timeout=0.02)  # lets the other one get as far as waiting
    assert not waiting.done()
    assert await _record(a, call, 2, mine.fence)
    await asyncio.wait_for(waiting, _PATIENCE)
    assert await _claim(b, call) == Recorded(b"out")


async def a_waiter_wakes_when_the_round_is_released(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    waiting = asyncio.ensure_future(b.settled(call, 2, timeout=_LONG))
    await b.settled(call, 2, timeout=0.02)
    await a.release(call, 2, mine.fence)
    await asyncio.wait_for(waiting, _PATIENCE)
    assert isinstance(await _claim(b, call), Mine)


async def a_waiter_wakes_when_the_lease_ends(a: Store, b: Store) -> None:
    call = _name()
    first = await _mine(a, call, lease=0.15)
    async with asyncio.timeout(_PATIENCE):
        claim = await _claim(b, call)
        assert claim == Running()
        while claim == Running():
            await b.settled(call, 2, timeout=_LONG)
            claim = await _claim(b, call)
    assert isinstance(claim, Mine)
    assert claim.fence > first.fence


async def a_waiter_gives_up_at_its_timeout(a: Store, b: Store) -> None:
    call = _name()
    await _mine(a, call)
    async with asyncio.timeout(_PATIENCE):
        await b.settled(call, 2, timeout=0.05)
    assert await _claim(b, call) == Running()


async def nobody_waits_for_a_round_that_does_not_run(a: Store, b: Store) -> None:
    call = _name()
    async with asyncio.timeout(_PATIENCE):
        await b.settled(call, 2, timeout=_LONG)
        mine = await _mine(a, call)
        assert await _record(a, call, 2, mine.fence)
        await b.settled(call, 2, timeout=_LONG)


# --- effects -----------------------------------------------------------------------------------


def _effect(call: str, key: str = "charge", function: str = "pay", args: bytes = _ARGS) -> Effect:
    return Effect(id=f"{call}/{key}", call=call, key=key, function=function, arguments=args)


async def _begin(
    store: Store,
    effect: Effect,
    *,
    lease: float = _LONG,
    under: Under | None = None,
    retry: bool = False,
    window: float | None = None,
) -> object:
    return await store.begin(
        effect, lease=lease, expires=_later(), under=under, retry=retry, window=window
    )


async def _begun(store: Store, effect: Effect, **options: object) -> Begun:
    begin = await _begin(store, effect, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(begin, Begun), begin
    return begin


async def an_effect_is_begun_once_and_its_result_given_ever_after(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect)
    assert await _begin(b, effect) == Busy()
    assert await a.settle(effect.id, begun.fence, result=b"receipt", error=None)
    assert await _begin(b, effect) == Settled(b"receipt", effect.call)
    assert await _begin(a, effect, retry=True) == Settled(b"receipt", effect.call)


async def many_begins_of_one_effect_have_one_winner(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begins = await asyncio.gather(*(_begin(store, effect) for store in (a, b) * 12))
    assert sum(isinstance(begin, Begun) for begin in begins) == 1, begins
    assert sum(begin == Busy() for begin in begins) == 23, begins


async def an_empty_result_is_a_result(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect)
    assert await a.settle(effect.id, begun.fence, result=b"", error=None)
    assert await _begin(b, effect) == Settled(b"", effect.call)


async def a_failed_effect_stays_failed(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect)
    assert await a.settle(effect.id, begun.fence, result=None, error="ValueError: no")
    assert await _begin(b, effect) == FailedEffect("ValueError: no")
    assert await _begin(b, effect, retry=True) == FailedEffect("ValueError: no")


async def an_effect_whose_holder_vanished_is_uncertain(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect, lease=0.0)
    assert await _begin(b, effect) == Uncertain()
    assert await _begin(b, effect) == Uncertain()
    assert await a.settle(effect.id, begun.fence, result=b"late", error=None)
    assert await _begin(b, effect) == Settled(b"late", effect.call)


async def a_retry_takes_over_and_fences_the_old_holder(a: Store, b: Store) -> None:
    effect = _effect(_name())
    old = await _begun(a, effect, lease=0.0)
    new = await _begun(b, effect, retry=True)
    assert new.fence > old.fence
    assert await _begin(a, effect, retry=True) == Busy()
    assert not await a.hold(effect.id, old.fence, lease=_LONG)
    assert not await a.settle(effect.id, old.fence, result=b"old", error=None)
    await a.abandon(effect.id, old.fence)
    assert await b.settle(effect.id, new.fence, result=b"new", error=None)
    assert await _begin(a, effect) == Settled(b"new", effect.call)


async def a_held_effect_stays_busy(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect, lease=0.0)
    assert await a.hold(effect.id, begun.fence, lease=_LONG)
    assert await _begin(b, effect) == Busy()
    assert await _begin(b, effect, retry=True) == Busy()


async def an_abandoned_effect_is_begun_anew(a: Store, b: Store) -> None:
    effect = _effect(_name())
    old = await _begun(a, effect)
    await a.abandon(effect.id, old.fence)
    assert await a.effects(effect.call) == []
    new = await _begun(b, effect)
    assert new.fence > old.fence
    assert not await a.settle(effect.id, old.fence, result=b"old", error=None)


async def a_settled_effect_cannot_be_changed(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect)
    assert await a.settle(effect.id, begun.fence, result=b"first", error=None)
    assert not await a.settle(effect.id, begun.fence, result=b"second", error=None)
    assert not await a.hold(effect.id, begun.fence, lease=_LONG)
    await a.abandon(effect.id, begun.fence)
    assert await _begin(b, effect) == Settled(b"first", effect.call)


async def another_function_or_other_arguments_do_not_match(a: Store, b: Store) -> None:
    call = _name()
    begun = await _begun(a, _effect(call))
    assert await _begin(b, _effect(call, function="refund")) == Mismatch("pay")
    assert await _begin(b, _effect(call, args=b"others")) == Mismatch("pay")
    assert await a.settle(f"{call}/charge", begun.fence, result=b"ok", error=None)
    assert await _begin(b, _effect(call, args=b"others"), retry=True) == Mismatch("pay")


async def a_window_ends_and_the_effect_is_begun_anew(a: Store, b: Store) -> None:
    first = _effect(_name())
    begun = await _begun(a, first)
    assert await a.settle(first.id, begun.fence, result=b"one", error=None)
    other = Effect(
        id=first.id, call=_name(), key=first.key, function=first.function, arguments=_ARGS
    )
    assert await _begin(b, other, window=600.0) == Settled(b"one", first.call)
    again = await _begun(b, other, window=0.0)
    assert again.fence > begun.fence
    assert await b.settle(first.id, again.fence, result=b"two", error=None)
    assert await _begin(a, first, window=600.0) == Settled(b"two", other.call)


async def a_failure_ends_with_its_window_too(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect)
    assert await a.settle(effect.id, begun.fence, result=None, error="no")
    assert await _begin(b, effect, window=600.0) == FailedEffect("no")
    again = await _begun(b, effect, window=0.0)
    assert await b.settle(effect.id, again.fence, result=b"yes", error=None)
    assert await _begin(a, effect, window=600.0) == Settled(b"yes", effect.call)


async def an_effect_under_a_lost_round_is_fenced_off(a: Store, b: Store) -> None:
    call = _name()
    old = await _mine(a, call, lease=0.0)
    new = await _mine(b, call)
    effect = _effect(call)
    assert await _begin(a, effect, under=Under(call, 2, old.fence, b"old")) == Fenced()
    assert await _begin(a, effect, under=Under(call, 3, 1)) == Fenced()
    assert await a.effects(call) == []
    begun = await _begun(b, effect, under=Under(call, 2, new.fence))
    assert await b.settle(effect.id, begun.fence, result=b"ok", error=None)
    assert await _record(b, call, 2, new.fence)
    late = _effect(call, "late")
    assert await _begin(b, late, under=Under(call, 2, new.fence)) == Fenced()


async def the_first_effect_keeps_the_prefix_of_its_round(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    assert await _begun(a, _effect(call, "one"), under=Under(call, 2, mine.fence, b"prefix"))
    assert await _begun(a, _effect(call, "two"), under=Under(call, 2, mine.fence, b"later"))
    await a.release(call, 2, mine.fence)
    again = await _claim(b, call)
    assert isinstance(again, Mine)
    assert again.prefix == b"prefix"
    await b.release(call, 2, again.fence)
    third = await _claim(a, call)
    assert isinstance(third, Mine)
    assert third.prefix == b"prefix"


async def a_round_ends_with_its_outcome_and_not_with_its_prefix(a: Store, b: Store) -> None:
    call = _name()
    mine = await _mine(a, call)
    await _begun(a, _effect(call), under=Under(call, 2, mine.fence, b"prefix"))
    assert await _record(a, call, 2, mine.fence, b"outcome")
    assert await _claim(b, call) == Recorded(b"outcome")


# --- operators ---------------------------------------------------------------------------------


async def effects_of_a_call_are_listed_oldest_first_with_their_state(a: Store, b: Store) -> None:
    call = _name()
    done = await _begun(a, _effect(call, "done"))
    assert await a.settle(f"{call}/done", done.fence, result=b"1", error=None)
    failed = await _begun(a, _effect(call, "failed"))
    assert await a.settle(f"{call}/failed", failed.fence, result=None, error="no")
    await _begun(a, _effect(call, "vanished"), lease=0.0)
    await _begun(a, _effect(call, "running"))
    await _begun(a, _effect(_name(), "foreign"))
    rows = await b.effects(call)
    assert [(row.key, row.state) for row in rows] == [
        ("done", "done"),
        ("failed", "failed"),
        ("vanished", "uncertain"),
        ("running", "started"),
    ]
    assert all(row.call == call and row.function == "pay" for row in rows)
    assert [row.started for row in rows] == sorted(row.started for row in rows)
    assert abs(rows[0].started - time.time()) < 60
    assert [row.settled is not None for row in rows] == [True, True, False, False]


async def an_operator_settles_an_uncertain_effect(a: Store, b: Store) -> None:
    effect = _effect(_name())
    begun = await _begun(a, effect, lease=0.0)
    assert await b.decide(effect.call, effect.key, result=b"paid")
    assert not await a.settle(effect.id, begun.fence, result=b"late", error=None)
    assert await _begin(a, effect) == Settled(b"paid", effect.call)
    assert not await b.decide(effect.call, effect.key, result=b"again")


async def an_operator_frees_an_effect_that_did_not_happen(a: Store, b: Store) -> None:
    effect = _effect(_name())
    old = await _begun(a, effect, lease=0.0)
    assert await b.decide(effect.call, effect.key, result=None)
    assert not await a.settle(effect.id, old.fence, result=b"late", error=None)
    assert not await a.hold(effect.id, old.fence, lease=_LONG)
    assert (await _begun(a, effect)).fence > old.fence


async def an_operator_decides_nothing_that_is_not_uncertain(a: Store, b: Store) -> None:
    effect = _effect(_name())
    assert not await b.decide(effect.call, effect.key, result=b"x")
    begun = await _begun(a, effect)
    assert not await b.decide(effect.call, effect.key, result=b"x")
    assert await a.settle(effect.id, begun.fence, result=b"y", error=None)
    assert not await b.decide(effect.call, effect.key, result=None)
    assert await _begin(a, effect) == Settled(b"y", effect.call)


async def calls_are_listed_with_the_round_at_their_mark(a: Store, b: Store) -> None:
    far = time.time() + 86_400
    states = {"running": _name(), "recorded": _name(), "released": _name(), "spent": _name()}
    for ahead, (state, call) in enumerate(states.items()):
        first = await _mine(a, call, 2)
        assert await _record(a, call, 2, first.fence)
        claim = await a.claim(call, 4, _YES, lease=_LONG, expires=far + ahead, tries=5)
        assert isinstance(claim, Mine)
        if state == "recorded":
            assert await a.record(call, 4, claim.fence, b"out", expires=far + ahead)
        elif state != "running":
            await a.release(call, 4, claim.fence, spend=state == "spent")
    rows = await b.calls(limit=1000)
    assert [row.expires for row in rows] == sorted((row.expires for row in rows), reverse=True)
    seen = {row.call: row for row in rows}
    for ahead, (state, call) in enumerate(states.items()):
        row = seen[call]
        assert (row.mark, row.state) == (4, state), row
        assert abs(row.expires - far - ahead) < 1
    assert len(await b.calls(limit=2)) == 2


# --- segments ----------------------------------------------------------------------------------


async def a_segment_is_kept_and_given_back(a: Store, b: Store) -> None:
    call, owner, data = _name(), _name("owner"), secrets.token_bytes(100_000)
    assert await b.fetch(call, 1) is None
    assert await a.keep(call, 1, data, owner=owner, quota=10, expires=_later())
    assert await b.fetch(call, 1) == data
    assert await b.fetch(call, 2) is None


async def a_segment_kept_again_is_replaced(a: Store, b: Store) -> None:
    call, owner = _name(), _name("owner")
    assert await a.keep(call, 1, b"old", owner=owner, quota=1, expires=_later())
    assert await a.keep(call, 1, b"new", owner=owner, quota=1, expires=_later())
    assert await b.fetch(call, 1) == b"new"


async def an_owner_keeps_no_more_segments_than_the_quota(a: Store, b: Store) -> None:
    call, owner = _name(), _name("owner")
    kept = await asyncio.gather(
        *(
            store.keep(call, number, b"data", owner=owner, quota=3, expires=_later())
            for number, store in enumerate((a, b) * 4)
        )
    )
    assert sum(kept) == 3
    found = [await b.fetch(call, number) is not None for number in range(8)]
    assert found == kept
    assert await a.keep(call, 9, b"data", owner=_name("owner"), quota=3, expires=_later())


async def an_expired_segment_is_gone_and_does_not_count(a: Store, b: Store) -> None:
    call, owner, past = _name(), _name("owner"), time.time() - 3600
    assert await a.keep(call, 1, b"old", owner=owner, quota=1, expires=past)
    assert await b.fetch(call, 1) is None
    assert await b.keep(call, 2, b"new", owner=owner, quota=1, expires=_later())
    assert await a.fetch(call, 2) == b"new"


# --- a store with a small cap ------------------------------------------------------------------


async def an_evicted_outcome_is_spent_and_its_mark_stays(store: Store, *, body: bytes) -> None:
    """For a store that keeps no outcome as large as `body`."""
    call = _name()
    mine = await _mine(store, call)
    assert await _record(store, call, 2, mine.fence, body)
    _spent(await _claim(store, call), "evicted")
    _spent(await _claim(store, call, answers=_NO), "other-answers")
    _spent(await _claim(store, call, 1), "evicted")
    assert await _mine(store, call, 3)


LEDGER_CONTRACTS: tuple[Contract, ...] = (
    a_round_is_claimed_once_and_its_outcome_given_to_duplicates,
    many_claims_of_one_round_have_one_winner,
    many_claims_of_a_lapsed_round_have_one_winner,
    other_answers_are_refused_in_every_state,
    a_round_below_the_mark_without_a_row_is_spent,
    rounds_of_a_call_follow_each_other_and_keep_their_outcomes,
    a_released_round_is_claimed_again_under_a_greater_fence,
    a_spent_round_is_never_claimed_again,
    a_round_is_tried_again_so_many_times_and_no_more,
    a_crash_counts_as_a_try,
    a_lost_fence_can_do_nothing,
    a_lapsed_lease_that_nobody_took_can_still_record,
    an_ended_round_cannot_be_renewed_released_or_recorded_again,
    an_unknown_round_can_be_neither_renewed_nor_recorded,
    a_renewed_lease_outlives_its_first_end,
    a_waiter_wakes_when_the_round_is_recorded,
    a_waiter_wakes_when_the_round_is_released,
    a_waiter_wakes_when_the_lease_ends,
    a_waiter_gives_up_at_its_timeout,
    nobody_waits_for_a_round_that_does_not_run,
)
"""Redeeming: S3."""

EFFECT_CONTRACTS: tuple[Contract, ...] = (
    an_effect_is_begun_once_and_its_result_given_ever_after,
    many_begins_of_one_effect_have_one_winner,
    an_empty_result_is_a_result,
    a_failed_effect_stays_failed,
    an_effect_whose_holder_vanished_is_uncertain,
    a_retry_takes_over_and_fences_the_old_holder,
    a_held_effect_stays_busy,
    an_abandoned_effect_is_begun_anew,
    a_settled_effect_cannot_be_changed,
    another_function_or_other_arguments_do_not_match,
    a_window_ends_and_the_effect_is_begun_anew,
    a_failure_ends_with_its_window_too,
    an_effect_under_a_lost_round_is_fenced_off,
    the_first_effect_keeps_the_prefix_of_its_round,
    a_round_ends_with_its_outcome_and_not_with_its_prefix,
    effects_of_a_call_are_listed_oldest_first_with_their_state,
    an_operator_settles_an_uncertain_effect,
    an_operator_frees_an_effect_that_did_not_happen,
    an_operator_decides_nothing_that_is_not_uncertain,
    calls_are_listed_with_the_round_at_their_mark,
)
"""Effects and what an operator sees of them: S5."""

SEGMENT_CONTRACTS: tuple[Contract, ...] = (
    a_segment_is_kept_and_given_back,
    a_segment_kept_again_is_replaced,
    an_owner_keeps_no_more_segments_than_the_quota,
    an_expired_segment_is_gone_and_does_not_count,
)
"""Segments: S6."""

STORE_CONTRACTS: tuple[Contract, ...] = (
    *LEDGER_CONTRACTS,
    *EFFECT_CONTRACTS,
    *SEGMENT_CONTRACTS,
)
"""Everything that a store must do."""
