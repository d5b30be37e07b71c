"""Redeeming: what a ledger must do."""

import asyncio
import secrets

from antiphon.ports import Claimed, Recorded, Running, Spent, Store
from antiphon.testing.contracts.parts import (
    LONG,
    NO,
    PATIENCE,
    Contract,
    assert_spent,
    mine_of,
    name,
    record,
    redeem,
    store_passes,
)


async def a_round_is_claimed_once_and_its_outcome_given_to_duplicates(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    assert mine.prefix is None
    assert await redeem(b, call) == Running()
    outcome = secrets.token_bytes(3000)
    assert await record(a, call, 2, mine.fence, outcome)
    assert await redeem(b, call) == Recorded(outcome)
    assert await redeem(a, call) == Recorded(outcome)


async def many_claims_of_one_round_have_one_winner(a: Store, b: Store) -> None:
    for _ in range(5):
        call = name()
        claims = await asyncio.gather(*(redeem(store, call) for store in (a, b) * 16))
        assert sum(isinstance(claim, Claimed) for claim in claims) == 1, claims
        assert sum(claim == Running() for claim in claims) == 31, claims


async def many_claims_of_a_lapsed_round_have_one_winner(a: Store, b: Store) -> None:
    call = name()
    first = await mine_of(a, call, lease=0.0)
    claims = await asyncio.gather(*(redeem(store, call) for store in (b, a) * 16))
    fences = [claim.fence for claim in claims if isinstance(claim, Claimed)]
    assert len(fences) == 1
    assert fences[0] > first.fence


async def other_answers_are_refused_in_every_state(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    assert_spent(await redeem(b, call, answers=NO), "other-answers")
    await a.release(call, 2, mine.fence)
    assert_spent(await redeem(b, call, answers=NO), "other-answers")
    mine = await mine_of(b, call)
    assert await record(b, call, 2, mine.fence)
    assert_spent(await redeem(a, call, answers=NO), "other-answers")


async def a_round_below_the_mark_without_a_row_is_spent(a: Store, b: Store) -> None:
    call = name()
    await mine_of(a, call, 7)
    assert_spent(await redeem(b, call, 6), "evicted")
    assert_spent(await redeem(a, call, 1), "evicted")


async def rounds_of_a_call_follow_each_other_and_keep_their_outcomes(a: Store, b: Store) -> None:
    call = name()
    for round in (2, 3, 5):
        mine = await mine_of(a, call, round)
        assert await record(a, call, round, mine.fence, b"outcome %d" % round)
    assert await redeem(b, call, 2) == Recorded(b"outcome 2")
    assert await redeem(b, call, 3) == Recorded(b"outcome 3")
    assert_spent(await redeem(b, call, 4), "evicted")
    assert await redeem(b, call, 5) == Recorded(b"outcome 5")


async def a_released_round_is_claimed_again_under_a_greater_fence(a: Store, b: Store) -> None:
    call = name()
    first = await mine_of(a, call)
    await a.release(call, 2, first.fence)
    second = await mine_of(b, call)
    assert second.fence > first.fence
    assert await redeem(a, call) == Running()


async def a_spent_round_is_never_claimed_again(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    await a.release(call, 2, mine.fence, spend=True)
    assert_spent(await redeem(b, call), "released")
    assert not await record(a, call, 2, mine.fence)


async def a_round_is_tried_again_so_many_times_and_no_more(a: Store, b: Store) -> None:
    call = name()
    claim = await redeem(a, call, tries=2)
    for _ in range(2):
        assert isinstance(claim, Claimed)
        await a.release(call, 2, claim.fence)
        claim = await redeem(b, call, tries=2)
    assert isinstance(claim, Claimed)
    await b.release(call, 2, claim.fence)
    assert_spent(await redeem(a, call, tries=2), "tries")


async def only_failures_count_as_tries(a: Store, b: Store) -> None:
    call = name()
    for _ in range(5):
        claim = await redeem(a, call, tries=1)
        assert isinstance(claim, Claimed)
        await b.release(call, 2, claim.fence, counts=False)
    for _ in range(5):
        assert isinstance(await redeem(a, call, lease=0.0, tries=1), Claimed)  # a crash
    for _ in range(2):
        claim = await redeem(a, call, tries=1)
        assert isinstance(claim, Claimed)
        await a.release(call, 2, claim.fence, counts=True)
    assert_spent(await redeem(b, call, tries=1), "tries")


async def a_held_round_survives_its_expiry(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call, ttl=0.05)
    await store_passes(b, 0.1)
    for number in range(3):
        assert isinstance(await redeem(b, name(f"other-{number}")), Claimed)
    assert await redeem(b, call, ttl=-1.0) in (Running(), Spent("expired"))
    assert await redeem(b, call) == Running()
    assert await a.renew(call, 2, mine.fence, lease=LONG)
    assert await record(a, call, 2, mine.fence, b"late")
    assert await redeem(b, call) == Recorded(b"late")
    assert await redeem(b, call, ttl=-1.0) == Recorded(b"late")


async def an_expired_token_claims_nothing_new(a: Store, b: Store) -> None:
    for ttl in (0.0, -1.0):
        call = name()
        assert_spent(await redeem(a, call, ttl=ttl), "expired")
        assert isinstance(await redeem(b, call), Claimed)


async def an_unfinished_round_is_claimed_again_with_an_expired_token(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    await a.release(call, 2, mine.fence)
    again = await redeem(b, call, ttl=-1.0)
    assert isinstance(again, Claimed)
    assert again.fence > mine.fence
    assert_spent(await redeem(b, call, answers=NO, ttl=-1.0), "other-answers")


async def an_outcome_is_kept_for_the_life_that_it_was_recorded_with(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    assert await record(a, call, 2, mine.fence, ttl=0.05)
    await store_passes(b, 0.1)
    assert_spent(await redeem(b, call, ttl=-1.0), "expired")


async def a_lost_fence_can_do_nothing(a: Store, b: Store) -> None:
    call = name()
    old = await mine_of(a, call, lease=0.0)
    new = await mine_of(b, call)
    assert not await a.renew(call, 2, old.fence, lease=LONG)
    assert not await record(a, call, 2, old.fence, b"old")
    await a.release(call, 2, old.fence)
    await a.release(call, 2, old.fence, spend=True)
    assert await redeem(a, call) == Running()
    assert await record(b, call, 2, new.fence, b"new")
    assert await redeem(a, call) == Recorded(b"new")


async def a_lapsed_lease_that_nobody_took_can_still_record(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call, lease=0.0)
    assert await record(a, call, 2, mine.fence, b"late")
    assert await redeem(b, call) == Recorded(b"late")


async def an_ended_round_cannot_be_renewed_released_or_recorded_again(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    assert await record(a, call, 2, mine.fence, b"first")
    assert not await record(a, call, 2, mine.fence, b"second")
    assert not await a.renew(call, 2, mine.fence, lease=LONG)
    await a.release(call, 2, mine.fence)
    assert await redeem(b, call) == Recorded(b"first")
    released = await mine_of(a, call, 3)
    await a.release(call, 3, released.fence)
    assert not await a.renew(call, 3, released.fence, lease=LONG)
    assert not await record(a, call, 3, released.fence)


async def an_unknown_round_can_be_neither_renewed_nor_recorded(a: Store, b: Store) -> None:
    call = name()
    assert not await a.renew(call, 2, 1, lease=LONG)
    assert not await record(a, call, 2, 1)
    await a.release(call, 2, 1, spend=True)
    assert isinstance(await redeem(b, call), Claimed)


async def a_renewed_lease_outlives_its_first_end(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call, lease=0.0)
    assert await a.renew(call, 2, mine.fence, lease=LONG)
    assert await redeem(b, call) == Running()


async def a_waiter_wakes_when_the_round_is_recorded(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    waiting = asyncio.ensure_future(b.settled(call, 2, timeout=LONG))
    await b.settled(call, 2, timeout=0.02)  # lets the other one get as far as waiting
    assert not waiting.done()
    assert await record(a, call, 2, mine.fence)
    await asyncio.wait_for(waiting, PATIENCE)
    assert await redeem(b, call) == Recorded(b"out")


async def a_waiter_wakes_when_the_round_is_released(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    waiting = asyncio.ensure_future(b.settled(call, 2, timeout=LONG))
    await b.settled(call, 2, timeout=0.02)
    await a.release(call, 2, mine.fence)
    await asyncio.wait_for(waiting, PATIENCE)
    assert isinstance(await redeem(b, call), Claimed)


async def a_waiter_wakes_when_the_lease_ends(a: Store, b: Store) -> None:
    call = name()
    first = await mine_of(a, call, lease=0.15)
    async with asyncio.timeout(PATIENCE):
        claim = await redeem(b, call)
        assert claim == Running()
        while claim == Running():
            await b.settled(call, 2, timeout=LONG)
            claim = await redeem(b, call)
    assert isinstance(claim, Claimed)
    assert claim.fence > first.fence


async def a_waiter_gives_up_at_its_timeout(a: Store, b: Store) -> None:
    call = name()
    await mine_of(a, call)
    async with asyncio.timeout(PATIENCE):
        await b.settled(call, 2, timeout=0.05)
    assert await redeem(b, call) == Running()


async def nobody_waits_for_a_round_that_does_not_run(a: Store, b: Store) -> None:
    call = name()
    async with asyncio.timeout(PATIENCE):
        await b.settled(call, 2, timeout=LONG)
        mine = await mine_of(a, call)
        assert await record(a, call, 2, mine.fence)
        await b.settled(call, 2, timeout=LONG)


async def an_evicted_outcome_is_spent_and_its_mark_stays(store: Store, *, body: bytes) -> None:
    """For a store that keeps no outcome as large as `body`."""
    call = name()
    mine = await mine_of(store, call)
    assert await record(store, call, 2, mine.fence, body)
    assert_spent(await redeem(store, call), "evicted")
    assert_spent(await redeem(store, call, answers=NO), "other-answers")
    assert_spent(await redeem(store, call, 1), "evicted")
    assert await mine_of(store, call, 3)


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
    only_failures_count_as_tries,
    a_held_round_survives_its_expiry,
    an_expired_token_claims_nothing_new,
    an_unfinished_round_is_claimed_again_with_an_expired_token,
    an_outcome_is_kept_for_the_life_that_it_was_recorded_with,
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
"""Redeeming."""
