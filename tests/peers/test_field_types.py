"""Every type of field that people write, filled in with the official client in both eras."""

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp_types._v2026_07_28 import PrimitiveSchemaDefinition
from pydantic import TypeAdapter

from tests.child_processes import PATIENCE, http_server
from tests.peers.field_server import FIELDS, shown

TARGET = "tests.peers.field_server:server"
OFFICIAL: TypeAdapter[Any] = TypeAdapter(PrimitiveSchemaDefinition)


class Person:
    """Answers the form that is asked for now, and keeps its schemas."""

    def __init__(self) -> None:
        self.name = ""
        self.asked: dict[str, dict[str, Any]] = {}

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked[self.name] = params.requested_schema["properties"]["value"]
        return types.ElicitResult(action="accept", content={"value": FIELDS[self.name][1]})


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_the_official_client_fills_in_every_type_of_field(mode: Any, version: str) -> None:
    person = Person()
    values: dict[str, str] = {}
    async with (
        http_server(TARGET) as url,
        asyncio.timeout(PATIENCE),
        Client(url, mode=mode, elicitation_callback=person.elicit) as client,
    ):
        assert client.protocol_version == version
        for name in FIELDS:
            person.name = name
            result = await client.call_tool("fill", {"name": name})
            (block,) = result.content
            assert isinstance(block, types.TextContent)
            values[name] = block.text

    assert values == {name: shown(value) for name, (_, _, value) in FIELDS.items()}
    for schema in person.asked.values():
        OFFICIAL.validate_python(schema)
