"""docs/embedding.md: under plain uvicorn callers are told apart, and who has no name stays out."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn

from antiphon import CannotConnect, Client
from docs_src import embedding


@pytest.fixture
async def url() -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(embedding.app, log_level="error", ws="none"))
    serving = asyncio.create_task(running.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    running.should_exit = True
    await asyncio.wait_for(serving, 10)


async def test_the_handler_sees_who_calls(url: str) -> None:
    seen: list[str] = []
    for token in ("of-ada", "of-bob"):
        async with Client(url, headers={"Authorization": f"Bearer {token}"}) as client:
            result = await client.call_tool("whoami", {})
        seen.append(result.content[0].text)  # type: ignore[union-attr]
    assert seen == ["ada", "bob"]


async def test_who_cannot_be_named_is_refused(url: str) -> None:
    with pytest.raises(CannotConnect):
        async with Client(url, headers={"Authorization": "Bearer of-nobody"}) as client:
            await client.call_tool("whoami", {})


async def test_a_host_that_is_not_named_is_refused_and_the_named_one_served(url: str) -> None:
    ada = {"Authorization": "Bearer of-ada"}
    with pytest.raises(CannotConnect):
        async with Client(url, headers={**ada, "Host": "evil.example.com"}) as client:
            await client.call_tool("whoami", {})
    async with Client(url, headers={**ada, "Host": "mcp.example.com"}) as client:
        assert not (await client.call_tool("whoami", {})).is_error
