"""PostgreSQL: tasks that are made at the same time share a commit, and fail one by one."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest

from antiphon.errors import StoreError
from antiphon.ports import NewTask
from antiphon.stores import postgres_creation
from antiphon.stores.postgres import PostgresStore
from antiphon.stores.postgres_creation import TaskCreation
from tests import servers
from tests.servers import opened


def new(name: str, **changes: object) -> NewTask:
    task = NewTask(
        id=name,
        server="creating",
        owner="ada",
        tool="tool",
        status="working",
        message="starting: \N{SNOWMAN} \\ \" '",
        created=1.5,
        expires=time.time() + 600,
        state=bytes(range(256)),
        call=f"call-{name}",
    )
    return msgspec.structs.replace(task, **changes)


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    async with opened(PostgresStore(postgres_dsn).for_server("creating")) as store:
        yield store


async def commits(dsn: str) -> int:
    """Return how many transactions have written tasks: each leaves its number in its rows."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        rows = await connection.execute(
            "SELECT count(DISTINCT xmin::text) FROM antiphon_tasks WHERE server = 'creating'"
        )
        found = await rows.fetchone()
    assert found is not None
    return found[0]


async def create_all(store: PostgresStore, tasks: list[NewTask]) -> list[bool | BaseException]:
    created = (store.create_task(task) for task in tasks)
    return await asyncio.gather(*created, return_exceptions=True)


async def test_a_task_is_kept_as_it_was_given(store: PostgresStore) -> None:
    tasks = [new("kept-1"), new("kept-2", message="", state=b"", call="", owner="\N{SNOWMAN}")]
    assert await create_all(store, tasks) == [True, True]
    for task in tasks:
        row = await store.task(task.id)
        assert row is not None
        given = msgspec.structs.asdict(task)
        del given["held"], given["call"], given["version"]
        assert {name: getattr(row, name) for name in given} == given
        assert (row.updated, row.revision, row.epoch, row.leased) == (1.5, 1, 0, False)
    claimed = await store.claim_runs(server="creating", limit=10, lease=30)
    assert {row.id for row in claimed} == {"kept-1", "kept-2"}


async def test_tasks_made_at_the_same_time_share_a_commit() -> None:
    with servers.own_postgres() as database:
        async with opened(PostgresStore(database.dsn)) as store:
            assert await create_all(store, [new(f"many-{n}") for n in range(250)]) == [True] * 250
            assert await commits(database.dsn) == 3  # a hundred, a hundred and fifty
            await store.create_task(new("alone"))
            assert await commits(database.dsn) == 4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("nul", {"message": "a\0b"}, id="no such text in the database"),
        pytest.param("surrogate", {"message": "\ud800"}, id="no such text at all"),
        pytest.param("twice", {"id": "twice-1"}, id="the same id twice"),
    ],
)
async def test_a_task_that_cannot_be_kept_fails_alone(
    store: PostgresStore, name: str, changes: dict[str, str]
) -> None:
    bad = msgspec.structs.replace(new(name), **changes)
    first, failed, last = await create_all(store, [new(f"{name}-1"), bad, new(f"{name}-2")])
    assert (first, last) == (True, True)
    assert isinstance(failed, Exception)
    assert await store.task(f"{name}-1") is not None
    assert await store.task(f"{name}-2") is not None


async def test_a_task_that_nobody_waits_for_is_not_written(store: PostgresStore) -> None:
    first = asyncio.ensure_future(store.create_task(new("waited-for")))
    gone = asyncio.ensure_future(store.create_task(new("given-up")))
    last = asyncio.ensure_future(store.create_task(new("waited-for-too")))
    await asyncio.sleep(0)
    gone.cancel()
    assert await asyncio.gather(first, last) == [True, True]
    assert gone.cancelled()
    assert await store.task("given-up") is None


async def test_all_are_told_when_the_database_is_away_and_none_is_written_later() -> None:
    with servers.own_postgres() as database:
        async with opened(PostgresStore(database.dsn, timeout=1.0)) as store:
            await store.create_task(new("before"))
            database.stop()
            results = await create_all(store, [new(f"away-{n}") for n in range(5)])
            assert all(isinstance(one, StoreError) and one.retryable for one in results), results
            database.start()
            assert await create_all(store, [new("after-1"), new("after-2")]) == [True, True]
            assert [await store.task(f"away-{n}") for n in range(5)] == [None] * 5


async def test_a_task_does_not_wait_longer_than_an_operation_may_take(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_creation, "_TASKS", 2)
    async with (
        opened(PostgresStore(postgres_dsn, timeout=1.0)) as store,
        await psycopg.AsyncConnection.connect(postgres_dsn) as other,
    ):
        await other.execute("LOCK TABLE antiphon_tasks")
        began = time.perf_counter()
        results = await create_all(store, [new(f"locked-{n}") for n in range(20)])
        assert time.perf_counter() - began < 3.0
        assert all(isinstance(one, StoreError) and one.retryable for one in results), results
        await other.rollback()
        assert await create_all(store, [new("unlocked-1"), new("unlocked-2")]) == [True, True]


async def test_closing_waits_for_what_is_being_written(postgres_dsn: str) -> None:
    async with opened(PostgresStore(postgres_dsn)) as store:
        created = [asyncio.ensure_future(store.create_task(new(f"late-{n}"))) for n in range(3)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*created) == [True] * 3


class Writer:
    """Notes what is written together; the first statement takes its time."""

    def __init__(self) -> None:
        self.written: list[list[str]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, tasks: object) -> None:
        assert isinstance(tasks, list)
        self.written.append([task.id for task in tasks])
        await self.go_on.wait()


async def test_what_arrives_while_tasks_are_written_is_written_next_all_at_once() -> None:
    writer = Writer()
    creation = TaskCreation(writer)
    first = asyncio.ensure_future(creation.create(new("a")))
    await asyncio.sleep(0.01)
    rest = [asyncio.ensure_future(creation.create(new(name))) for name in "bcd"]
    await asyncio.sleep(0.01)
    assert writer.written == [["a"]]
    writer.go_on.set()
    await asyncio.gather(first, *rest)
    assert writer.written == [["a"], ["b", "c", "d"]]


class Stalls(Writer):
    """A writer whose first statement does not return."""

    async def __call__(self, tasks: object) -> None:
        first = not self.written
        self.go_on.set()
        await super().__call__(tasks)
        if first:
            await asyncio.Event().wait()


async def test_a_statement_that_hangs_keeps_no_other_tasks_waiting() -> None:
    writer = Stalls()
    creation = TaskCreation(writer)
    stuck = asyncio.ensure_future(creation.create(new("a")))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await asyncio.gather(*(creation.create(new(name)) for name in "bc"))
        await creation.create(new("d"))
    assert writer.written == [["a"], ["b", "c"], ["d"]]
    for writing in creation._writers:
        writing.cancel()
    await asyncio.wait({stuck}, timeout=5)
    assert stuck.cancelled()
    await creation.close()


async def test_one_statement_holds_no_more_than_its_bounds() -> None:
    writer = Writer()
    writer.go_on.set()
    creation = TaskCreation(writer)
    half = b"x" * (postgres_creation._BYTES // 2)
    larger = b"x" * (postgres_creation._BYTES + 1)
    sizes = {"a": half, "b": half[:-100], "c": half, "d": larger, "e": b""}
    await asyncio.gather(*(creation.create(new(id, state=state)) for id, state in sizes.items()))
    assert writer.written == [["a", "b"], ["c"], ["d"], ["e"]]
    writer.written.clear()
    await asyncio.gather(*(creation.create(new(str(n))) for n in range(101)))
    assert [len(ids) for ids in writer.written] == [100, 1]


class FailsTogether(Writer):
    """Cannot write several tasks at once."""

    async def __call__(self, tasks: object) -> None:
        if isinstance(tasks, list) and len(tasks) > 1:
            raise StoreError("one of them cannot be kept", retryable=False)
        await super().__call__(tasks)


@pytest.mark.parametrize("writer_class", [Writer, FailsTogether])
async def test_a_writer_that_is_cancelled_keeps_nobody_waiting(writer_class: type[Writer]) -> None:
    writer = writer_class()
    creation = TaskCreation(writer)
    waiting = [asyncio.ensure_future(creation.create(new(name))) for name in "ab"]
    await asyncio.sleep(0.01)
    waiting.append(asyncio.ensure_future(creation.create(new("c"))))
    await asyncio.sleep(0.01)
    assert creation._writer is not None
    creation._writer.cancel()
    done, _ = await asyncio.wait(waiting, timeout=5)
    assert all(one.cancelled() for one in waiting)
    assert len(done) == 3
