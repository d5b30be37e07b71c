"""What the release before wrote into a store, and that it goes on with this one."""

from pathlib import Path

from antiphon.ports import Claimed, Effect, Finished, Recorded
from antiphon.stores.sql.store import SqlStore

FILE = Path(__file__).parent / "data" / "ledger-before.sqlite"
"""Written by that release."""


async def rounds_and_effects_go_on(store: SqlStore) -> None:
    recorded = await store.claim("recorded", 2, b"yes", lease=30, ttl=600, tries=5)
    assert recorded == Recorded(b"outcome")
    released = await store.claim("released", 2, b"yes", lease=30, ttl=600, tries=5)
    assert released == Claimed(2, b"prefix")
    effect = Effect("released/pay", "released", "pay", "pay", b"args")
    begun = await store.begin(effect, lease=30, ttl=600, under=None, retry=False)
    assert begun == Finished(b"receipt", "released")
    [waiting] = await store.calls(uncertain=True)
    assert waiting.call == "lost"
    assert await store.settle_uncertain("lost", "pay", result=b"1")
    await store.end_call("one", ttl=0)
    shared = Effect("shared/1", "two", "mail", "mail", b"args")
    begun = await store.begin(shared, lease=30, ttl=600, under=None, retry=False, window=1e9)
    assert begun == Finished(b"sent", "one")


async def segments_and_tasks_go_on(store: SqlStore) -> None:
    assert await store.fetch("large", 3, b"any") == b"segment"
    [run] = await store.claim_runs(server="cloud", limit=5, lease=30)
    assert (run.id, run.state) == ("task", b"state")
