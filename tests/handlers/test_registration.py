"""What a new author gets wrong is found at registration; the text says what to write instead."""

from functools import partial
from typing import Any

import pytest

from antiphon import ConfigError, Context, Server
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
        ({"prak": 60}, "unknown option prak; known: .*park"),
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
        ({"redeem": "twice"}, "redeem='twice' is none of 'once', 'strict', 'off'"),
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


def test_s4_7_unasked_answers_are_for_native_handlers_only() -> None:
    server = Server("s")

    async def parked(ctx: Context) -> str:
        return "x"

    with pytest.raises(ConfigError, match="never see answers"):
        server.tool(unasked="accept", park=10)(parked)
