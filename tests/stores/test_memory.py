"""The memory store: the shared contracts, its bounds and its expiry."""

import asyncio
import subprocess
import sys

import pytest

from antiphon.errors import StoreFull
from antiphon.ports import Claimed, Effect, LeasedRound, Recorded, Running, Spent, Started
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


async def claim(store: MemoryStore, call: str, round: int = 2, ttl: float = 600.0):
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
        await store.record(f"call-{number}", 2, mine.fence, bytes(1000), ttl=600)
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
    for call, round in (("three", 2), ("one", 3)):
        with pytest.raises(StoreFull, match=r"full.*redeemed rounds"):
            await claim(store, call, round)
    await store.record("one", 2, first.fence, b"out", ttl=600)
    assert await claim(store, "one") == Recorded(b"out")


async def test_a_store_warns_before_it_is_full(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = MemoryStore(rounds=100, clock=clock)
    for number in range(79):
        await claim(store, f"call-{number}", ttl=10)
    assert caplog.messages == []
    for number in range(79, 100):
        await claim(store, f"call-{number}", ttl=10)
    [warning] = caplog.messages
    assert warning.startswith("the memory store is 80 % full: redeemed rounds. Raise")
    clock.now += 60
    for number in range(85):
        await claim(store, f"later-{number}", ttl=10)
    assert len(caplog.messages) == 2


async def test_expired_marks_make_room() -> None:
    clock = Clock()
    store = MemoryStore(rounds=200, clock=clock)
    for number in range(200):
        mine = await claim(store, f"old-{number}", ttl=10)
        assert isinstance(mine, Claimed)
        await store.record(f"old-{number}", 2, mine.fence, b"out", ttl=10)
    with pytest.raises(StoreFull):
        await claim(store, "new")
    clock.now += 20
    for number in range(200):
        assert isinstance(await claim(store, f"new-{number}"), Claimed)


async def test_rows_go_on_expiring_after_the_store_was_empty() -> None:
    clock = Clock()
    store = MemoryStore(rounds=2, effects=2, clock=clock)
    for number in range(5):
        for part in ("a", "b"):
            assert isinstance(await claim(store, f"call-{part}-{number}", ttl=10), Claimed)
            assert isinstance(await begin(store, f"effect-{part}-{number}", ttl=10), Started)
        clock.now += 60


async def test_a_round_that_is_held_outlives_its_token_and_then_goes() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    mine = await claim(store, "call", ttl=10)
    assert isinstance(mine, Claimed)
    for _ in range(20):
        clock.now += 25
        assert await store.renew("call", 2, mine.fence, lease=30)
        await claim(store, f"other-{clock.now}", ttl=10)
    assert await claim(store, "call") == Running()
    clock.now += 100
    for number in range(50):
        await claim(store, f"last-{number}")
    assert "call" not in {row.call for row in await store.calls()}


async def test_rounds_of_a_call_expire_each_by_itself() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    for round, ttl in ((2, 900), (3, 10), (4, 900)):
        mine = await claim(store, "call", round, ttl=ttl)
        assert isinstance(mine, Claimed)
        await store.record("call", round, mine.fence, b"out %d" % round, ttl=ttl)
    clock.now += 100
    await claim(store, "other")
    assert await claim(store, "call", 3, ttl=-1) == Spent("expired")
    assert await claim(store, "call", 2) == Recorded(b"out 2")
    assert await claim(store, "call", 4) == Recorded(b"out 4")


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
    first = await begin(store, "one", ttl=10)
    assert isinstance(first, Started)
    assert isinstance(await begin(store, "two"), Started)
    with pytest.raises(StoreFull, match=r"full.*effects"):
        await begin(store, "three")
    await store.abandon("one", first.fence)
    assert isinstance(await begin(store, "three", ttl=10), Started)
    clock.now += 20
    assert isinstance(await begin(store, "four"), Started)


async def test_results_of_effects_are_bounded_in_bytes() -> None:
    store = MemoryStore(effect_bytes=100, clock=Clock())
    first = await begin(store, "one")
    assert isinstance(first, Started)
    await store.settle("one", first.fence, result=bytes(100), error=None)
    with pytest.raises(StoreFull):
        await begin(store, "two")


async def test_calls_that_have_ended_leave_no_effect_behind() -> None:
    store = MemoryStore(effects=10, clock=Clock())
    for number in range(100):
        effect = Effect(f"id-{number}", f"call-{number}", "pay", "pay", b"args")
        begun = await store.begin(effect, lease=30, ttl=86_400, under=None, retry=False)
        assert isinstance(begun, Started)
        assert await store.settle(effect.id, begun.fence, result=b"1", error=None)
        await store.end_call(effect.call, ttl=0)
    assert await store.calls() == []


async def test_removing_keeps_up_with_effects_that_expire_minutes_apart() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    counts: list[int] = []
    for number in range(3000):  # two days
        effect = Effect(f"id-{number}", f"call-{number}", "pay", "pay", b"args")
        begun = await store.begin(effect, lease=30, ttl=86_430, under=None, retry=False)
        assert isinstance(begun, Started)
        assert await store.settle(effect.id, begun.fence, result=b"1", error=None)
        await store.end_call(effect.call, ttl=600)
        clock.now += 60
        counts.append(await store.count_calls())
    assert max(counts) <= 12


async def test_what_was_freed_early_costs_no_later_effect_its_removal() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    for number in range(500):  # each is due at another time
        begun = await begin(store, f"freed-{number}", ttl=10_000 + 20 * number)
        assert isinstance(begun, Started)
        await store.abandon(f"freed-{number}", begun.fence)
    for number in range(60):
        effect = Effect(f"last-{number}", f"last-{number}", "pay", "pay", b"args")
        await store.begin(effect, lease=5, ttl=30_000, under=None, retry=False)
    clock.now += 40_000
    for _ in range(10):
        await begin(store, "new")
    assert [row.call for row in await store.calls()] == ["call"]


async def test_a_recorded_round_goes_when_its_token_expires_however_long_its_effect_was_open() -> (
    None
):
    clock = Clock()
    store = MemoryStore(clock=clock)
    mine = await claim(store, "call", ttl=10)
    assert isinstance(mine, Claimed)
    effect = Effect("id", "call", "pay", "pay", b"args")
    under = LeasedRound("call", 2, mine.fence, b"prefix")
    begun = await store.begin(effect, lease=30, ttl=86_400, under=under, retry=False)
    assert isinstance(begun, Started)
    clock.now += 60
    await claim(store, "other")
    assert await store.settle("id", begun.fence, result=b"1", error=None)
    assert await store.record("call", 2, mine.fence, b"out", ttl=10, final=True)
    clock.now += 700
    await claim(store, "another")
    await begin(store, "next")
    assert {row.call: row.state for row in await store.calls()}["call"] == "unredeemed"


async def test_a_released_round_whose_prefix_was_evicted_is_spent() -> None:
    store = MemoryStore(outcome_bytes=100, clock=Clock())
    held: list[int] = []
    for number in range(2):
        mine = await claim(store, f"call-{number}")
        assert isinstance(mine, Claimed)
        under = LeasedRound(f"call-{number}", 2, mine.fence, bytes(80))
        effect = Effect(f"effect-{number}", "call", "key", "pay", b"args")
        await store.begin(effect, lease=30, ttl=600, under=under, retry=False)
        held.append(mine.fence)
        await store.release("call-0", 2, held[0])
    assert await claim(store, "call-0") == Spent("evicted")
    await store.release("call-1", 2, held[1])
    assert await claim(store, "call-1") == Claimed(2, bytes(80))


async def test_segments_are_bounded_in_bytes() -> None:
    store = MemoryStore(segment_bytes=100)
    assert await store.keep("call", 1, b"1", bytes(60), owner="me", quota=1000, ttl=60)
    with pytest.raises(StoreFull, match=r"full.*journals"):
        await store.keep("call", 2, b"2", bytes(60), owner="me", quota=1000, ttl=60)
    store.free_segments("call", 1)
    assert await store.keep("call", 2, b"2", bytes(100), owner="me", quota=1000, ttl=60)


_MARKS = """
import asyncio, gc, resource, sys
from antiphon.stores import MemoryStore

def rss():
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

async def main():
    store = MemoryStore()
    async def redeem(number):
        call = number.to_bytes(16, "big").hex()
        mine = await store.claim(call, 2, number.to_bytes(16, "big"), lease=30, ttl=600, tries=5)
        await store.record(call, 2, mine.fence, b"", ttl=600)
    for number in range(2_000):
        await redeem(number)
    gc.collect()
    before, tracked = rss(), len(gc.get_objects())
    for number in range(2_000, 202_000):
        await redeem(number)
    gc.collect()
    print((rss() - before) // 200_000, len(gc.get_objects()) - tracked)

asyncio.run(main())
"""


def test_a_redeemed_round_takes_little_memory_and_nothing_for_the_collector_to_walk() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MARKS], capture_output=True, text=True, timeout=60, check=True
    )
    each, tracked = map(int, done.stdout.split())
    assert each <= 250
    assert tracked < 1000


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
