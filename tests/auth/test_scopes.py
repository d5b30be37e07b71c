"""Scopes of the server and of each tool, and how a client learns which it lacks."""

import asyncio
import sys
from typing import Any

import pytest
from starlette.authentication import AuthCredentials, SimpleUser

from antiphon import Client, ConfigError, Console, Context, OAuth, Server
from antiphon.apps.dev.recording import DeveloperAccess
from antiphon.server.construction import Surroundings, loading_within
from antiphon.testing import KEY
from tests.auth.issuer import Issuer
from tests.auth.shop import CAN, SERVERS, open_shop, shop
from tests.transports.wire import post, request

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
STEP_UP = (
    f'Bearer error="insufficient_scope", scope="mcp refunds:write", resource_metadata="{METADATA}"'
)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_token_without_the_scope_of_the_server_gets_403(issuer: Issuer, kind: str) -> None:
    async with open_shop(shop(issuer), kind) as web:
        answer = await web.call("whoami", issuer.sign_in("carl", "mcp-of-another-name"))
        old = web.old(issuer.sign_in("carl", "other"))
        opening = await web.http.post(
            web.url, json=old.request("initialize"), headers=old.headers()
        )
    assert [answer.status_code, opening.status_code] == [403, 403]
    challenge = answer.headers["www-authenticate"]
    assert challenge == (
        f'Bearer error="insufficient_scope", scope="mcp", resource_metadata="{METADATA}"'
    )


@pytest.mark.parametrize("blank", ["\t", "\n", "\u00a0", "\u2003", "\x1c", ","])
async def test_only_a_space_parts_the_scopes_of_a_token(issuer: Issuer, blank: str) -> None:
    async with open_shop(shop(issuer)) as web:
        odd = issuer.signed(scope=f"mcp other{blank}refunds:write")
        assert (await web.call("refund", odd)).status_code == 403
        good = issuer.signed(scope=" mcp  refunds:write ")
        assert await web.text("refund", good) == "refunded"


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_tool_names_the_scopes_that_it_needs_and_a_new_token_goes_on(
    issuer: Issuer, kind: str
) -> None:
    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp refunds:write")
    async with open_shop(shop(issuer), kind) as web:
        refused = await web.call("refund", few)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (403, STEP_UP)
        assert await web.text("refund", more) == "refunded"
        listed = (await web.send(request("tools/list"), few)).json()["result"]["tools"]
        assert "refund" in [tool["name"] for tool in listed], "so that the client can step up"


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_tool_of_a_session_needs_its_scopes_in_the_token_of_each_request(
    issuer: Issuer, kind: str
) -> None:
    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp refunds:write")
    async with open_shop(shop(issuer), kind) as web:
        old = await web.old(few).open()
        message = old.request("tools/call", {"name": "refund", "arguments": {}})
        refused = await web.http.post(web.url, json=message, headers=old.headers())
        assert (refused.status_code, refused.headers["www-authenticate"]) == (403, STEP_UP)
        old.tokens = more
        assert await old.text("refund") == "refunded"
        old.tokens = few
        refused = await web.http.post(web.url, json=message, headers=old.headers())
        assert refused.status_code == 403, "what an earlier token allowed is not remembered"


async def test_a_task_of_the_tool_needs_the_same_scopes(issuer: Issuer) -> None:
    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp refunds:write")
    async with open_shop(shop(issuer)) as web:
        task = (await web.result("audit", more, can=CAN))["taskId"]
        for method, params in [
            ("tasks/get", {}),
            ("tasks/update", {"inputResponses": {}}),
            ("tasks/cancel", {}),
        ]:
            refused = await web.ask(method, few, taskId=task, **params)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (403, STEP_UP)
        assert (await web.ask("tasks/get", more, taskId=task)).status_code == 200


async def test_prompts_and_resources_have_scopes_too(issuer: Issuer) -> None:
    server = shop(issuer)

    @server.prompt(scopes=["texts"])
    def hello() -> str:
        return "hello"

    @server.resource("note://{id}", scopes=["notes"])
    def note(id: str) -> str:
        return id

    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp texts notes")
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("prompts/get", {"name": "hello"}, "mcp texts"),
        ("resources/read", {"uri": "note://1"}, "mcp notes"),
    ]
    async with open_shop(server) as web:
        old = await web.old(few).open()
        for method, params, needed in asked:
            refused = await web.send(request(method, **params), few)
            assert refused.status_code == 403
            assert f'scope="{needed}"' in refused.headers["www-authenticate"]
            assert (await web.send(request(method, **params), more)).status_code == 200
            message = old.request(method, params)
            answer = await web.http.post(web.url, json=message, headers=old.headers())
            assert answer.status_code == 403


async def test_a_hidden_tool_stays_hidden_from_a_token_without_its_scopes(issuer: Issuer) -> None:
    server = shop(issuer)

    @server.tool(scopes=["secret"], visible=lambda who: who.subject == "dora")
    def vault() -> str:
        return "gold"

    async with open_shop(server) as web:
        carl = issuer.sign_in("carl")
        assert (await web.call("vault", carl)).json()["error"]["message"] == "Unknown tool: vault"
        old = await web.old(carl).open()
        answer = await old.call("tools/call", {"name": "vault", "arguments": {}})
        assert "Unknown tool" in answer["error"]["message"]


@pytest.mark.parametrize(("scopes", "status"), [(["refunds:write"], 200), ([], 403), (None, 403)])
async def test_the_scopes_of_a_middleware_count_where_there_is_one(
    scopes: list[str] | None, status: int
) -> None:
    server = Server("shop", environ={"ANTIPHON_KEYS": KEY})

    @server.tool(scopes=["refunds:write"])
    def refund() -> str:
        return "refunded"

    message = request(name="refund", arguments={})
    scope: dict[str, Any] = {"user": SimpleUser("carl")}
    if scopes is not None:
        scope["auth"] = AuthCredentials(scopes)
    async with server.running():
        answer = await post(server.asgi(), message, **scope)
    assert answer.status == status
    if status == 403:
        challenge = b'Bearer error="insufficient_scope", scope="refunds:write"'
        assert answer.headers[b"www-authenticate"] == challenge


async def test_an_author_who_develops_needs_no_token_and_has_every_scope() -> None:
    around = Surroundings(
        store="memory://", console=Console("http://127.0.0.1:8401/c"), auth=DeveloperAccess()
    )
    before = loading_within.set(around)
    auth = OAuth("https://id.example", audience="https://mcp.example.com/mcp", scopes=["mcp"])
    server = Server("shop", auth=auth, environ={"ANTIPHON_KEYS": KEY})
    loading_within.reset(before)

    @server.tool(scopes=["refunds:write"])
    async def refund(ctx: Context) -> str:
        return ctx.principal.subject

    async with server.running():
        answer = await post(server.asgi(), request(name="refund", arguments={}))
    assert answer.result["content"][0]["text"] == "developer"


async def test_a_server_without_it_loads_nothing_of_it() -> None:
    code = (
        "import sys, antiphon\n"
        "antiphon.Server('shop').asgi()\n"
        "print(sorted({'joserfc', 'httpx2', 'keyring', 'antiphon.auth', 'mcp'} & set(sys.modules)))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 50)
    assert out.strip() == b"[]"


async def test_where_nobody_presents_a_token_scopes_stop_nobody() -> None:
    server = Server("shop", environ={"ANTIPHON_KEYS": KEY})

    @server.tool(scopes=["refunds:write"])
    async def refund(ctx: Context) -> str:
        return "refunded"

    async with Client(server) as client:
        result: Any = await client.call_tool("refund", {})
    assert result.content[0].text == "refunded"


@pytest.mark.parametrize("scopes", ["mcp", ["a b"], ['a"b'], ["ä"], [""], [1], ["a\r\nX: y"], 7])
def test_what_is_no_scope_is_refused_at_registration(scopes: Any) -> None:
    server = Server("shop", environ={"ANTIPHON_KEYS": KEY})
    with pytest.raises(ConfigError, match="scope"):
        server.tool(scopes=scopes)
