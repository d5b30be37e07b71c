"""What a new author gets wrong is found at registration; the text says what to write instead."""

from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, Field

from antiphon import Approve, Client, ConfigError, Console, Context, Seal, Server
from antiphon.engine.handler import Options
from antiphon.handlers.options import Declaration, ToolOptions
from antiphon.protocol.envelope import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from antiphon.protocol.request import MODERN
from antiphon.testing import Rounds


class Socket:
    """A type that JSON cannot carry."""


async def plain(name: str) -> str:
    return name


@pytest.fixture
def server() -> Server:
    return Server("shop")


def test_a_parameter_that_json_cannot_carry_is_named(server: Server) -> None:
    async def send(text: str, socket: Socket) -> str:
        return text

    with pytest.raises(ConfigError, match=r"parameter 'socket' is a Socket, .* JSON types"):
        server.tool(send)


def test_a_context_without_annotation_does_not_become_an_argument(server: Server) -> None:
    async def send(ctx, text: str) -> str:
        return text

    with pytest.raises(ConfigError, match="annotate the context, `ctx: Context`"):
        server.tool(send)


def test_a_name_in_the_place_of_the_function_is_explained(server: Server) -> None:
    with pytest.raises(ConfigError, match=r"@server\.tool\(name=\.\.\.\)"):
        server.tool("send")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"@server\.prompt\(name=\.\.\.\)"):
        server.prompt("send")  # type: ignore[arg-type]


def test_a_resource_without_its_uri_is_explained(server: Server) -> None:
    with pytest.raises(ConfigError, match="a resource needs its URI"):
        server.resource(plain)  # type: ignore[arg-type]


def test_a_callable_without_a_name_needs_one_and_works_with_it(server: Server) -> None:
    bound = partial(plain, name="orders")
    with pytest.raises(ConfigError, match="a partial has no name of its own: give the tool name="):
        server.tool(bound)
    server.tool(name="orders")(bound)


def test_the_second_tool_of_a_name_is_told_the_cure(server: Server) -> None:
    server.tool(plain)
    with pytest.raises(ConfigError, match=r"'plain' is registered already.* another name="):
        server.tool(plain)


def test_the_second_resource_of_a_uri_is_told_the_cure(server: Server) -> None:
    async def stock() -> str:
        return "none"

    server.resource("shop://stock")(stock)
    with pytest.raises(ConfigError, match=r"is registered already.* another URI"):
        server.resource("shop://stock")(stock)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"prak": 60}, r"unknown option prak; did you mean park\?"),
        ({"sticky": True}, "unknown option sticky; known: anchor, .*visible"),
        ({"park": "sixty"}, "park='sixty' is neither seconds nor a timedelta"),
        ({"park": 0}, "park= must be greater than zero"),
        ({"task": "maybe"}, "task='maybe' is none of None, 'allowed', 'required'"),
    ],
)
def test_options_that_do_not_fit_are_named_with_what_would(
    server: Server, option: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        server.tool(**option)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"eras": ("moden",)}, "eras='moden' is none of 'modern', 'legacy'"),
        ({"redeem": "twice"}, "redeem='twice' is none of 'once', 'strict'"),
        ({"task_runs": "there"}, "task_runs='there' is none of 'in_process', 'workers'"),
        ({"lmits": None}, "Server.. has no setting 'lmits'"),
        ({"store": 5}, "store= takes a URL or a store, not a int"),
        ({"store": "cloud.db"}, "no scheme. Known: .*sqlite:///file"),
    ],
)
def test_settings_of_a_server_that_do_not_fit_are_named_with_what_would(
    setting: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Server("shop", **setting)


@pytest.mark.requirement("TOOL-01")
async def test_a_result_that_does_not_fit_its_declared_type_is_not_sent() -> None:
    def make(**kit: Any) -> Server:
        server = Server("s", **kit)

        @server.tool
        async def broken() -> dict[str, int]:
            return {"count": "SENTINEL"}  # pyright: ignore[reportReturnType]

        return server

    async with Rounds(make) as world:
        done = await world.call("broken", {})
    assert done.is_error
    assert "declared return type" in done.text
    assert "SENTINEL" not in done.text


def test_unasked_answers_are_for_native_handlers_only() -> None:
    server = Server("s")

    async def parked(ctx: Context) -> str:
        return "x"

    with pytest.raises(ConfigError, match="never see answers"):
        server.tool(unasked="accept", park=10)(parked)


def test_every_option_of_a_call_is_typed_and_every_typed_option_is_read() -> None:
    typed = ToolOptions.__optional_keys__
    of_calls = {field.name for field in fields(Options)}
    assert of_calls <= typed
    assert typed - of_calls <= {field.name for field in fields(Declaration)}


@pytest.mark.parametrize("option", ["task", "task_ttl", "detach", "max_concurrent"])
def test_only_tools_can_be_tasks(server: Server, option: str) -> None:
    given: Any = {option: None}
    server.tool(**given)
    with pytest.raises(ConfigError, match=f"unknown option {option}"):
        server.prompt(**given)
    with pytest.raises(ConfigError, match=f"unknown option {option}"):
        server.resource("shop://stock", **given)


def test_a_flow_has_its_name_already(server: Server) -> None:
    given: Any = {"name": "other"}
    with pytest.raises(TypeError, match="multiple values"):
        server.flow("order", **given)


# --- binding ----------------------------------------------------------------------------------


class Leaf(BaseModel):
    """A model that contains itself."""

    label: str
    leaves: list["Leaf"] = []


async def bound(tool: Any, **arguments: Any) -> Any:
    """Call a tool that returns its arguments; gives what it got."""
    server = Server("shop", environ={})
    server.tool(tool)
    params = {
        "name": tool.__name__,
        "arguments": arguments,
        "_meta": {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: {}},
    }
    async with server.running():
        return await server.exchange("tools/call", params, notify)


async def notify(method: str, params: Any) -> None:
    raise AssertionError(method)


async def test_parameters_may_have_names_that_a_model_may_not() -> None:
    async def odd(schema: str, _x: int, model_config: bool, copy: float = 1) -> dict[str, Any]:
        return {"schema": schema, "_x": _x, "model_config": model_config, "copy": copy}

    result = await bound(odd, schema="s", _x="3", model_config=True, unknown=1)
    assert result["structuredContent"] == {
        "schema": "s", "_x": 3, "model_config": True, "copy": 1,
    }  # fmt: skip


async def test_a_default_that_can_be_changed_is_new_in_every_call() -> None:
    async def add(item: str, basket: list[str] = []) -> dict[str, Any]:  # noqa: B006
        basket.append(item)
        return {"basket": basket}

    for item in ("tea", "milk"):
        assert (await bound(add, item=item))["structuredContent"] == {"basket": [item]}


async def test_a_field_as_default_gives_its_own_default_and_bounds() -> None:
    async def take(count: int = Field(5, ge=1, description="How many")) -> dict[str, Any]:
        return {"count": count}

    assert (await bound(take))["structuredContent"] == {"count": 5}
    refused = await bound(take, count=0)
    assert refused["isError"]
    assert "count: Input should be greater than or equal to 1" in refused["content"][0]["text"]


async def test_models_that_contain_themselves_are_bound() -> None:
    async def depth(tree: Leaf, other: Leaf | None = None) -> dict[str, Any]:
        return {"is_leaf": isinstance(tree.leaves[0], Leaf), "other": other}

    tree = {"label": "a", "leaves": [{"label": "b"}]}
    result = await bound(depth, tree=tree)
    assert result["structuredContent"] == {"is_leaf": True, "other": None}


async def test_many_wrong_values_are_counted_not_described() -> None:
    async def add(numbers: dict[str, int]) -> str:
        return str(sum(numbers.values()))

    refused = await bound(add, numbers={f"n{index}": "x" for index in range(100_000)})
    assert refused["isError"]
    assert "100000 values do not fit" in refused["content"][0]["text"]
    few = await bound(add, numbers=dict.fromkeys("abc", "x"))
    assert "numbers.c: Input should be a valid integer" in few["content"][0]["text"]


async def test_a_list_is_left_at_its_first_wrong_item() -> None:
    async def add(numbers: list[int], more: set[int] = frozenset()) -> str:  # type: ignore[assignment]
        return str(sum(numbers) + sum(more))

    refused = await bound(add, numbers=[1, "x", "y"], more=["z", "z"])
    text = refused["content"][0]["text"]
    assert "numbers.1: Input should be a valid integer" in text
    assert "more.0: Input should be a valid integer" in text
    assert "numbers.2" not in text


async def test_a_method_is_registered_of_an_object_not_of_its_class(server: Server) -> None:
    class Shop:
        async def refund(self, order: str) -> str:
            return order

    with pytest.raises(ConfigError, match=r"Shop.refund .* Register the method of an object"):
        server.tool(Shop.refund)
    server.tool(Shop().refund)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"title": 5}, "title=5 does not fit: it takes a text"),
        ({"description": ["x"]}, "description="),
        ({"name": 5}, "name=5"),
        ({"version": 2}, "version=2 does not fit"),
        ({"unable": True}, "unable=True"),
        ({"rate": 5}, "rate=5"),
        ({"anchor": "yes"}, "anchor='yes' does not fit: it takes True or False"),
        ({"asks": "form"}, "asks='form'"),
        ({"asks": 5}, "asks=5"),
        ({"holds": "yes"}, "holds='yes'"),
        ({"input_schema": "object"}, "input_schema="),
        ({"output_schema": []}, "output_schema="),
        ({"max_concurrent": "two"}, "max_concurrent="),
        ({"meta": ["x"]}, "meta="),
        ({"meta": {1: "x"}}, "meta="),
        ({"meta": {"x": object()}}, "meta= cannot be written as JSON"),
        ({"annotations": "readOnly"}, "annotations="),
        ({"annotations": {"readOnlyHint": "yes"}}, "readOnlyHint: expected true or false"),
        ({"annotations": {"title": 5}}, "title"),
        ({"annotations": {"read_only_hint": True}}, "did you mean 'readOnlyHint'"),
        ({"annotations": {"readonly": True}}, "annotations= has no 'readonly'"),
    ],
)
async def test_a_wrong_value_of_an_option_is_refused_and_costs_no_other_tool_its_list(
    server: Server, options: dict[str, Any], words: str
) -> None:
    server.tool(plain)
    offer: Any = server.tool
    with pytest.raises(ConfigError, match=words):
        offer(**{"name": "other", **options})(plain)
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["plain"]


@pytest.mark.parametrize("options", [{"title": 5}, {"meta": 5}, {"description": 5}])
def test_a_wrong_value_of_an_option_of_prompts_and_resources_is_refused(
    server: Server, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        server.prompt(**options)(plain)
    with pytest.raises(ConfigError, match="does not fit"):
        server.resource("shop://{name}", **options)(plain)
    with pytest.raises(ConfigError, match="does not fit"):
        server.resource("shop://{name}", mime_type=5)(plain)  # type: ignore[arg-type]


async def test_a_tool_that_waits_for_a_role_nobody_can_hold_does_not_start() -> None:
    for by, starts in (("finance", False), ("ops", True)):
        console = Console("http://127.0.0.1:8400/console", roles={"ops": "grp-ops"})
        server = Server("desk", console=console, store="memory:")
        server.tool(approve=Approve("Sure?", by=by))(plain)
        if starts:
            server.asgi()
            continue
        with pytest.raises(ConfigError, match=r"'plain' waits for the role 'finance'.* has ops"):
            server.asgi()
        with pytest.raises(ConfigError, match="nobody could decide"):
            async with server.running():
                pass


@pytest.mark.parametrize(("ttl", "warned"), [(timedelta(hours=72), True), (timedelta(1), False)])
async def test_tokens_that_would_outlive_their_call_are_a_warning_at_the_start(
    ttl: timedelta, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "antiphon"):
        async with Server("desk", seal=Seal(ttl=ttl)).running():
            pass
    assert ("tokens end with their call, after 1 day" in caplog.text) is warned
