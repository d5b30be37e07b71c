"""What a server has open while it runs, and how handlers reach it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from antiphon import Client, ConfigError, Context, Server, StartError
from antiphon.protocol.request import Era
from antiphon.seal.keyring import generate_key
from antiphon.testing import Rounds


@dataclass
class Shop:
    opened: list[str] = field(default_factory=list)


LIVES: list[str] = []


@asynccontextmanager
async def open_shop(server: Server) -> AsyncGenerator[Shop]:
    LIVES.append(f"open {server.name}")
    yield Shop(["till"])
    LIVES.append("close")


@pytest.fixture(autouse=True)
def _no_lives() -> None:
    LIVES.clear()


def make(lifespan: Any = open_shop, **settings: Any) -> Server:
    server = Server("shop", lifespan=lifespan, **settings)

    @server.tool
    async def opened(ctx: Context) -> str:
        return ctx.lifespan(Shop).opened[0]

    @server.tool
    def in_thread(ctx: Context) -> str:
        return ctx.lifespan(Shop).opened[0]

    return server


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("tool", ["opened", "in_thread"])
async def test_handlers_find_what_the_lifespan_yielded(era: Era, tool: str) -> None:
    async with Rounds(make(), era=era) as rounds:
        assert (await rounds.call(tool)).text == "till"
        assert LIVES == ["open shop"]
    assert LIVES == ["open shop", "close"]


async def test_a_client_in_the_process_runs_the_lifespan_too() -> None:
    async with Client(make()) as client:
        opened: Any = (await client.call_tool("opened")).content[0]
        assert opened.text == "till"
    assert LIVES == ["open shop", "close"]


async def test_several_transports_share_one_lifespan_and_the_last_one_ends_it() -> None:
    server = make()
    first, second = server.running(), server.running()
    await asyncio.gather(first.__aenter__(), second.__aenter__())
    assert LIVES == ["open shop"]
    await first.__aexit__(None, None, None)
    assert LIVES == ["open shop"]
    await second.__aexit__(None, None, None)
    assert LIVES == ["open shop", "close"]
    async with server.running():
        assert LIVES == ["open shop", "close", "open shop"]


async def test_a_task_group_of_the_lifespan_is_left_in_the_task_that_entered_it() -> None:
    ended: list[str] = []

    @asynccontextmanager
    async def with_group(_: Server) -> AsyncGenerator[Shop]:
        async with anyio.create_task_group() as group:
            yield Shop(["till"])
            group.cancel_scope.cancel()
        ended.append("group")

    running = make(with_group).running()
    await asyncio.create_task(running.__aenter__())
    await asyncio.create_task(running.__aexit__(None, None, None))
    assert ended == ["group"]


async def test_a_task_worker_runs_the_lifespan(tmp_path: Any) -> None:
    environ = {"ANTIPHON_KEYS": generate_key()}
    server = make(store=f"sqlite:///{tmp_path}/ledger.db", environ=environ, task_runs="workers")
    async with server.working():
        assert LIVES == ["open shop"]
    assert LIVES == ["open shop", "close"]


def failing(error: Exception) -> Callable[[Server], AbstractAsyncContextManager[Shop]]:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[Shop]:
        raise error
        yield Shop()

    return lifespan


async def test_a_lifespan_that_raises_ends_the_start_with_its_cause() -> None:
    server = make(failing(OSError("the database is down")))
    with pytest.raises(StartError, match="OSError: the database is down"):
        async with server.running():
            pytest.fail("it must not start")
    assert server.asgi() is not None
    with pytest.raises(StartError):  # and nothing is left half open
        async with server.running():
            pytest.fail("it must not start")


async def test_an_application_whose_lifespan_raises_reports_a_failed_start() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = make(failing(OSError("the database is down"))).asgi()
    await app({"type": "lifespan", "state": {}}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "OSError: the database is down" in sent[0]["message"]


async def test_an_end_that_raises_is_logged_and_the_rest_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncGenerator[Shop]:
        yield Shop(["till"])
        raise OSError("the printer is gone")

    server = make(lifespan)
    with caplog.at_level(logging.ERROR):
        async with server.running():
            pass
    assert "the lifespan of the server failed at its end" in caplog.text
    async with Rounds(server) as rounds:  # it can be started again
        assert (await rounds.call("opened")).text == "till"


async def test_a_function_without_its_decorator_is_explained() -> None:
    async def bare(_: Server) -> AsyncGenerator[Shop]:
        yield Shop()

    with pytest.raises(ConfigError, match="put @asynccontextmanager"):
        async with make(bare).running():
            pytest.fail("it must not start")


async def test_what_the_lifespan_does_not_yield_is_an_error_of_the_handler() -> None:
    async with Rounds(make(None)) as rounds:
        assert "Give Server(lifespan=...)" in (await rounds.call("opened")).text

    @asynccontextmanager
    async def other(_: Server) -> AsyncGenerator[dict[str, str]]:
        yield {}

    async with Rounds(make(other)) as rounds:
        assert (
            "ctx.lifespan(Shop): the lifespan yields a dict" in (await rounds.call("opened")).text
        )
