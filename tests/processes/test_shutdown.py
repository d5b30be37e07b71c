"""A round that is cut when its process ends goes on in the next one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from antiphon import Context, Seal, Server
from antiphon.testing import KEY
from antiphon.transports.processes.http_server import serve_http
from tests.transports.test_stdio import connected
from tests.transports.wire import mirrored, request

FORM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}
CAPABLE = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


class Deployment:
    """One server after another on the same store."""

    def __init__(self, folder: Path) -> None:
        self._store = f"sqlite:///{folder / 'ledger.db'}"
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self.done: list[str] = []

    def make(self) -> Server:
        server = Server("shop", seal=Seal(keys=[KEY]), store=self._store)

        @server.tool
        async def order(ctx: Context) -> str:
            """Ask, then work for a long time."""
            where = await ctx.elicit("Where?", FORM, key="where")
            self.waiting.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                await ctx.once("refund", self.done.append, "refund")
                raise
            return f"delivered to {where['region']}"

        return server

    @asynccontextmanager
    async def serving(self, grace: int) -> AsyncIterator[tuple[str, asyncio.Event]]:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.create_task(
            serve_http(self.make().asgi(), port=0, announce=url.set_result, stop=stop, grace=grace)
        )
        try:
            yield await url, stop
        finally:
            stop.set()
            await task


async def send(http: httpx2.AsyncClient, url: str, **params: Any) -> Any:
    message = request(name="order", meta=CAPABLE, **params)
    headers = {name.decode(): value.decode() for name, value in mirrored(message)}
    del headers["host"]
    return (await http.post(url, json=message, headers=headers)).json()


async def test_a_round_that_was_cut_is_released_and_goes_on_after_the_restart(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path)
    async with asyncio.timeout(30), httpx2.AsyncClient(timeout=30) as http:
        async with deployment.serving(grace=1) as (url, stop):
            asked = (await send(http, url))["result"]
            again = {
                "requestState": asked["requestState"],
                "inputResponses": {"where": {"action": "accept", "content": {"region": "eu"}}},
            }
            cut = asyncio.create_task(send(http, url, **again))
            await deployment.waiting.wait()
            stop.set()
            assert (await cut)["error"]["message"] == (
                "the server is shutting down; send the round again"
            )
        deployment.go_on.set()
        async with deployment.serving(grace=5) as (url, _):
            done = await send(http, url, **again)
    assert done["result"]["content"][0]["text"] == "delivered to eu"
    assert deployment.done == []


async def test_a_round_that_is_cut_when_stdio_ends_does_nothing_while_it_is_unwound(
    tmp_path: Path,
) -> None:
    deployment = Deployment(tmp_path)
    server = deployment.make()
    async with server.running(), connected(server.dispatcher, grace=0.05) as (client, served):
        client.send(request(name="order", meta=CAPABLE))
        again = {
            "requestState": (await client.line())["result"]["requestState"],
            "inputResponses": {"where": {"action": "accept", "content": {"region": "eu"}}},
        }
        client.send(request(name="order", meta=CAPABLE, **again))
        await deployment.waiting.wait()
        client.close()
        await served
    assert deployment.done == []
    deployment.go_on.set()
    server = deployment.make()
    async with server.running(), connected(server.dispatcher) as (client, _):
        client.send(request(name="order", meta=CAPABLE, **again))
        done = await client.line()
    assert done["result"]["content"][0]["text"] == "delivered to eu"
