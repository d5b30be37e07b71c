"""docs/gateway.md: what it shows runs, and what it lists is what there is."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import Accept, Client, Context, Server
from docs_src import gateway

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text("utf-8")


def said(result: Any) -> str:
    return result.content[0].text


async def test_their_tool_is_approved_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Client(gateway.mounted(), answers=lambda ask: Accept({"approve": True})) as client:
        result = await client.call_tool("shop_delete_order", {"order": "7"})
    assert said(result) == "deleted 7"


async def test_a_request_of_another_framework_is_served() -> None:
    server = Server("shop")

    @server.tool
    def who(ctx: Context) -> str:
        """Tell who calls."""
        return ctx.principal.subject

    async with server.running():
        result = await gateway.from_another_framework(server, {"name": "who"})
    assert result["content"][0]["text"] == "ada"


async def test_a_relay_asks_as_it_is_told_and_leaves_a_record() -> None:
    gateway.ended.clear()
    question = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
    async with Client(gateway.relay) as client:
        step = await client.begin("ask_client", {"question": question})
        assert list(step.asks) == ["question-1"]
        await client.resume(step, {"question-1": Accept({})})
    (line,) = gateway.ended
    assert line.endswith("ask_client complete after 2")


class Amount(BaseModel):
    amount: int


async def test_rounds_are_functions_from_json_to_json() -> None:
    server = Server("shop")

    @server.tool
    async def refund(ctx: Context, order: str) -> str:
        """Refund."""
        return f"{order}: {(await ctx.elicit('How much?', Amount)).amount}"

    async with server.running():
        key = "5b0d6d7a-2f5a-4c0e-9a52-1f0c7e2d9a11"
        step = await gateway.begin(server, "7", key)
        assert (await gateway.begin(server, "7", key))["asks"] == step["asks"]
        answer = {"amount": {"action": "accept", "content": {"amount": 3}}}
        done = await gateway.go_on(server, step, answer)
    assert done["result"]["content"][0]["text"] == "7: 3"
