"""Segments: journals kept outside tokens."""

import asyncio
import secrets

from antiphon.ports import LeasedRound, Store
from antiphon.testing.contracts.parts import (
    TTL,
    Contract,
    effect_of,
    mine_of,
    name,
    record,
    start,
    store_passes,
)

ONE, TWO = b"digest-one", b"digest-two"
PLENTY = 10_000_000


async def kept(
    store: Store,
    call: str,
    round: int = 1,
    digest: bytes = ONE,
    data: bytes = b"data",
    *,
    owner: str = "",
    quota: int = PLENTY,
    ttl: float = TTL,
) -> bool:
    """Keep a segment with the usual arguments."""
    return await store.keep(call, round, digest, data, owner=owner or call, quota=quota, ttl=ttl)


async def a_segment_is_kept_and_given_back(a: Store, b: Store) -> None:
    call, data = name(), secrets.token_bytes(100_000)
    assert await b.fetch(call, 1, ONE) is None
    assert await kept(a, call, data=data)
    assert await b.fetch(call, 1, ONE) == data
    assert await b.fetch(call, 2, ONE) is None
    assert await b.fetch(call, 1, TWO) is None


async def a_second_segment_of_a_round_stands_beside_the_first(a: Store, b: Store) -> None:
    call = name()
    assert await kept(a, call, digest=ONE, data=b"of the holder")
    assert await kept(b, call, digest=TWO, data=b"of a process that lost its lease")
    assert await a.fetch(call, 1, ONE) == b"of the holder"
    assert await a.fetch(call, 1, TWO) == b"of a process that lost its lease"


async def a_segment_kept_again_is_the_same_one(a: Store, b: Store) -> None:
    call = name()
    assert await kept(a, call, data=b"data", quota=4)
    assert await kept(b, call, data=b"data", quota=4)
    assert await a.fetch(call, 1, ONE) == b"data"


async def an_owner_keeps_no_more_bytes_than_the_quota(a: Store, b: Store) -> None:
    call, owner = name(), name("owner")
    done = await asyncio.gather(
        *(
            kept(store, call, number, data=bytes(100), owner=owner, quota=350)
            for number, store in enumerate((a, b) * 4)
        )
    )
    assert sum(done) == 3
    found = [await b.fetch(call, number, ONE) is not None for number in range(8)]
    assert found == done
    assert not await kept(a, call, 9, data=bytes(51), owner=owner, quota=350)
    assert await kept(a, call, 9, data=bytes(50), owner=owner, quota=350)
    assert await kept(a, call, 10, data=bytes(100), owner=name("owner"), quota=350)


async def an_expired_segment_is_gone_and_does_not_count(a: Store, b: Store) -> None:
    call, owner = name(), name("owner")
    assert await kept(a, call, 1, owner=owner, quota=4, ttl=0.05)
    await store_passes(a, 0.1)
    assert await b.fetch(call, 1, ONE) is None
    assert await kept(b, call, 2, owner=owner, quota=4)
    assert await a.fetch(call, 2, ONE) == b"data"


async def recording_a_round_frees_what_only_it_and_earlier_ones_needed(a: Store, b: Store) -> None:
    call, owner = name(), name("owner")
    for round in (2, 3):
        assert await kept(a, call, round, owner=owner, quota=12)
    mine = await mine_of(a, call, 3)
    assert await kept(a, call, 4, owner=owner, quota=12)
    assert await record(a, call, 3, mine.fence)
    assert [await b.fetch(call, round, ONE) for round in (2, 3, 4)] == [None, None, b"data"]
    assert await kept(b, call, 5, data=b"12345678", owner=owner, quota=12)


async def the_segment_of_a_round_that_was_given_back_stays(a: Store, b: Store) -> None:
    call = name()
    assert await kept(a, call, 2)
    mine = await mine_of(a, call, 2)
    await a.release(call, 2, mine.fence)
    assert await b.fetch(call, 2, ONE) == b"data"


async def a_segment_lives_as_long_as_the_effects_of_its_round(a: Store, b: Store) -> None:
    call = name()
    assert await kept(a, call, 2, ttl=0.3)
    mine = await mine_of(a, call, 2)
    await start(a, effect_of(call), under=LeasedRound(call, 2, mine.fence, b"prefix"))
    await store_passes(b, 0.4)
    assert await b.fetch(call, 2, ONE) == b"data"


async def a_call_that_has_ended_keeps_no_segment(a: Store, b: Store) -> None:
    call, other = name(), name()
    for round in (2, 3):
        assert await kept(a, call, round)
    assert await kept(a, other, 2)
    await b.end_call(call, ttl=60.0)
    assert [await a.fetch(call, round, ONE) for round in (2, 3)] == [None, None]
    assert await a.fetch(other, 2, ONE) == b"data"


SEGMENT_CONTRACTS: tuple[Contract, ...] = (
    a_segment_is_kept_and_given_back,
    a_second_segment_of_a_round_stands_beside_the_first,
    a_segment_kept_again_is_the_same_one,
    an_owner_keeps_no_more_bytes_than_the_quota,
    an_expired_segment_is_gone_and_does_not_count,
    recording_a_round_frees_what_only_it_and_earlier_ones_needed,
    the_segment_of_a_round_that_was_given_back_stays,
    a_segment_lives_as_long_as_the_effects_of_its_round,
    a_call_that_has_ended_keeps_no_segment,
)
"""Segments."""
