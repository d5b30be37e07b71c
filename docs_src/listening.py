"""Workers behind a pooler that are woken past it. Nothing is connected before the start."""

from antiphon import Server
from antiphon.stores.postgres import PostgresStore


def behind_a_pooler() -> Server:
    return Server(
        "shop",
        store=PostgresStore(
            "postgresql://shop@pooler.internal:6432/shop",
            listen="postgresql://shop@db.internal:5432/shop",
        ),
    )
