"""Calls that their caller starts over."""

import asyncio

from antiphon.ports import (
    ROUNDS_PER_START,
    Busy,
    Claimed,
    Finished,
    LeasedRound,
    LeaseLost,
    Mismatch,
    Store,
    TakenOver,
    Uncertain,
)
from antiphon.testing.contracts.parts import (
    LONG,
    TTL,
    Contract,
    assert_spent,
    begun_of,
    effect_of,
    mine_of,
    name,
    record,
    redeem,
    restartable_of,
    start,
    store_passes,
)

OTHER_ARGS = b"digest-of-others"


async def settled(store: Store, call: str, restart: str, key: str = "charge") -> None:
    """Run an effect of a call that can be started over to its end."""
    effect = restartable_of(effect_of(call, key), restart)
    begun = await begun_of(store, effect)
    assert await store.settle(effect.id, begun.fence, result=b"receipt", error=None)


async def a_call_with_effects_is_taken_over_by_its_name(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    assert await b.take_over(name("other"), ttl=TTL) is None
    taken = await b.take_over(restart, ttl=TTL)
    assert taken == TakenOver(call, f"seed of {call}".encode(), 1)
    again = restartable_of(effect_of(call), restart, 1)
    assert await start(a, again) == Finished(b"receipt", call)


async def tokens_of_a_call_that_was_taken_over_are_spent(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    recorded = await mine_of(a, call, 2)
    assert await record(a, call, 2, recorded.fence)
    running = await mine_of(a, call, 3)
    await settled(a, call, restart)
    assert await b.take_over(restart, ttl=TTL) is not None
    for round in (2, 3, 4):
        assert_spent(await redeem(a, call, round), "superseded")
    assert not await record(a, call, 3, running.fence)
    assert not await a.renew(call, 3, running.fence, lease=LONG)
    late = restartable_of(effect_of(call, "late"), restart)
    assert await start(a, late, under=LeasedRound(call, 3, running.fence)) == LeaseLost()


async def a_token_not_yet_redeemed_is_spent_by_a_restart(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    assert await b.take_over(restart, ttl=TTL) is not None
    assert_spent(await redeem(a, call, 2), "superseded")


async def who_waits_for_a_round_hears_that_its_call_was_taken_over(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await mine_of(a, call, 2)
    await settled(a, call, restart)
    waiting = asyncio.ensure_future(a.settled(call, 2, timeout=LONG))
    await asyncio.sleep(0)
    assert await a.take_over(restart, ttl=TTL) is not None
    async with asyncio.timeout(5):
        await waiting


async def a_restart_of_a_restart_is_a_new_generation(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    first = await a.take_over(restart, ttl=TTL)
    assert first is not None
    number = first.generation * ROUNDS_PER_START + 1
    running = await mine_of(a, call, number)
    second = await b.take_over(restart, ttl=TTL)
    assert second is not None
    assert second == TakenOver(call, first.seed, 2)
    assert not await record(a, call, number, running.fence)
    assert_spent(await redeem(a, call, number), "superseded")
    assert isinstance(await redeem(a, call, second.generation * ROUNDS_PER_START + 1), Claimed)


async def restarts_at_the_same_time_are_told_apart(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    taken = await asyncio.gather(*(store.take_over(restart, ttl=TTL) for store in (a, b) * 6))
    generations = sorted(one.generation for one in taken if one is not None)
    assert generations == list(range(1, 13))
    claims = [await redeem(a, call, one * ROUNDS_PER_START + 1) for one in generations]
    assert [isinstance(claim, Claimed) for claim in claims] == [False] * 11 + [True]


async def a_token_is_redeemed_or_its_call_taken_over(a: Store, b: Store) -> None:
    for _ in range(20):
        call, restart = name(), name("restart")
        await settled(a, call, restart)
        claim, taken = await asyncio.gather(redeem(a, call, 2), b.take_over(restart, ttl=TTL))
        assert taken is not None
        if isinstance(claim, Claimed):
            assert not await record(a, call, 2, claim.fence)
        else:
            assert_spent(claim, "superseded")


async def a_call_that_has_ended_is_not_taken_over(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    mine = await mine_of(a, call)
    await settled(a, call, restart)
    await begun_of(a, restartable_of(effect_of(call, "vanished"), restart), lease=0.0)
    assert await record(a, call, 2, mine.fence, final=True)
    assert await b.take_over(restart, ttl=TTL) is None
    first = name()
    await settled(a, first, restart)
    await begun_of(a, restartable_of(effect_of(first, "vanished"), restart), lease=0.0)
    await a.end_call(first, ttl=0.0)
    assert await b.take_over(restart, ttl=TTL) is None


async def whoever_was_taken_over_does_not_end_the_call(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    taken = await b.take_over(restart, ttl=TTL)
    assert taken is not None
    await a.end_call(call, ttl=0.0, round=1)
    assert [row.key for row in await b.effects(call)] == ["charge"]
    await b.end_call(call, ttl=0.0, round=taken.generation * ROUNDS_PER_START + 1)
    assert not await b.effects(call)
    assert await b.take_over(restart, ttl=TTL) is None


async def a_call_is_taken_over_until_its_effects_expire(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    effect = restartable_of(effect_of(call), restart)
    begun = await begun_of(a, effect, ttl=0.1)
    assert await a.settle(effect.id, begun.fence, result=b"receipt", error=None)
    assert await b.take_over(restart, ttl=0.3) is not None
    await store_passes(a, 0.2)
    assert await start(b, restartable_of(effect_of(call), restart, 1)) == Finished(b"receipt", call)
    await store_passes(a, 0.2)
    assert await b.take_over(restart, ttl=TTL) is None


async def an_effect_of_unknown_end_stays_so_in_a_restart(a: Store, b: Store) -> None:
    call, restart = name(), name("restart")
    await begun_of(a, restartable_of(effect_of(call), restart), lease=0.0)
    await begun_of(a, restartable_of(effect_of(call, "held"), restart))
    assert await b.take_over(restart, ttl=TTL) is not None
    for args in (b"digest-of-args--", OTHER_ARGS):
        again = restartable_of(effect_of(call, args=args), restart, 1)
        assert await start(b, again) == Uncertain(call)
        held = restartable_of(effect_of(call, "held", args=args), restart, 1)
        assert await start(b, held) == Busy()
    assert await a.settle_uncertain(call, "charge", result=b"receipt")
    assert await start(b, restartable_of(effect_of(call), restart, 1)) == Finished(b"receipt", call)


async def an_effect_with_other_arguments_is_begun_anew_in_a_restart_only(
    a: Store, b: Store
) -> None:
    call, restart = name(), name("restart")
    await settled(a, call, restart)
    other = effect_of(call, args=OTHER_ARGS)
    assert await start(a, restartable_of(other, restart)) == Mismatch("pay")
    assert await b.take_over(restart, ttl=TTL) is not None
    again = restartable_of(other, restart, 1)
    begun = await begun_of(b, again)
    assert await b.settle(again.id, begun.fence, result=b"second", error=None)
    assert await start(a, again) == Finished(b"second", call)
    assert await start(a, restartable_of(effect_of(call), restart, 1)) == Mismatch("pay")
    assert await start(a, restartable_of(effect_of(call), restart)) == Mismatch("pay")


async def the_latest_of_several_calls_is_taken_over(a: Store, b: Store) -> None:
    restart, calls = name("restart"), [name(), name()]
    for call in calls:
        await settled(a, call, restart)
    taken = await b.take_over(restart, ttl=TTL)
    assert taken is not None
    assert taken.call == calls[1]


RESTART_CONTRACTS: tuple[Contract, ...] = (
    a_call_with_effects_is_taken_over_by_its_name,
    tokens_of_a_call_that_was_taken_over_are_spent,
    a_token_not_yet_redeemed_is_spent_by_a_restart,
    who_waits_for_a_round_hears_that_its_call_was_taken_over,
    a_restart_of_a_restart_is_a_new_generation,
    restarts_at_the_same_time_are_told_apart,
    a_token_is_redeemed_or_its_call_taken_over,
    a_call_that_has_ended_is_not_taken_over,
    whoever_was_taken_over_does_not_end_the_call,
    a_call_is_taken_over_until_its_effects_expire,
    an_effect_of_unknown_end_stays_so_in_a_restart,
    an_effect_with_other_arguments_is_begun_anew_in_a_restart_only,
    the_latest_of_several_calls_is_taken_over,
)
