"""Mounted in another application, whose lifespan is not ours."""

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from antiphon import Context, Server

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "act", "arguments": {}, "_meta": META},
}
HEADERS = {
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call",
    "mcp-name": "act",
    "accept": "application/json, text/event-stream",
}


def make_server(store: str) -> Server:
    server = Server("mounted", store=store)

    @server.tool
    async def act(ctx: Context) -> str:
        return await ctx.once("act", lambda: "acted")

    return server


async def post(server: Server, count: int = 1) -> list[httpx.Response]:
    app: Any = server.asgi()
    outer = Starlette(routes=[Mount("/tools", app=app)])
    transport = httpx.ASGITransport(app=outer)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        calls = [client.post("/tools/mcp", json=CALL, headers=HEADERS) for _ in range(count)]
        return await asyncio.gather(*calls)


async def test_the_store_is_opened_with_the_first_request(tmp_path: Path) -> None:
    answers = await post(make_server(f"sqlite:///{tmp_path}/ledger.db"), count=3)
    texts = [answer.json()["result"]["content"][0]["text"] for answer in answers]
    assert texts == ["acted"] * 3


async def test_tasks_are_run_without_a_lifespan_too() -> None:
    server = Server("mounted")

    @server.tool(task="required")
    async def act() -> str:
        return "acted"

    tasks = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": tasks}
    call = {**CALL, "params": {"name": "act", "arguments": {}, "_meta": meta}}
    transport = httpx.ASGITransport(app=cast("Any", server.asgi()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        made = (await client.post("/mcp", json=call, headers=HEADERS)).json()["result"]
        look = {**call, "method": "tasks/get", "params": {"taskId": made["taskId"], "_meta": meta}}
        headers = {**HEADERS, "mcp-method": "tasks/get", "mcp-name": made["taskId"]}
        async with asyncio.timeout(20):
            seen = made
            while seen["status"] == "working":
                await asyncio.sleep(seen["pollIntervalMs"] / 1000)
                seen = (await client.post("/mcp", json=look, headers=headers)).json()["result"]
    assert seen["status"] == "completed"


async def test_a_server_that_cannot_start_says_so_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("in the way")
    (answer,) = await post(make_server(f"sqlite:///{tmp_path}/no-folder/ledger.db"))
    assert answer.status_code == 503
