"""What a tool declares to return is listed as a schema, sent as structure, and held to it."""

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import jsonschema
import pytest
from mcp_types import TextContent
from pydantic import BaseModel

from antiphon import ConfigError, Context, Elicit, Image, InputRequired, Server, Text, ToolResult
from antiphon.protocol.request import Era
from antiphon.testing import Rounds


class Order(BaseModel):
    number: str
    cents: int


@dataclass
class Stock:
    item: str
    left: int


ORDER = {"number": "A1", "cents": 250}


async def listed(server: Server, name: str) -> dict[str, Any]:
    async with Rounds(server) as rounds:
        listed: Any = (await rounds.send("tools/list", {})).result
    return next(tool for tool in listed["tools"] if tool["name"] == name)


async def orders() -> list[Order]:
    return [Order(**ORDER)]


async def count() -> int:
    return 3


async def state() -> Literal["open", "closed"]:
    return "open"


async def names() -> list[str]:
    return ["tea", "milk"]


async def due() -> date | None:
    return date(2026, 11, 16)


async def nothing_due() -> date | None:
    return None


async def stock() -> tuple[Stock, ...]:
    return (Stock("tea", 2),)


async def share() -> float:
    return 0.5


async def by_number() -> dict[int, str]:
    return {1: "tea"}


async def either() -> Order | Stock:
    return Stock("tea", 2)


RESULTS = {
    orders: ([ORDER], ['[{"number":"A1","cents":250}]']),
    count: (3, ["3"]),
    state: ("open", ["open"]),
    names: (["tea", "milk"], ["tea", "milk"]),
    due: ("2026-11-16", ['"2026-11-16"']),
    nothing_due: (None, ["null"]),
    stock: ([{"item": "tea", "left": 2}], ['[{"item":"tea","left":2}]']),
    share: (0.5, ["0.5"]),
    by_number: ({"1": "tea"}, ['{"1":"tea"}']),
    either: ({"item": "tea", "left": 2}, ['{"item":"tea","left":2}']),
}


@pytest.mark.requirement("TOOL-01")
@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize("tool", RESULTS, ids=lambda tool: tool.__name__)
async def test_lists_and_scalars_stand_under_result_with_their_schema(tool: Any, era: Era) -> None:
    server = Server("shop")
    server.tool(tool)
    value, texts = RESULTS[tool]
    async with Rounds(server, era=era) as rounds:
        done = await rounds.call(tool.__name__)
    assert done.structured == {"result": value}
    assert [block["text"] for block in done.content] == texts
    schema = (await listed(server, tool.__name__))["outputSchema"]
    assert schema["type"] == "object"
    jsonschema.validate(done.structured, schema)


async def text() -> str:
    return "open"


async def picture() -> Image:
    return Image(b"x", "image/png")


async def blocks() -> list[Text | Image]:
    return [Text("a"), Image(b"x", "image/png")]


async def anything() -> list[Any]:
    return ["a", 1]


async def unsaid():
    return 7


async def text_or_nothing() -> str | None:
    return "open"


async def full() -> ToolResult:
    return ToolResult(content=["a"])


@pytest.mark.parametrize(
    "tool",
    [text, picture, blocks, anything, unsaid, text_or_nothing, full],
    ids=lambda t: t.__name__,
)
async def test_text_content_and_undeclared_results_have_no_structure(tool: Any) -> None:
    server = Server("shop")
    server.tool(tool)
    async with Rounds(server) as rounds:
        done = await rounds.call(tool.__name__)
    assert done.structured is None
    assert not done.is_error
    assert "outputSchema" not in await listed(server, tool.__name__)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_result_that_is_not_what_was_declared_is_refused_with_its_field(era: Era) -> None:
    server = Server("shop")

    @server.tool
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    @server.tool
    async def orders() -> list[Order]:
        return [{"number": "A1", "cents": "secret-amount"}]  # type: ignore[list-item]

    async with Rounds(server, era=era) as rounds:
        counted = await rounds.call("count")
        listing = await rounds.call("orders")
    assert counted.is_error
    assert listing.is_error
    assert "result: Input should be a valid integer" in counted.text
    assert "0.cents: Input should be a valid integer" in listing.text
    assert "many" not in counted.text
    assert "secret-amount" not in listing.text


async def test_a_native_handler_declares_what_it_returns_in_the_end() -> None:
    server = Server("shop")

    @server.tool
    async def count(ctx: Context) -> int | InputRequired:
        if (answer := ctx.answers.get("order", Order)) is None:
            return InputRequired({"order": Elicit("Which?", Order)})
        return answer.cents

    @server.tool
    async def order(ctx: Context) -> Order | InputRequired:
        answer = ctx.answers.get("order", Order)
        return answer or InputRequired({"order": Elicit("Which?", Order)})

    async with Rounds(server) as rounds:
        counted = await rounds.call("count", answers={"order": ORDER})
        given = await rounds.call("order", answers={"order": ORDER})
    assert counted.structured == {"result": 250}
    assert given.structured == ORDER
    assert "cents" in (await listed(server, "order"))["outputSchema"]["properties"]


TOTAL = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0}},
    "required": ["total"],
}


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_given_output_schema_is_listed_and_held(era: Era) -> None:
    server = Server("shop")

    @server.tool(output_schema=TOTAL)
    async def total(value: int) -> Any:
        return {"total": value}

    @server.tool(output_schema=TOTAL)
    async def full(value: int) -> ToolResult:
        return ToolResult(content=["The total."], structured={"total": value})

    assert (await listed(server, "total"))["outputSchema"] == TOTAL
    async with Rounds(server, era=era) as rounds:
        for tool in ("total", "full"):
            done = await rounds.call(tool, {"value": 3})
            assert done.structured == {"total": 3}
            refused = await rounds.call(tool, {"value": -3})
            assert refused.is_error
            assert "total: does not fit 'minimum'" in refused.text


async def test_a_full_result_is_held_to_the_declared_type_unless_it_is_an_error() -> None:
    server = Server("shop")

    @server.tool
    async def count(how: str) -> int | ToolResult:  # its own content beside a declared type
        return 1

    @server.tool(output_schema=TOTAL)
    async def total(how: str) -> ToolResult:
        if how == "failed":
            return ToolResult(content=["no"], is_error=True)
        return ToolResult(content=["no structure"])

    assert "outputSchema" not in await listed(server, "count")
    async with Rounds(server) as rounds:
        failed = await rounds.call("total", {"how": "failed"})
        bare = await rounds.call("total", {"how": "bare"})
    assert failed.is_error
    assert failed.text == "no"
    assert bare.is_error
    assert "without structured=" in bare.text


async def test_a_handler_for_legacy_clients_returns_what_is_listed() -> None:
    server = Server("shop")

    @server.tool
    async def count() -> int:
        return 1

    @count.legacy  # type: ignore[attr-defined]
    async def count_old():
        return 2

    async with Rounds(server, era="legacy") as rounds:
        assert (await rounds.call("count")).structured == {"result": 2}
    for other in (text, orders):
        with pytest.raises(ConfigError, match="must return what the tool declares"):
            count.legacy(other)  # type: ignore[attr-defined]


class Shelf(BaseModel):
    type: str = "resource"
    left: int


async def test_a_model_with_a_field_named_type_is_data_and_an_sdk_block_is_content() -> None:
    server = Server("shop")

    @server.tool
    async def shelf() -> Shelf:
        return Shelf(left=2)

    @server.tool
    async def block() -> TextContent:
        return TextContent(type="text", text="tea")

    async with Rounds(server) as rounds:
        assert (await rounds.call("shelf")).structured == {"type": "resource", "left": 2}
        assert (await rounds.call("block")).content == [{"type": "text", "text": "tea"}]


def test_an_output_schema_that_cannot_be_listed_is_refused_at_registration() -> None:
    server = Server("shop")
    with pytest.raises(ConfigError, match="points outside of the schema"):
        server.tool(output_schema={"$ref": "https://example.com/total.json"})(count)
    with pytest.raises(ConfigError, match="its schema is not valid"):
        server.tool(output_schema={"type": "many"})(count)
