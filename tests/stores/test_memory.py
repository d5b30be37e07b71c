"""The memory store: the shared contracts, its bounds and its expiry."""

import asyncio

import pytest

from antiphon.errors import StoreError
from antiphon.ports import Claimed, Effect, HeldRound, Recorded, Running, Spent, Started
from antiphon.stores import MemoryStore
from antiphon.testing.contracts import (
    STORE_CONTRACTS,
    Contract,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def claim(store: MemoryStore, call: str, round: int = 2, expires: float = 1_000_600.0):
    return await store.claim(call, round, b"yes", lease=30, ttl=ttl, tries=5)


async def begin(store: MemoryStore, name: str, ttl: float = 600.0):
    effect = Effect(name, "call", name, "pay", b"args")
    return await store.begin(effect, lease=5, ttl=ttl, under=None, retry=False)


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_memory_store_keeps_the_contract(contract: Contract) -> None:
    store = MemoryStore()
    await contract(store, store)


async def test_an_outcome_above_the_cap_is_evicted() -> None:
    store = MemoryStore(outcome_bytes=1000)
    await an_evicted_outcome_is_spent_and_its_mark_stays(store, body=bytes(1001))


async def test_the_oldest_outcomes_are_evicted_first_and_marks_stay() -> None:
    store = MemoryStore(outcome_bytes=8000, clock=Clock())
    for number in range(20):
        mine = await claim(store, f"call-{number}")
        assert isinstance(mine, Claimed)
        await store.record(f"call-{number}", 2, mine.fence, bytes(1000), expires=1_000_600)
    claims = [await claim(store, f"call-{number}") for number in range(20)]
    kept = [number for number, found in enumerate(claims) if found == Recorded(bytes(1000))]
    assert kept == list(range(20 - len(kept), 20))
    assert 6 <= len(kept) <= 8
    assert all(found == Spent("evicted") for found in claims[: 20 - len(kept)])


async def test_a_full_store_refuses_new_redemptions_and_serves_those_it_knows() -> None:
    store = MemoryStore(rounds=2, clock=Clock())
    first = await claim(store, "one")
    assert isinstance(first, Claimed)
    assert isinstance(await claim(store, "two"), Claimed)
    assert await claim(store, "three") == Spent("full")
    assert await claim(store, "one", 3) == Spent("full")
    await store.record("one", 2, first.fence, b"out", expires=1_000_600)
    assert await claim(store, "one") == Recorded(b"out")


async def test_expired_marks_make_room() -> None:
    clock = Clock()
    store = MemoryStore(rounds=200, clock=clock)
    for number in range(200):
        assert isinstance(await claim(store, f"old-{number}", expires=1_000_010), Claimed)
    assert await claim(store, "new") == Spent("full")
    clock.now += 20
    for number in range(200):
        assert isinstance(await claim(store, f"new-{number}"), Claimed)


async def test_a_mark_outlives_its_own_row_while_a_lower_round_is_kept() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    await claim(store, "call", 2, expires=1_000_900)
    await claim(store, "call", 3, expires=1_000_010)
    clock.now += 100
    await claim(store, "other")
    assert await claim(store, "call", 3) == Claimed(2)
    clock.now = 1_000_920
    await claim(store, "other-2", expires=1_002_000)
    await claim(store, "other-3", expires=1_002_000)
    assert await claim(store, "call", 3, expires=1_002_000) == Claimed(1)


async def test_a_lower_round_that_expired_is_spent_while_the_mark_is_kept() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    for round, expires in ((2, 1_000_900), (3, 1_000_010), (4, 1_000_900)):
        await claim(store, "call", round, expires=expires)
    clock.now += 100
    await claim(store, "other")
    assert await claim(store, "call", 3) == Spent("evicted")
    assert await claim(store, "call", 2) == Claimed(2)
    assert await claim(store, "call", 4) == Claimed(2)


async def test_an_outcome_recorded_with_a_later_expiry_is_kept_until_then() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    mine = await claim(store, "call", expires=1_000_010)
    assert isinstance(mine, Claimed)
    await store.record("call", 2, mine.fence, b"out", expires=1_000_500)
    clock.now += 400
    await claim(store, "other")
    assert await claim(store, "call") == Recorded(b"out")


async def test_leases_run_on_the_given_clock() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    await claim(store, "call")
    clock.now += 29
    assert await claim(store, "call") == Running()
    clock.now += 1
    assert await claim(store, "call") == Claimed(2)


async def test_a_full_store_refuses_effects_rather_than_forget_one() -> None:
    clock = Clock()
    store = MemoryStore(effects=2, clock=clock)
    first = await begin(store, "one", expires=1_000_010)
    assert isinstance(first, Started)
    assert isinstance(await begin(store, "two"), Started)
    with pytest.raises(StoreError, match="effects"):
        await begin(store, "three")
    await store.abandon("one", first.fence)
    assert isinstance(await begin(store, "three", expires=1_000_010), Started)
    clock.now += 20
    assert isinstance(await begin(store, "four"), Started)


async def test_results_of_effects_are_bounded_in_bytes() -> None:
    store = MemoryStore(effect_bytes=100, clock=Clock())
    first = await begin(store, "one")
    assert isinstance(first, Started)
    await store.settle("one", first.fence, result=bytes(100), error=None)
    with pytest.raises(StoreError):
        await begin(store, "two")


async def test_a_released_round_whose_prefix_was_evicted_is_spent() -> None:
    store = MemoryStore(outcome_bytes=100, clock=Clock())
    held: list[int] = []
    for number in range(2):
        mine = await claim(store, f"call-{number}")
        assert isinstance(mine, Claimed)
        under = HeldRound(f"call-{number}", 2, mine.fence, bytes(80))
        effect = Effect(f"effect-{number}", "call", "key", "pay", b"args")
        await store.begin(effect, lease=30, expires=2e6, under=under, retry=False)
        held.append(mine.fence)
        await store.release("call-0", 2, held[0])
    assert await claim(store, "call-0") == Spent("evicted")
    await store.release("call-1", 2, held[1])
    assert await claim(store, "call-1") == Claimed(2, bytes(80))


async def test_segments_are_bounded_in_bytes() -> None:
    store = MemoryStore(segment_bytes=100)
    assert await store.keep("call", 1, bytes(60), owner="me", quota=9, ttl=600)
    assert not await store.keep("call", 2, bytes(60), owner="me", quota=9, ttl=600)
    assert await store.keep("call", 1, bytes(100), owner="me", quota=9, ttl=600)


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind() -> None:
    store = MemoryStore()
    mine = await claim(store, "call", ttl=600)
    assert isinstance(mine, Claimed)
    waiting = asyncio.ensure_future(store.settled("call", 2, timeout=30))
    await store.settled("call", 2, timeout=0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.record("call", 2, mine.fence, b"out", ttl=600)
