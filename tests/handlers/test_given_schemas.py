"""Schemas that were given are code: what they cost is bounded when they come and when they run."""

import asyncio
import time
from typing import Any

import mcp_types as types
import pytest
from mcp.server.lowlevel import Server as SdkServer

from antiphon import Client, ConfigError, Server
from antiphon.handlers.given_schemas import (
    MAX_PATTERN,
    LinearPattern,
    SchemaCheck,
    check_schema,
    pattern_size,
    validator,
)


def laughs(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Return a schema of a few lines that doubles with each level."""
    definitions: dict[str, Any] = {
        f"l{level}": {keyword: [{"$ref": f"#/$defs/l{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"l{levels}"] = {"type": "string"}
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/l0"}},
        "$defs": definitions,
    }


def of(x: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": x}, **more}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("levels", [17, 200])
def test_a_schema_that_grows_when_it_is_expanded_is_refused(keyword: str, levels: int) -> None:
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="references expanded"):
        check_schema(laughs(levels, keyword), "it")
    assert time.monotonic() - begun < 5


def test_a_bomb_below_a_property_with_the_name_of_a_keyword_is_found() -> None:
    bomb = laughs(20)
    bomb["properties"] = {"default": bomb["properties"]["x"]}
    with pytest.raises(ConfigError, match="references expanded"):
        check_schema(bomb, "it")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        of({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
        of({"$anchor": "me", "not": {"$ref": "#me"}}),
    ],
    ids=str,
)
def test_a_schema_that_applies_itself_to_the_same_value_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="without end"):
        check_schema(schema, "it")


def test_a_schema_that_refers_to_itself_for_a_part_is_a_tree() -> None:
    tree: dict[str, Any] = of({"type": "array", "items": {"$ref": "#"}})
    check_schema(tree, "it")
    check = validator(tree, "it")
    assert check({"x": [{"x": []}, {"x": [{"x": []}]}]}) == []
    assert check({"x": [{"x": 7}]}) == ["x.0.x: does not fit 'type'"]


@pytest.mark.parametrize("dialect", ["http://json-schema.org/draft-07/schema#", "urn:other"])
async def test_a_tree_that_doubles_with_each_part_ends_and_leaves_the_loop_alone(
    dialect: str,
) -> None:
    node: dict[str, Any] = {
        "$schema": dialect,
        "type": "object",
        "properties": {"a": {"anyOf": [{"allOf": [{"$ref": "#/$defs/n"}, False]}] * 3}},
    }
    check = validator({"type": "object", "properties": {"n": node}, "$defs": {"n": node}}, "it")
    value: dict[str, Any] = {}
    for _ in range(20):
        value = {"a": value}
    begun = time.monotonic()
    checking = asyncio.create_task(check.check({"n": value}))
    turns = 0
    while not checking.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert await checking == ["arguments: too costly to check against the schema"]
    assert time.monotonic() - begun < 30
    assert turns > 10, "the event loop went on meanwhile"


@pytest.mark.parametrize("place", ["pattern", "names", "properties"])
def test_a_pattern_takes_linear_time(place: str) -> None:
    text = "a" * 50_000 + "!"
    schema, value = {
        "pattern": (of({"type": "string", "pattern": "^(a+)+$"}), {"x": text}),
        "names": ({"type": "object", "propertyNames": {"pattern": "^(a+)+$"}}, {text: 1}),
        "properties": (
            {
                "type": "object",
                "patternProperties": {"^(a+)+$": {"type": "string"}},
                "additionalProperties": False,
            },
            {text: 1},
        ),
    }[place]
    check = validator(schema, "it")
    begun = time.monotonic()
    assert check(value) != []
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "(a{0,1000}){0,1000}"])
def test_a_pattern_that_is_not_linear_is_refused_of_an_author_and_left_out_of_others(
    pattern: str,
) -> None:
    schema = of({"type": "string", "pattern": pattern})
    with pytest.raises(ConfigError, match=r"linear time|not valid"):
        validator(schema, "it")
    if pattern != "(":
        check = validator(schema, "it", foreign=True)
        assert check({"x": "anything"}) == []
        assert check({"x": 7}) == ["x: does not fit 'type'"]


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        (r"^\d{4}-\d{2}$", 9),
        ("(ab){10}", 20),
        ("((a{10}){10}){10}", 1000),
        ("[a-f{9}]{3}", 3),
        (r"\p{L}{5}", 5),
    ],
)
def test_the_size_of_a_pattern_counts_repetitions(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def test_a_pattern_beyond_its_size_is_none() -> None:
    with pytest.raises(ValueError, match="too large"):
        LinearPattern("(a{1000}){1000}")
    assert pattern_size("(a{1000}){1000}") > MAX_PATTERN


def test_items_that_are_the_same_are_found_without_comparing_all_with_all() -> None:
    check = validator(of({"type": "array", "uniqueItems": True}), "it")
    items = [{"n": [number]} for number in range(30_000)]
    begun = time.monotonic()
    assert check({"x": items}) == []
    assert check({"x": [*items, {"n": [7.0]}]}) == ["x: does not fit 'uniqueItems'"]
    assert time.monotonic() - begun < 5


def test_a_number_out_of_range_and_a_deep_value_are_reasons() -> None:
    check = validator(of({"type": "number", "multipleOf": 1e-300}), "it")
    assert check({"x": 1e300}) != []
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    tree = of({"$ref": "#/$defs/t"}, **{"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}})
    assert validator(tree, "it")({"x": deep}) == ["arguments: nested too deep"]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (of({"$ref": "#/nowhere"}), "refers to nothing"),
        (of({"$id": "other", "type": "string"}), "\\$id"),
        (of({"patternProperties": {"a": {}}, "unevaluatedProperties": False}), "not both"),
    ],
)
def test_a_schema_that_cannot_be_checked_within_bounds_is_refused(
    schema: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        validator(schema, "it")


GOOD_AND_BAD = [
    ({"type": "array", "items": {"type": "integer"}}, [1, 2], [1, "2"]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "a", 1.5),
    ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": "b"}, {"a": 1}),
    ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1}, {"n_a": ""}),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, "ab", "a"),
    ({"unevaluatedProperties": False, "properties": {"a": {}}}, {"a": 1}, {"b": 1}),
    ({"$dynamicRef": "#d", "$defs": {"d": {"$dynamicAnchor": "d", "type": "string"}}}, "a", 1),
    ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    ({"pattern": "b+c"}, "abbcd", "ac"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), GOOD_AND_BAD, ids=str)
async def test_values_are_judged_as_the_schema_says(
    schema: dict[str, Any], good: Any, bad: Any
) -> None:
    check = SchemaCheck({"type": "object", "properties": {"x": {}}}, "it", "all", foreign=False)
    assert await check.check({"x": 1}) == []
    own = dict(schema)
    definitions = own.pop("$defs", {})
    check = validator(of(own, **{"$defs": definitions}), "it")
    assert check({"x": good}) == await check.check({"x": good}) == []
    assert check({"x": bad}) == await check.check({"x": bad}) != []


async def test_a_mounted_server_with_such_a_schema_is_served_without_that_tool() -> None:
    schemas = {
        "bomb": laughs(30),
        "careless": of({"type": "string", "pattern": "^(a+)+$"}),
        "plain": of({"type": "string"}),
    }

    async def call(*_: Any) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    async def tools(*_: Any) -> types.ListToolsResult:
        found = [types.Tool(name=name, input_schema=one) for name, one in schemas.items()]
        return types.ListToolsResult(tools=found)

    house = Server("house")
    house.mount(SdkServer("up", on_call_tool=call, on_list_tools=tools), approve=["*"])
    async with Client(house) as client:
        assert {one.name for one in await client.list_tools()} == {"careless", "plain"}
        begun = time.monotonic()
        result = await client.call_tool("careless", {"x": "a" * 10_000 + "!"})
        assert result.is_error
        assert time.monotonic() - begun < 10
