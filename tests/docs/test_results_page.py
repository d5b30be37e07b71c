"""The page on what a tool returns: each of its tools, over the real transports and in both eras."""

from base64 import b64encode
from typing import Any

import pytest

from antiphon import Client
from antiphon.testing import Rounds
from docs_src.results import PNG, server
from tests.child_processes import http_server

IMAGE = b64encode(PNG).decode()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_every_kind_of_result_reaches_a_client(era: Any) -> None:
    async with http_server("docs_src.results:server") as url, Client(url, era=era) as opened:
        client: Any = opened  # what comes back is judged by its members
        greeting = await client.call_tool("greet", {"name": "Ada"})
        assert (greeting.content[0].text, greeting.structured_content) == ("Hello Ada.", None)
        order = await client.call_tool("order", {"number": "A1"})
        assert order.structured_content == {"number": "A1", "cents": 250}
        stock = await client.call_tool("stock")
        assert stock.structured_content == {
            "result": [{"item": "tea", "left": 2}, {"item": "milk", "left": 0}]
        }
        assert (await client.call_tool("total")).structured_content == {"total": 250}
        photo = (await client.call_tool("photo")).content[0]
        assert (photo.data, photo.mime_type) == (IMAGE, "image/png")
        tour = (await client.call_tool("tour")).content
        kinds = ["text", "image", "audio", "resource_link", "resource"]
        assert [block.type for block in tour] == kinds
        assert tour[1].annotations.priority == 0.9
        receipt = await client.call_tool("receipt", {"number": "A1"})
        assert receipt.meta["shop.example/till"] == 3
        prompt = await client.get_prompt("describe", {"item": "tea"})
        assert [message.role for message in prompt.messages] == ["user", "user", "assistant"]
        read = await client.read_resource("shop://photos/tea")
        assert read.contents[0].blob == IMAGE
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert tools["delete"].title == "Delete an order"
        assert tools["delete"].annotations.destructive_hint is True
        assert tools["total"].output_schema["required"] == ["total"]
        missing = await client.call_tool("find", {"number": "Z9"})
        assert missing.is_error
        assert missing.content[0].text.startswith("There is no order Z9. Numbers begin with A")


async def test_a_destructive_tool_asks() -> None:
    async with Rounds(server) as rounds:
        kept = await rounds.call("delete", {"number": "A1"}, answers={"approve": False})
        gone = await rounds.call("delete", {"number": "A1"}, answers={"approve": True})
    assert (kept.text, gone.text) == ("Nothing was deleted.", "A1 is deleted.")
