"""What a tool may return: the example of docs/results.md."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from antiphon import (
    Audio,
    Contents,
    Context,
    Embedded,
    Image,
    Link,
    Message,
    Server,
    Text,
    ToolError,
    ToolResult,
)

server = Server("shop")

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63"
    "64f8cf500f00038601806a5c2c790000000049454e44ae426082"
)
WAV = b"RIFF$\x00\x00\x00WAVEfmt "


# --- text and data -------------------------------------------------------------------------------


class Order(BaseModel):
    number: str
    cents: int


@dataclass
class Stock:
    item: str
    left: int


@server.tool
async def greet(name: str) -> str:
    """Text: the model reads it as it is."""
    return f"Hello {name}."


@server.tool
async def order(number: str) -> Order:
    """An object: structured content with the fields of the model."""
    return Order(number=number, cents=250)


@server.tool
async def stock() -> list[Stock]:
    """A list, a number, a union: structured content {"result": ...}."""
    return [Stock("tea", 2), Stock("milk", 0)]


@server.tool(
    output_schema={
        "type": "object",
        "properties": {"total": {"type": "integer", "minimum": 0}},
        "required": ["total"],
    }
)
async def total() -> dict[str, Any]:
    """A schema of your own, where the type does not say enough."""
    return {"total": 250}


# --- images, sound, resources --------------------------------------------------------------------


@server.tool
async def photo() -> Image:
    """An image; bytes are encoded for you."""
    return Image(PNG, "image/png")


@server.tool
async def tour() -> list[Text | Image | Audio | Link | Embedded]:
    """Several blocks, in the order in which the model sees them."""
    return [
        Text("This is the shop:"),
        Image(PNG, "image/png", annotations={"audience": ["user"], "priority": 0.9}),
        Audio(WAV, "audio/wav"),
        Link("shop://map", "map", description="Where it is"),
        Embedded(Contents("shop://hours", text="9 to 5", mime_type="text/plain")),
    ]


@server.tool
async def receipt(number: str) -> ToolResult:
    """Everything at once: content for people, structure for programs, `_meta` for hosts."""
    return ToolResult(
        content=[f"Order {number}: 2.50 EUR", Image(PNG, "image/png")],
        structured={"number": number, "cents": 250},
        meta={"shop.example/till": 3},
    )


@server.prompt
async def describe(item: str) -> list[Message]:
    """Messages of a prompt take the same blocks."""
    return [
        Message(f"Describe this {item}."),
        Message(Image(PNG, "image/png")),
        Message("Certainly:", role="assistant"),
    ]


@server.resource("shop://photos/{item}", mime_type="image/png")
async def photo_of(item: str) -> bytes:
    """Bytes of a resource."""
    return PNG


# --- hints for hosts -----------------------------------------------------------------------------


@server.tool(
    title="Delete an order",
    annotations={"destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    meta={"shop.example/group": "orders"},
)
async def delete(ctx: Context, number: str) -> str:
    """Hints help a host to decide what to show; a question makes sure."""
    if not await ctx.approve("Delete this order?", details={"Order": number}):
        return "Nothing was deleted."
    return f"{number} is deleted."


# --- errors for models ---------------------------------------------------------------------------


@server.tool
async def find(number: str) -> Order:
    """What went wrong, and what to do next, in words for the model."""
    if not number.startswith("A"):
        raise ToolError(f"There is no order {number}. Numbers begin with A; `stock` lists items.")
    return Order(number=number, cents=250)
