"""A client of server objects of other frameworks, of streams and of transports of the SDK."""

from typing import Annotated, Any

import anyio
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.lowlevel import Server as LowLevelServer
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import Elicit as SdkElicit
from mcp.server.mcpserver import MCPServer, Resolve
from mcp.shared.memory import create_client_server_memory_streams
from pydantic import BaseModel

from antiphon import (
    Accept,
    CannotConnect,
    Client,
    PendingCall,
    Roots,
    Sampled,
    SavedCallInvalid,
    Step,
    answer_from_json,
)
from tests.child_processes import command, environment


class Place(BaseModel):
    region: str


async def ask_place(ctx: SdkContext) -> Any:
    return SdkElicit("Where?", Place)


def shop() -> MCPServer:
    server = MCPServer("their-shop", version="3")

    @server.tool()
    async def deploy(name: str, place: Annotated[Place, Resolve(ask_place)]) -> str:
        """Deploy."""
        return f"{name} in {place.region}"

    return server


def by(ask: Any) -> Accept:
    return Accept({"region": "eu"})


def text(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("era", ["auto", "modern"])
async def test_a_server_object_of_the_official_sdk_is_a_target(era):
    async with Client(shop(), answers=by, era=era) as client:
        assert client.server == {"name": "their-shop", "version": "3"}
        assert text(await client.call_tool("deploy", {"name": "db"})) == "db in eu"


async def test_a_server_object_serves_several_connections_one_after_another():
    server = shop()
    for _ in range(2):
        async with Client(server, answers=by) as client:
            assert text(await client.call_tool("deploy", {"name": "db"})) == "db in eu"


async def test_a_pair_of_streams_is_a_target():
    low: LowLevelServer[Any] = shop()._lowlevel_server  # pyright: ignore[reportPrivateUsage]
    async with (
        create_client_server_memory_streams() as (ours, theirs),
        anyio.create_task_group() as group,
    ):
        group.start_soon(low.run, *theirs, low.create_initialization_options())
        async with Client(ours, answers=by) as client:
            assert text(await client.call_tool("deploy", {"name": "db"})) == "db in eu"
        group.cancel_scope.cancel()


def booking() -> StdioServerParameters:
    program, *arguments = command("tests.peers.booking_server:server", "--stdio")
    return StdioServerParameters(command=program, args=arguments, env=environment())


async def test_a_transport_of_the_sdk_is_a_target_for_one_connection():
    client = Client(stdio_client(booking()))
    async with client:
        assert [tool.name for tool in await client.list_tools()] == ["book", "native", "survey"]
    with pytest.raises(CannotConnect, match="a function that makes a new one"):
        async with client:
            pass


async def test_a_function_that_makes_a_transport_is_called_for_each_connection():
    client = Client(lambda: stdio_client(booking()))
    for _ in range(2):
        async with client:
            assert len(await client.list_tools()) == 3


@pytest.mark.parametrize("target", [7, object(), b"bytes"])
async def test_anything_else_is_no_target(target):
    with pytest.raises(CannotConnect, match="not a target"):
        Client(target)


# --- steps as JSON -------------------------------------------------------------------------------


async def test_a_step_goes_through_json_between_any_two_rounds():
    server = shop()
    begun = await Client.step(server, PendingCall.tool("deploy", {"name": "db"}))
    data = begun.to_json()
    (key,) = data["asks"]
    assert data["asks"][key]["kind"] == "form"
    assert data["asks"][key]["message"] == "Where?"
    assert data["asks"][key]["schema"]["required"] == ["region"]
    again = Step.from_json(data)
    assert again.asks == begun.asks
    answer = answer_from_json({"action": "accept", "content": {"region": "eu"}})
    done = await Client.step(server, again.dump(), {key: answer})
    back = Step.from_json(done.to_json())
    assert back.done
    assert text(back.result) == text(done.result) == "db in eu"


@pytest.mark.parametrize("data", [{}, {"done": False}, {"done": True, "saved": "{}"}, {"saved": 7}])
def test_what_is_no_step_is_refused(data):
    with pytest.raises(SavedCallInvalid):
        Step.from_json(data)


def test_answers_are_read_in_the_shape_of_the_protocol():
    assert answer_from_json({"roots": [{"uri": "file:///srv"}]}) == Roots(["file:///srv"])
    assert answer_from_json({"content": "hm", "model": "m"}) == Sampled("hm", "m")
    with pytest.raises(ValueError, match="not an answer"):
        answer_from_json({"yes": True})
