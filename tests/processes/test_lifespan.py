"""The lifespan of an application under our HTTP server."""

from typing import Any

import pytest

from antiphon.transports.processes.lifespan import Lifespan, LifespanFailed


async def test_the_state_of_the_lifespan_is_handed_on_and_its_end_is_awaited() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])
        scope["state"]["store"] = "open"
        await send({"type": "lifespan.startup.complete"})
        seen.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})
        seen.append("ended")

    lifespan = Lifespan(app)
    assert await lifespan.start() == {"store": "open"}
    await lifespan.stop()
    assert seen == ["lifespan.startup", "lifespan.shutdown", "ended"]


async def test_an_application_that_cannot_start_says_why() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "the store is down"})

    with pytest.raises(LifespanFailed, match="the store is down"):
        await Lifespan(app).start()


async def test_an_application_without_a_lifespan_is_served_without() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"

    lifespan = Lifespan(app)
    assert await lifespan.start() == {}
    await lifespan.stop()
