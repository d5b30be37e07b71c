"""The page on what handlers need around them: its example over every transport, in both eras."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon import Client, Principal, RemoteError, Scripted
from antiphon.testing import Rounds
from docs_src import services
from docs_src.services_testing import test_orders_are_listed as test_orders_are_listed
from tests.child_processes import ROOT, http_server

STDIO = f"{sys.executable} -m docs_src.services"
"""The file itself, which ends with `server.run()`."""

STAFF = Principal(issuer="staff", subject="eve")


@asynccontextmanager
async def target(kind: str) -> AsyncIterator[Any]:
    if kind == "process":
        yield services.server
    elif kind == "stdio":
        yield STDIO
    else:
        async with http_server("docs_src.services:server") as url:
            yield url


@pytest.mark.parametrize(
    ("kind", "era"),
    [
        ("process", "modern"),
        ("stdio", "modern"),
        ("stdio", "legacy"),
        ("http", "modern"),
        ("http", "legacy"),
    ],
)
async def test_the_example_runs(kind: str, era: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    async with (
        target(kind) as where,
        Client(where, era=era, answers=Scripted(approve={"approve": True})) as opened,
    ):
        client: Any = opened  # what comes back is judged by its members
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert set(tools) == {"order", "ordered", "search"}
        assert list(tools["order"].input_schema["properties"]) == ["item"]
        assert tools["ordered"].output_schema["properties"]["result"]["type"] == "array"
        done = await client.call_tool("order", {"item": "tea"})
        assert done.content[0].text == "tea is ordered."
        assert (await client.call_tool("ordered")).structured_content == {"result": ["tea"]}
        with pytest.raises(RemoteError, match="Unknown tool: close"):
            await client.call_tool("close")
        for _ in range(10):
            assert not (await client.call_tool("search", {"words": "tea"})).is_error
        with pytest.raises(RemoteError, match="10 times a minute") as refused:
            await client.call_tool("search", {"words": "tea"})
        data: Any = refused.value.data
        assert 0 < data["retryAfterMs"] <= 6_000


async def test_a_round_that_only_asks_is_rolled_back_and_audited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Rounds(services.server) as rounds:
        with caplog.at_level("INFO", logger="shop"):
            assert (await rounds.call("order", {"item": "milk"}, answers={"approve": True})).text
        assert (await rounds.call("order", {"item": "salt"}, answers={"approve": False})).text
        assert (await rounds.call("ordered")).structured == {"result": ["milk"]}
    said = [record.getMessage().split(" ", 1) for record in caplog.records if record.name == "shop"]
    assert [line for _, line in said] == [
        "order round 1: input_required",
        "order round 2: complete",
    ]
    assert len({call for call, _ in said}) == 1


async def test_staff_can_close_the_shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "CLOSED", [])
    async with Rounds(services.server, principal=STAFF) as rounds:
        assert (await rounds.call("close")).text == "The shop is closed."
        refused = await rounds.call("order", {"item": "tea"})
    assert refused.text == "The shop is closed. Try again tomorrow."
