"""What the inbox costs when much waits in it: a page of the list, and a decision.

`python -m bench.inbox` fills a SQLite file and a PostgreSQL database with 100,000 open questions,
and prints what the first page of the list and a decision take, beside a store with one page of
them. Times are the fastest of many, because a busy machine only adds to them.
"""

import asyncio
import math
import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from antiphon import Console, Server
from antiphon.apps.console.inbox_view import InboxView, Listing
from antiphon.console import Person
from antiphon.protocol.inbox import Decided, Face, Item, Terms, encode_face
from antiphon.testing import KEY
from tests import servers as databases

MANY = 100_000
ONE_PAGE = 50
REPEATS = 60
TIMES = 2.0
"""How much more a store with many may take."""

ANNA = Person("https://id.example", "anna", "Anna", ("finance",))
URL = "http://127.0.0.1:8401/console"
COLUMNS = (
    "id", "server", "call", "key", "task", "tool", "owner", "role", "need", "own", "assurance",
    "digest", "arguments", "created", "expires", "until", "status", "kind", "face", "answer",
    "behind",
)  # fmt: skip


class Cost(NamedTuple):
    """Milliseconds of a page of the list, and of a decision."""

    page: float
    decision: float


def make(url: str) -> Server:
    """Return a server on a store."""
    return Server("bench", store=url, environ={"ANTIPHON_KEYS": KEY}, console=Console(URL))


async def fill(server: Server, url: str, number: int) -> None:
    """Put so many open questions into the store, all for one role."""
    view = server.inbox_view()
    now = time.time()
    rows = [await _row(view, place, now) for place in range(number)]
    insert = f"INSERT INTO antiphon_inbox ({', '.join(COLUMNS)}) VALUES "
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
            database.executemany(f"{insert}({', '.join('?' * len(COLUMNS))})", rows)
        return
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as database:
        async with database.cursor() as cursor:
            await cursor.executemany(f"{insert}({', '.join(['%s'] * len(COLUMNS))})", rows)  # pyright: ignore[reportArgumentType]
        await database.execute("ANALYZE antiphon_inbox")


async def _row(view: InboxView, place: int, now: float) -> Sequence[Any]:
    id = secrets.token_hex(16)
    terms = Terms("finance", 1, False, "signed-in", "carl", (), b"shown")
    face = await view.seal_face(id, encode_face(Face(f"Refund order {place}?", terms=terms)))
    created = now - 3_600 + place / 1_000
    return (
        id, "bench", id, "approve", f"task {id}", "refund", "carl", "finance", 1, 0, "signed-in",
        b"shown", b"", created, now + 86_400, now + 90_000, "open", "approval", face, b"", "[]",
    )  # fmt: skip


class Approver:
    """Somebody who looks at the first page of a store's inbox, and decides."""

    def __init__(self, view: InboxView, waiting: Sequence[Item]) -> None:
        self._view = view
        self._waiting = iter(waiting)

    async def page(self) -> None:
        """Look at the list as its page does."""
        await self._view.counts(ANNA)
        await self._view.listed(ANNA, Listing("for-me"))

    async def decision(self) -> None:
        """Open an item, and decide."""
        item = next(self._waiting)
        shown = await self._view.one(item.id, ANNA)
        assert shown is not None
        verdict = await self._view.decide(
            shown, ANNA, "approve", digest=item.digest, first_shown=0.0, note="fine"
        )
        assert isinstance(verdict, Decided)


async def compare(few: str, many: str, number: int = MANY) -> tuple[Cost, Cost]:
    """Measure a store with one page of questions, and one with so many, in turns."""
    people: list[Approver] = []
    async with AsyncExitStack() as stack:
        for url, count in ((few, ONE_PAGE + REPEATS), (many, number)):
            server = make(url)
            await stack.enter_async_context(server.running())
            await fill(server, url, count)
            view = server.inbox_view()
            people.append(Approver(view, await view.waiting()))
        pages = await _fastest([one.page for one in people], REPEATS)
        decisions = await _fastest([one.decision for one in people], REPEATS // 2)
    return Cost(pages[0], decisions[0]), Cost(pages[1], decisions[1])


async def _fastest(works: Sequence[Callable[[], Awaitable[None]]], repeats: int) -> list[float]:
    best = [math.inf] * len(works)
    for _ in range(repeats):
        for place, work in enumerate(works):
            begun = time.perf_counter()
            await work()
            best[place] = min(best[place], time.perf_counter() - begun)
    return [seconds * 1_000 for seconds in best]


def stores(stack: ExitStack) -> Iterator[tuple[str, str, str]]:
    """Give two empty stores of each kind."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    yield "sqlite", f"sqlite:///{folder / 'few.db'}", f"sqlite:///{folder / 'many.db'}"
    few, many = (stack.enter_context(databases.postgres()) for _ in range(2))
    yield "postgresql", few, many


def ratios(number: int = MANY) -> Iterator[tuple[str, float, float]]:
    """Measure every store; yields what, with one page, and with many."""
    with ExitStack() as stack:
        for name, few, many in stores(stack):
            before, after = asyncio.run(compare(few, many, number))
            for what in Cost._fields:
                yield f"{name}, {what}", getattr(before, what), getattr(after, what)


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else MANY
    print(f"{'milliseconds':24}{'a page':>10}{number:>12,}{'times':>8}")
    found = list(ratios(number))
    for what, few, many in found:
        print(f"{what:24}{few:10.2f}{many:12.2f}{many / few:8.2f}")
    missed = [what for what, few, many in found if many > TIMES * few]
    if missed:
        sys.exit(f"more than twice the time: {', '.join(missed)}")


if __name__ == "__main__":
    main()
