"""`/healthz` and `/readyz`: what they say, to whom, and what they cost."""

import asyncio
import logging
from typing import Any

import pytest

from antiphon import Server, StoreError
from antiphon.errors import ConfigError
from antiphon.stores.memory import MemoryStore
from antiphon.transports.http import health
from antiphon.transports.http.app import App
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import Answer, post

FOREIGN = [(b"host", b"10.1.2.3:8400")]


async def get(app: App, path: str, method: str = "GET", **scope: Any) -> Answer:
    return await post(app, b"", FOREIGN, method=method, path=path, **scope)


@pytest.fixture
async def rooms() -> Rooms:
    return Rooms()


async def test_a_server_that_serves_is_healthy_and_ready_whatever_host_the_probe_names(
    rooms: Rooms,
) -> None:
    app = App(rooms)
    for path, text in (("/healthz", b"ok"), ("/readyz", b"ready")):
        answer = await get(app, path)
        assert (answer.status, answer.body) == (200, text)
        assert (await get(app, path, "HEAD")).status == 200
        assert (await get(app, path, "POST")).status == 405
        mounted = await get(app, f"/api{path}", root_path="/api")
        assert mounted.status == 200


async def test_a_store_that_does_not_answer_in_time_makes_the_server_unready_not_unhealthy(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.02)
    monkeypatch.setattr(health, "KEPT_SECONDS", 0.0)
    app = App(rooms)
    rooms.store_answers.clear()
    answer = await get(app, "/readyz")
    assert (answer.status, answer.body) == (503, b"not ready")
    assert "the store does not answer: no answer in 0.02 s" in caplog.text
    assert (await get(app, "/healthz")).status == 200
    rooms.store_answers.set()
    assert (await get(app, "/readyz")).status == 200


class BrokenStore(MemoryStore):
    """A store that can lose its disk."""

    broken = False

    async def effects(self, call: str) -> Any:
        if self.broken:
            raise StoreError("the disk is gone")
        return await super().effects(call)


async def test_a_store_that_fails_makes_the_server_unready_and_only_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "KEPT_SECONDS", 0.0)
    store = BrokenStore()
    app = Server("shop", store=store).asgi()
    assert (await get(app, "/readyz")).status == 200
    store.broken = True
    answer = await get(app, "/readyz")
    assert (answer.status, answer.body) == (503, b"not ready")
    assert "the disk is gone" in caplog.text


async def test_however_many_probes_come_the_store_is_asked_once_in_a_while(rooms: Rooms) -> None:
    asked = 0

    async def probe() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)

    readiness = health.Readiness(probe)
    await asyncio.gather(*(readiness.check() for _ in range(50)))
    for _ in range(50):
        await readiness.check()
    assert asked == 1


async def test_a_server_that_shuts_down_is_not_ready(rooms: Rooms) -> None:
    app = App(rooms)
    app.shutdown()
    assert (await get(app, "/readyz")).status == 503
    assert (await get(app, "/healthz")).status == 200


async def test_a_probe_opens_a_server_whose_lifespan_nobody_runs(caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)

    class Unopenable(MemoryStore):
        durable = True

        async def open(self) -> None:
            raise StoreError("no such database")

    app = Server("shop", store=Unopenable()).asgi()
    assert (await get(app, "/readyz")).status == 503


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "mcp"])
def test_the_endpoint_cannot_be_where_the_probes_are(path: str) -> None:
    with pytest.raises(ConfigError, match="path= must begin with"):
        Server("shop").asgi(path)
