"""Segments: journals kept outside tokens (S6)."""

import asyncio
import secrets
import time

from antiphon.ports import Store
from antiphon.testing.contracts.parts import Contract, later, name


async def a_segment_is_kept_and_given_back(a: Store, b: Store) -> None:
    call, owner, data = name(), name("owner"), secrets.token_bytes(100_000)
    assert await b.fetch(call, 1) is None
    assert await a.keep(call, 1, data, owner=owner, quota=10, expires=later())
    assert await b.fetch(call, 1) == data
    assert await b.fetch(call, 2) is None


async def a_segment_kept_again_is_replaced(a: Store, b: Store) -> None:
    call, owner = name(), name("owner")
    assert await a.keep(call, 1, b"old", owner=owner, quota=1, expires=later())
    assert await a.keep(call, 1, b"new", owner=owner, quota=1, expires=later())
    assert await b.fetch(call, 1) == b"new"


async def an_owner_keeps_no_more_segments_than_the_quota(a: Store, b: Store) -> None:
    call, owner = name(), name("owner")
    kept = await asyncio.gather(
        *(
            store.keep(call, number, b"data", owner=owner, quota=3, expires=later())
            for number, store in enumerate((a, b) * 4)
        )
    )
    assert sum(kept) == 3
    found = [await b.fetch(call, number) is not None for number in range(8)]
    assert found == kept
    assert await a.keep(call, 9, b"data", owner=name("owner"), quota=3, expires=later())


async def an_expired_segment_is_gone_and_does_not_count(a: Store, b: Store) -> None:
    call, owner, past = name(), name("owner"), time.time() - 3600
    assert await a.keep(call, 1, b"old", owner=owner, quota=1, expires=past)
    assert await b.fetch(call, 1) is None
    assert await b.keep(call, 2, b"new", owner=owner, quota=1, expires=later())
    assert await a.fetch(call, 2) == b"new"


SEGMENT_CONTRACTS: tuple[Contract, ...] = (
    a_segment_is_kept_and_given_back,
    a_segment_kept_again_is_replaced,
    an_owner_keeps_no_more_segments_than_the_quota,
    an_expired_segment_is_gone_and_does_not_count,
)
"""Segments: S6."""
