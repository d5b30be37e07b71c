"""A process of its own that works on a shared store; started by test_processes.

python -m tests.stores.store_worker all URL CALL...      claim every call, record or wait for it
python -m tests.stores.store_worker hold URL CALL LEASE  claim a round and an effect, then hang
python -m tests.stores.store_worker stream URL NAME      record rounds for ever, print each one
"""

import asyncio
import json
import os
import random
import sys

from antiphon.ports import Claimed, Effect, LeasedRound, Recorded, Running
from antiphon.stores import open_store

TTL = 600.0


async def redeem(store, call: str, won: list[str]) -> str:
    while True:
        claim = await store.claim(call, 2, b"yes", lease=30, ttl=TTL, tries=5)
        match claim:
            case Claimed(fence):
                won.append(call)
                outcome = f"{os.getpid()}".encode()
                assert await store.record(call, 2, fence, outcome, ttl=TTL)
            case Recorded(outcome):
                return outcome.decode()
            case Running():
                await store.settled(call, 2, timeout=30)
            case _:
                raise AssertionError(claim)


async def claim_all(store, calls: list[str]) -> None:
    random.shuffle(calls)
    won: list[str] = []
    outcomes = await asyncio.gather(*(redeem(store, call, won) for call in calls))
    print(json.dumps({"won": won, "seen": dict(zip(calls, outcomes, strict=True))}), flush=True)


async def hold(store, call: str, lease: str) -> None:
    claim = await store.claim(call, 2, b"yes", lease=float(lease), ttl=TTL, tries=5)
    effect = Effect(f"{call}/pay", call, "pay", "pay", b"args")
    under = LeasedRound(call, 2, claim.fence, b"prefix")
    await store.begin(effect, lease=0.0, ttl=TTL, under=under, retry=False)
    print(claim.fence, flush=True)
    await asyncio.Event().wait()


async def stream(store, name: str) -> None:
    async def lane(number: int) -> None:
        count = 0
        while True:
            call = f"{name}-{number}-{count}"
            claim = await store.claim(call, 2, b"yes", lease=30, ttl=TTL, tries=5)
            assert await store.record(call, 2, claim.fence, call.encode(), ttl=TTL)
            print(call, flush=True)
            count += 1

    await asyncio.gather(*(lane(number) for number in range(4)))


async def main(what: str, url: str, *rest: str) -> None:
    store = open_store(url)
    await store.open()
    if what == "all":
        await claim_all(store, list(rest))
    elif what == "hold":
        await hold(store, *rest)
    else:
        await stream(store, *rest)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
