"""Servers of other frameworks, and another one of ours, mounted in the same process."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Annotated, Any

import pytest
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import Elicit as SdkElicit
from mcp.server.mcpserver import MCPServer, Resolve
from pydantic import BaseModel

from antiphon import (
    Accept,
    Client,
    ConfigError,
    Console,
    Context,
    Decline,
    Elicit,
    InputRequired,
    RemoteError,
    Server,
    StartError,
)
from antiphon.console import Person
from antiphon.testing.decisions import decide
from tests.child_processes import named_in
from tests.client.programs import ENVIRONMENT, PEERS
from tests.client.programs import HERE as CLIENT_PEERS

ERAS = ("modern", "legacy")
HERE = Path(__file__).resolve().parent / "peers"
SOURCE = HERE.parents[2] / "src"


class Place(BaseModel):
    region: str


async def ask_place(ctx: SdkContext) -> Any:
    return SdkElicit("Where?", Place)


class Shop:
    """A server of the official SDK, and what happened in it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.entered = asyncio.Event()
        self.server = server = MCPServer("their-shop", version="3")

        @server.tool()
        async def deploy(name: str, place: Annotated[Place, Resolve(ask_place)]) -> str:
            """Deploy."""
            self.done.append(f"deploy {name}")
            return f"{name} in {place.region}"

        @server.tool()
        async def place(name: str, ctx: SdkContext) -> str:
            """Ask in the middle of a request."""
            self.done.append(f"begin {name}")
            found = await ctx.elicit("Where?", Place)
            self.done.append(f"place {name}")
            return found.data.region if found.action == "accept" else found.action

        @server.tool()
        def drop(name: str) -> str:
            """Delete."""
            self.done.append(f"drop {name}")
            return f"dropped {name}"

        @server.tool()
        def fail() -> str:
            """Fail."""
            raise ValueError("no")

        @server.resource("shop://stock")
        def stock() -> str:
            """What there is."""
            return "7"

        @server.resource("shop://orders/{id}")
        def order(id: str) -> str:
            """One order."""
            return f"order {id}"

        @server.prompt()
        def greet(name: str) -> str:
            """Greet."""
            return f"hello {name}"


def by(ask: Any) -> Accept:
    return Accept({"region": "eu"} if "Where" in ask.message else {"approve": True})


def said(result: Any) -> str:
    return result.content[0].text


def mounted(shop: Shop, **options: Any) -> Server:
    server = Server("house")
    server.mount(shop.server, **options)

    @server.tool
    def own() -> str:
        """One of ours."""
        return "own"

    return server


@pytest.mark.parametrize("tool", ["deploy", "place"])
async def test_a_server_of_the_official_sdk_is_served_beside_our_own_tools(tool: str):
    shop = Shop()
    server = mounted(shop, prefix="shop", era="legacy" if tool == "place" else "auto")
    async with Client(server, answers=by) as client:
        names = [one.name for one in await client.list_tools()]
        assert names == ["own", "shop_deploy", "shop_place", "shop_drop", "shop_fail"]
        result = await client.call_tool(f"shop_{tool}", {"name": "db"})
        assert said(result) in ("db in eu", "eu")
        assert said(await client.call_tool("own")) == "own"
        failed = await client.call_tool("shop_fail")
        assert failed.is_error
    assert server.tools() == [one for one in server.tools() if one["name"] == "own"]


async def test_another_server_of_ours_is_mounted_with_what_it_asks():
    inner, done = Server("inner"), []

    @inner.tool
    async def deploy(ctx: Context, name: str) -> str:
        """Deploy."""
        place = await ctx.elicit("Where?", Place)
        await ctx.once("deploy", done.append, name)
        return f"{name} in {place.region}"

    server = Server("house")
    server.mount(inner)
    async with Client(server) as client:
        step = await client.begin("deploy", {"name": "db"})
        assert list(step.asks) == ["place"]
        for _ in range(2):  # a token works once: the second gets what was recorded
            last = await client.resume(step, {"place": Accept({"region": "eu"})})
            assert said(last.result) == "db in eu"
    assert done == ["db"]


async def test_fastmcp_is_mounted_in_its_own_environment(tmp_path: Path):
    paths = [str(SOURCE), str(CLIENT_PEERS), str(named_in(tmp_path))]
    process = await asyncio.create_subprocess_exec(
        str(PEERS / "fastmcp" / "bin" / "python"),
        str(HERE / "mount_fastmcp.py"),
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(55):
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found = json.loads(out)
    assert {"own", "rooms_book"} <= set(found["names"])
    assert found["booked"] == "Oak for 4 on friday"


# --- what passes, and what is approved first -----------------------------------------------------


async def test_what_is_denied_or_not_allowed_is_neither_seen_nor_served():
    shop = Shop()
    server = mounted(shop, allow=["d*", "shop://orders/*"], deny=["drop"])
    async with Client(server, answers=by) as client:
        assert [one.name for one in await client.list_tools()] == ["own", "deploy"]
        assert await client.list_prompts() == []
        assert await client.list_resources() == []
        for hidden in ("drop", "place"):
            with pytest.raises(RemoteError, match="Unknown tool"):
                await client.call_tool(hidden, {"name": "x"})
        with pytest.raises(RemoteError, match="not found"):
            await client.read_resource("shop://stock")
        found = await client.read_resource("shop://orders/7")
        assert found.contents[0].text == "order 7"  # type: ignore[union-attr]
    assert shop.done == []


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_an_approval_of_the_caller_stands_before_a_tool(era: str):
    shop = Shop()
    server = mounted(shop, approve=["dr*"], era=era)
    asked: list[Any] = []

    def no(ask: Any) -> Decline:
        asked.append(ask)
        return Decline()

    async with Client(server, answers=no) as client:
        refused = await client.call_tool("drop", {"name": "db"})
        assert refused.is_error
        assert "Nothing was done" in said(refused)
    assert shop.done == []
    assert "Allow this call of drop?" in asked[0].message
    assert 'name: "db"' in asked[0].message
    async with Client(server, answers=by) as client:
        assert said(await client.call_tool("drop", {"name": "db"})) == "dropped db"
        wrong = await client.call_tool("drop", {"name": 7})
        assert wrong.is_error  # before anybody is asked
    assert shop.done == ["drop db"]


async def test_a_client_that_cannot_be_asked_gets_no_approval():
    shop = Shop()
    async with Client(mounted(shop, approve=["drop"])) as client:
        refused = await client.call_tool("drop", {"name": "db"})
    assert refused.is_error
    assert shop.done == []


async def test_an_approval_by_a_role_is_held_until_somebody_decides():
    shop = Shop()
    server = Server("house", console=Console("http://127.0.0.1:8400/console"))
    server.mount(shop.server, approve={"drop": "ops"})
    anna = Person("test", "anna", "Anna", ("ops",), 0.0)
    async with Client(server) as client:
        step = await client.begin("drop", {"name": "db"})
        assert step.task is not None
        assert shop.done == []
        await decide(server.inbox_view(), "approve", anna)
        done = await client.resume(step, wait=20)
    assert said(done.result) == "dropped db"
    assert shop.done == ["drop db"]


def test_a_role_needs_a_console():
    with pytest.raises(ConfigError, match="console"):
        Server("house").mount(Shop().server, approve=["drop=ops"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"approve": ["=ops"]}, "TOOL=ROLE"),
        ({"approve": ["drop="]}, "TOOL=ROLE"),
        ({"allow": "drop"}, "as a list"),
        ({"era": "ancient"}, "era="),
        ({"timeout": 0}, "timeout="),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_once(options: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told):
        Server("house").mount(Shop().server, **options)


# --- what goes wrong -----------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_stops_the_start():
    server = Server("house")
    server.mount("http://127.0.0.1:9/mcp")
    with pytest.raises(StartError, match="cannot be reached"):
        async with server.running():
            pass


async def test_the_server_s_own_error_is_passed_on():
    async with Client(mounted(Shop())) as client:
        with pytest.raises(RemoteError) as caught:
            await client.read_resource("shop://nothing/here")
    assert caught.value.code in (-32602, -32002)


async def test_a_tool_of_the_same_name_as_ours_is_left_out_with_a_warning(caplog: Any):
    inner = Server("inner")

    @inner.tool
    def own() -> str:
        """Theirs."""
        return "theirs"

    server = Server("house")
    server.mount(inner)

    @server.tool(name="own")
    def ours() -> str:
        """Ours."""
        return "ours"

    async with Client(server) as client:
        assert said(await client.call_tool("own")) == "ours"
    assert "not passed on" in caplog.text


async def test_a_mount_can_be_opened_again_after_the_server_was_stopped():
    server = mounted(Shop(), prefix="shop")
    for _ in range(2):
        async with Client(server, answers=by) as client:
            assert said(await client.call_tool("shop_deploy", {"name": "db"})) == "db in eu"


async def test_changes_of_a_mounted_server_of_ours_are_followed():
    inner, server = Server("inner"), Server("house")

    @inner.tool
    def first() -> str:
        """There from the start."""
        return "first"

    server.mount(inner)
    changed = asyncio.Event()
    async with Client(server) as client:
        server.dispatcher.changes.subscribe(lambda change: changed.set())

        @inner.tool
        def second() -> str:
            """Added later."""
            return "second"

        async with asyncio.timeout(10):
            await changed.wait()
        assert said(await client.call_tool("second")) == "second"
        inner.remove("tool", "first")
        changed.clear()
        async with asyncio.timeout(10):
            await changed.wait()
        assert [tool.name for tool in await client.list_tools()] == ["second"]


async def test_answers_that_came_unasked_are_for_the_mounted_server_to_judge():
    inner = Server("inner")

    @inner.tool(unasked="accept")
    async def native(ctx: Context) -> Any:
        """Take what came."""
        place = ctx.answers.get("place", Place)
        return InputRequired({"place": Elicit("Where?", Place)}) if place is None else place.region

    server = Server("house")
    server.mount(inner, approve=["approved"], unmatched="warn")
    async with server.running():
        request = server.request(
            "tools/call",
            {
                "name": "native",
                "inputResponses": {"place": {"action": "accept", "content": {"region": "eu"}}},
            },
            capabilities={"elicitation": {}},
        )
        assert (await server.serve(request))["content"][0]["text"] == "eu"


async def test_an_answer_that_came_unasked_is_never_an_approval():
    shop = Shop()
    server = mounted(shop, approve=["drop"])
    said_yes = {"action": "accept", "content": {"approve": True}}
    async with server.running():
        request = server.request(
            "tools/call",
            {
                "name": "drop",
                "arguments": {"name": "db"},
                "inputResponses": {"approve:tool": said_yes},
            },
            capabilities={"elicitation": {}},
        )
        assert (await server.serve(request))["resultType"] == "input_required"
    assert shop.done == []
