"""What docs/clients.md says, done."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.cli.demo import example_server
from antiphon.client import Client, Decline, Deny, FormAsk, SampleAsk, Scripted, Timeouts, UrlAsk
from antiphon.client.saved import load
from docs_src import clients

server = example_server()
RUNNING = "orders.eu-west is running"


async def test_a_call_is_run_to_its_end():
    assert await clients.to_the_end(server, clients.script()) == RUNNING


async def test_the_script_is_tried_before_the_person():
    assert await clients.to_the_end(server, clients.combined(Deny())) == RUNNING


async def test_a_call_is_saved_and_resumed():
    shelf: dict[str, str] = {}
    await clients.one_round(server, shelf)
    step = await clients.next_week(server, shelf, {"placement": {"region": "eu-west"}})
    assert list(step.asks) == ["approve"]
    step = await clients.next_week(server, shelf, {"approve": {"approve": True}})
    assert step.result.content[0].text == RUNNING


async def test_functions_answer_each_kind():
    answers: Any = clients.functions()
    form = FormAsk(key="placement", message="", schema={})
    assert answers.elicit(form) == {"region": "eu-west"}
    sample = SampleAsk(key="s", params={"messages": [], "maxTokens": 7})
    assert await answers.sample(sample) == "an answer of at most 7 tokens"
    assert answers.elicit_url(UrlAsk(key="u", message="", url="https://evil.example")) == Decline()
    said = await clients.to_the_end(server, answers)
    assert said == "orders.eu-west was created and left stopped."


async def test_a_call_that_reaches_a_bound_is_kept():
    shelf: dict[str, str] = {}
    await clients.bounded(server, Scripted(placement={"region": "eu-west"}), shelf)
    assert list(load(shelf["orders"]).call.params["arguments"]) == ["name"]
    assert [ask.key for ask in load(shelf["orders"]).call.asks] == ["approve"]


def test_the_bounds_of_the_page_are_the_defaults():
    assert Timeouts() == Timeouts(rounds=10, total=3600, answer=900, reply=300)


class Size(BaseModel):
    """How large."""

    size: int


rebuilding = Server("rebuilding")


@rebuilding.tool(task="required")
async def rebuild(ctx: Context) -> str:
    """Rebuild an index in the background, and ask how large it may be."""
    await ctx.report(0, 1, "reading")
    answer = await ctx.elicit("How large may it be?", Size, key="size")
    return f"rebuilt with {answer.size}"


async def test_a_task_is_waited_for_left_and_taken_up(capsys: pytest.CaptureFixture[str]):
    async with rebuilding.running():
        assert await clients.background(rebuilding, Scripted(size={"size": 3})) == "rebuilt with 3"
        shelf: dict[str, str] = {}
        await clients.leave(rebuilding, shelf)
        assert '"task":' in shelf["rebuild"]
        async with Client(rebuilding) as client:
            shelf["rebuild"] = (await client.resume(shelf["rebuild"])).dump()
        step = await clients.come_back(rebuilding, shelf, {"size": {"size": 4}})
        assert step.result.content[0].text == "rebuilt with 4"
    assert "reading" in capsys.readouterr().out


@pytest.fixture
def url() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.asgi(), log_level="error", ws="none", lifespan="on")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    running.should_exit = True
    thread.join(10)
    listener.close()


async def test_the_blocking_client_needs_no_loop(url: str):
    assert await asyncio.to_thread(clients.blocking, url, clients.script()) == RUNNING
