"""Tools that take their arguments as they came: `**arguments` beside a schema."""

from typing import Any

import pytest

from antiphon import ConfigError, Context, Server

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["amount"],
}


def serving(fn: Any, **options: Any):
    def make(**world: Any) -> Server:
        server = Server("shop", **world)
        server.tool(**options)(fn)
        return server

    return make


async def test_a_tool_gets_every_argument_as_it_came(rounds):
    async def pay(ctx: Context, **arguments: Any) -> dict:
        """Pay."""
        return arguments

    world = rounds(serving(pay, input_schema=SCHEMA))
    given = {"amount": 3, "note": "x", "more": {"deep": [1.0]}}
    assert (await world.begin("pay", given)).structured == given


async def test_named_parameters_are_checked_beside_the_rest(rounds):
    async def pay(ctx: Context, amount: int, **rest: Any) -> dict:
        """Pay."""
        return {"amount": amount, "rest": rest}

    world = rounds(serving(pay, input_schema=SCHEMA))
    found = await world.begin("pay", {"amount": "3", "more": 1})
    assert "amount" in found.text  # the given schema says integer
    found = await world.begin("pay", {"amount": 3, "more": 1})
    assert found.structured == {"amount": 3, "rest": {"more": 1}}


async def test_the_given_schema_is_what_clients_see_and_what_is_checked(rounds):
    async def pay(ctx: Context, **arguments: Any) -> dict:
        """Pay."""
        return arguments

    world = rounds(serving(pay, input_schema=SCHEMA))
    assert (await world.send("tools/list", {})).result["tools"][0]["inputSchema"] == SCHEMA
    assert (await world.begin("pay", {"note": "no amount"})).is_error


async def test_no_argument_can_take_the_place_of_the_context(rounds):
    async def pay(ctx: Context, **arguments: Any) -> dict:
        """Pay."""
        return {"round": ctx.round}

    found = await rounds(serving(pay, input_schema=SCHEMA)).begin("pay", {"amount": 1, "ctx": "x"})
    assert found.is_error
    assert "no argument can have this name" in found.text


def test_raw_arguments_need_a_schema_and_are_for_tools_only():
    server = Server("shop")

    async def anything(ctx: Context, **arguments: Any) -> str:
        return ""

    with pytest.raises(ConfigError, match="input_schema="):
        server.tool(anything)
    with pytest.raises(ConfigError, match="only a tool may"):
        server.prompt(anything)
    with pytest.raises(ConfigError, match="only a tool may"):
        server.resource("shop://x")(anything)
