import pytest
from antiphon.testing.contracts import *
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sqlite import SqliteStore
import asyncio
ALL = STORE_CONTRACTS + TASK_CONTRACTS
@pytest.mark.parametrize("c", ALL, ids=lambda c: c.__name__)
async def test_memory(c):
    s = MemoryStore(); await c(s, s)
@pytest.mark.parametrize("c", ALL, ids=lambda c: c.__name__)
async def test_sqlite(c, tmp_path):
    a, b = SqliteStore(tmp_path/"x.db"), SqliteStore(tmp_path/"x.db")
    await a.open(); await b.open()
    await c(a, b)
    await a.close(); await b.close()
