"""Every spelling of `store=`. Nothing is connected before a transport starts."""

from antiphon import MemoryStore, Server


def every_store() -> list[Server]:
    return [
        Server("cloud", store="sqlite:///cloud.db"),
        Server("cloud", store="sqlite:////var/lib/cloud/ledger.db"),
        Server("cloud", store="postgresql://cloud@db.internal/cloud"),
        Server("cloud", store="redis://cache.internal/0"),
        Server("cloud", store=MemoryStore(rounds=100_000)),
    ]
