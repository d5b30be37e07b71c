"""A stream lasts no longer than the token that opened it, in both eras."""

import asyncio
import json
import time

import pytest

from antiphon import OAuth
from antiphon.integrations.oauth import grants, resource_server
from tests.auth.issuer import AUDIENCE, Issuer
from tests.auth.shop import SERVERS, open_shop, shop
from tests.transports.wire import mirrored, request

pytestmark = pytest.mark.parametrize("kind", SERVERS)


@pytest.fixture(autouse=True)
def no_leeway(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (grants, resource_server):
        monkeypatch.setattr(module, "LEEWAY", 0)


async def test_listening_ends_with_its_result_when_the_token_expires(
    issuer: Issuer, kind: str
) -> None:
    message = request("subscriptions/listen", notifications={"toolsListChanged": True})
    headers = {name.decode(): value.decode() for name, value in mirrored(message, host=None)}
    async with open_shop(shop(issuer), kind) as web, asyncio.timeout(20):
        brief = issuer.signed(exp=int(time.time()) + 2)
        async with web.http.stream(
            "POST", web.url, json=message, headers=headers | brief.header
        ) as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line.startswith("data:")]
        assert "result" in json.loads(lines[-1].removeprefix("data:"))
        again = await web.send(request("tools/list"), brief)
        assert again.status_code == 401


async def test_the_stream_of_a_session_ends_and_a_refreshed_token_opens_it_again(
    issuer: Issuer, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web, asyncio.timeout(20):
        old = await web.old(issuer.signed(exp=int(time.time()) + 3)).open()
        async with old.listen() as messages:
            assert [message async for message in messages] == []
        old.tokens = issuer.signed()
        assert await old.text("whoami") == "carl/laptop/", "the session is still there"
        async with old.listen():
            pass


async def test_listening_ends_soon_after_a_token_that_is_looked_up_was_revoked(
    issuer: Issuer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resource_server.LOOKED_UP_STREAM_SECONDS <= 60
    monkeypatch.setattr(resource_server, "LOOKED_UP_STREAM_SECONDS", 1.0)
    monkeypatch.setattr(resource_server, "LOOKED_UP_SECONDS", 0.0)
    auth = OAuth(issuer.url, audience=AUDIENCE, client_id="mcp", client_secret="mcp-secret")
    message = request("subscriptions/listen", notifications={"toolsListChanged": True})
    headers = {name.decode(): value.decode() for name, value in mirrored(message, host=None)}
    async with open_shop(shop(issuer, auth=auth), kind) as web, asyncio.timeout(20):
        carl = issuer.sign_in("carl")
        headers |= carl.header
        async with web.http.stream("POST", web.url, json=message, headers=headers) as answer:
            assert answer.status_code == 200
            issuer.revoke(carl)
            lines = [line async for line in answer.aiter_lines() if line.startswith("data:")]
        assert "result" in json.loads(lines[-1].removeprefix("data:"))
        assert (await web.http.post(web.url, json=message, headers=headers)).status_code == 401
