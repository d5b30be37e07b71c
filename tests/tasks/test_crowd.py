"""Thousands of tasks that wait for input do not slow down those that do not.

`python -m bench.tasks` measures the same with 100,000; here it is made sure by the plans of the
database, which do not depend on how busy the machine is, and by times, generously.
"""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from antiphon.stores.sql import dialect
from antiphon.stores.sql import task_runs as task_statements
from bench.tasks import compare, fill, two_stores

TASKS = 5_000
ASKED = {
    "server": "bench",
    "limit": 16,
    "lease": 30.0,
    "listed": "[]",
    "owners": "[]",
    "now": 9e9,
    "grace": 10.0,
    "worker": "",
    "claimant": "",
    "everything": False,
    "served": '[["wait", "1"]]',
    "left_to_others": 600.0,
    "ready": 0.0,
    "id": "",
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_crowd_that_waits_is_not_felt(kind: str) -> None:
    with two_stores(kind) as urls:
        figures = await compare(*urls, TASKS, 40)
    assert figures["start ratio"] < 2.0
    assert figures["resume ratio"] < 2.0
    assert figures["memory growth MiB"] < 16.0


async def test_sqlite_finds_ready_runs_without_passing_those_that_wait(tmp_path: Path) -> None:
    path = tmp_path / "crowd.db"
    await fill(f"sqlite:///{path}", TASKS)
    connection = sqlite3.connect(path)
    for statement in (task_statements.CLAIM, task_statements.NEXT, task_statements.OVERDUE):
        explain = "EXPLAIN QUERY PLAN " + dialect.SQLITE.write(statement)
        plan = " ".join(row[3] for row in connection.execute(explain, ASKED))
        assert "antiphon_tasks_ready" in plan
        assert "SCAN antiphon_tasks" not in plan
    connection.close()


async def test_postgres_finds_ready_runs_without_passing_those_that_wait() -> None:
    with two_stores("postgres") as (_, url):
        await fill(url, TASKS)
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in (task_statements.CLAIM, task_statements.NEXT, task_statements.OVERDUE):
                explain: Any = "EXPLAIN (ANALYZE, BUFFERS) " + dialect.POSTGRES.write(statement)
                plan = "\n".join(row[0] for row in connection.execute(explain, ASKED))
                assert "Index Scan using antiphon_tasks_ready" in plan
                assert "Seq Scan" not in plan
