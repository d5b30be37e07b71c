"""Requests given as values: served as if a transport had brought them."""

import pytest

from antiphon import Context, InvalidRequest, Principal, Server
from antiphon.errors import TokenRefused
from antiphon.testing.doubles import BackChannel
from tests.linear.one_tool_server import EU, Place

ANNA = Principal(issuer="i", subject="anna")
FORMS = {"elicitation": {"form": {}}}


def shop() -> Server:
    server = Server("shop")

    @server.tool
    async def order(ctx: Context, name: str) -> str:
        """Ask where."""
        place = await ctx.elicit("Where?", Place)
        return f"{name} in {place.region} for {ctx.principal.subject}"

    @server.tool(visible=lambda who: who.subject == "anna")
    def secret() -> str:
        """Only for some."""
        return ""

    return server


async def test_a_request_as_a_value_is_served_with_its_token_and_answers():
    server, params = shop(), {"name": "order", "arguments": {"name": "db"}}
    async with server.running():
        first = await server.serve(
            server.request("tools/call", params, principal=ANNA, capabilities=FORMS)
        )
        assert first["resultType"] == "input_required"
        answers = {"place": {"action": "accept", "content": EU}}
        more = {**params, "requestState": first["requestState"], "inputResponses": answers}
        last = await server.serve(
            server.request("tools/call", more, principal=ANNA, capabilities=FORMS)
        )
        assert last["content"][0]["text"] == "db in eu for anna"
        stolen = server.request("tools/call", more, principal=Principal(issuer="i", subject="ben"))
        with pytest.raises(TokenRefused):
            await server.serve(stolen)


async def test_a_request_of_a_legacy_session_asks_over_its_channel():
    server = shop()
    channel = BackChannel(lambda key, ask: {"action": "accept", "content": EU})
    async with server.running():
        result = await server.serve(
            server.request(
                "tools/call",
                {"name": "order", "arguments": {"name": "db"}},
                principal=ANNA,
                version="2025-11-25",
                capabilities=FORMS,
                channel=channel,
            )
        )
    assert result["content"][0]["text"] == "db in eu for anna"
    assert "_meta" not in result


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_what_is_no_request_is_refused_as_a_client_would_be(version):
    server = shop()
    with pytest.raises(InvalidRequest):
        server.request("tools/call", {"name": 7}, version=version)
    with pytest.raises(InvalidRequest):
        server.request("no/such", {}, version=version)


def test_the_tools_are_listed_with_their_schemas_and_for_a_caller():
    server = shop()
    names = [tool["name"] for tool in server.tools()]
    assert names == ["order", "secret"]
    assert server.tools()[0]["inputSchema"]["required"] == ["name"]
    ben = Principal(issuer="i", subject="ben")
    assert [tool["name"] for tool in server.tools(ben)] == ["order"]
    assert [tool["name"] for tool in server.tools(ANNA)] == names
