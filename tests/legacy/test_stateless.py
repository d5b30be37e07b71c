"""Legacy clients without sessions, and servers that serve none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, Elicit, Server
from tests.legacy.wire import Old, serving


class Name(BaseModel):
    name: str


@pytest.fixture
def server() -> Server:
    return Server("desk")


@asynccontextmanager
async def alone(server: Server, revision: str = "2025-11-25") -> AsyncIterator[Old]:
    """A client whose every request stands by itself; only the revision is told."""
    async with serving(server, stateless=True) as url, httpx2.AsyncClient(timeout=20) as http:
        http.headers["mcp-protocol-version"] = revision
        yield Old(http, url, revision)


async def test_a_call_needs_no_handshake(server: Server) -> None:
    @server.tool
    async def about(ctx: Context) -> str:
        return f"{ctx.era} {ctx.protocol_version} {ctx.can(Elicit)} {ctx.can_ask}"

    async with alone(server, "2025-06-18") as client:
        assert await client.text("about") == "legacy 2025-06-18 False False"
        assert client.session is None
        greeted = await Old(client.http, client.url, "2025-06-18").open()
        assert greeted.session is None
        assert greeted.greeting["protocolVersion"] == "2025-06-18"
        assert await greeted.text("about") == "legacy 2025-06-18 False False"


@pytest.mark.requirement("GUIDE-02")
async def test_a_tool_that_asks_says_that_a_session_is_needed(server: Server) -> None:
    entered: list[str] = []

    @server.tool
    async def name(ctx: Context) -> str:
        entered.append("name")
        return (await ctx.elicit("Name?", Name)).name

    @server.tool(asks=(Elicit,))
    async def declared(ctx: Context) -> str:
        entered.append("declared")
        return "unreachable"

    async with alone(server) as client:
        for tool in ("name", "declared"):
            result = await client.tool(tool)
            assert result["isError"]
            assert "no session" in result["content"][0]["text"]
            assert "Mcp-Session-Id" in result["content"][0]["text"]
    assert entered == ["name"]


@pytest.mark.requirement("LEGACY-23", "GUIDE-03")
async def test_a_visit_is_asked_for_by_an_error_and_the_next_call_goes_on(server: Server) -> None:
    visits: list[str] = []

    @server.tool
    async def sign_in(ctx: Context) -> str:
        await ctx.elicit_url("Sign in.", "https://example.com/in", until=lambda: bool(visits))
        return "signed in"

    async with alone(server) as client:
        answer = await client.call("tools/call", {"name": "sign_in"})
        assert answer["error"]["code"] == -32042
        (visit,) = answer["error"]["data"]["elicitations"]
        assert visit["mode"] == "url"
        assert visit["url"] == "https://example.com/in"
        assert visit["message"] == "Sign in."
        assert visit["elicitationId"]
        visits.append("came")
        assert await client.text("sign_in") == "signed in"


@pytest.mark.requirement("LEGACY-23")
async def test_no_visit_is_asked_for_by_an_error_after_something_was_done(server: Server) -> None:
    done: list[str] = []

    @server.tool
    async def act(ctx: Context) -> str:
        await ctx.once("first", done.append, "x")
        await ctx.elicit_url("Sign in.", "https://example.com/in", until=lambda: False)
        return "unreachable"

    @server.tool
    async def remember(ctx: Context) -> str:
        await ctx.memo("price", lambda: 7)
        await ctx.elicit_url("Sign in.", "https://example.com/in", until=lambda: False)
        return "unreachable"

    async with alone(server) as client:
        for tool in ("act", "remember"):
            result = await client.tool(tool)
            assert result["isError"]
            assert "Ask for the visit first" in result["content"][0]["text"]


async def test_a_visit_without_a_known_end_cannot_be_asked_for_without_a_session(
    server: Server,
) -> None:
    @server.tool
    async def sign_in(ctx: Context) -> str:
        return (await ctx.elicit_url("Sign in.", "https://example.com/in")).url

    async with alone(server) as client:
        assert "no session" in await client.text("sign_in")
    async with alone(server, "2025-06-18") as client:
        assert "no session" in await client.text("sign_in")


@pytest.mark.requirement("LEGACY-14")
async def test_there_are_no_streams_without_sessions(server: Server) -> None:
    async with alone(server) as client:
        headers = {**client.headers(), "mcp-session-id": "x"}
        assert (await client.http.get(client.url, headers=headers)).status_code == 405
        assert (await client.http.delete(client.url, headers=headers)).status_code == 405


async def test_a_server_without_legacy_clients_names_the_revisions_that_it_serves() -> None:
    server = Server("desk", eras=("modern",))
    async with serving(server) as url, httpx2.AsyncClient(timeout=30) as http:
        client = Old(http, url, "2025-11-25")
        request = client.request("initialize", {"protocolVersion": "2025-11-25"})
        refused = await http.post(url, json=request, headers=client.headers())
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == -32022
        assert error["data"]["supported"] == ["2026-07-28"]
        headers = {**client.headers(), "mcp-session-id": "x"}
        assert (await http.get(url, headers=headers)).status_code == 405
