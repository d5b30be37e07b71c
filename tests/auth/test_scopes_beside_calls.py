"""Scopes also stand before what is not a call: completion, subscriptions, and shared caches."""

import json
from typing import Any

import pytest

from antiphon import CachePolicy, Server
from tests.auth.issuer import Issuer, Tokens
from tests.auth.shop import SERVERS, Web, open_shop, shop
from tests.transports.wire import mirrored, request

PLAN, SECRET = "plan://today", "note://7"


def archive(issuer: Issuer) -> Server:
    """A shop whose notes and letters need a scope each, and a plan that does not."""
    server = shop(issuer)

    @server.prompt(scopes=["letters"])
    def letter(customer: str) -> str:
        return customer

    @server.completion("letter", "customer")
    def customers(value: str) -> list[str]:
        return ["Ada Lovelace"]

    @server.resource("note://{id}", scopes=["notes"], cache=CachePolicy(60, "public"))
    def note(id: str) -> str:
        return id

    @server.completion("note://{id}", "id")
    def ids(value: str) -> list[str]:
        return ["7"]

    @server.resource(PLAN, cache=CachePolicy(60, "public"))
    def plan() -> str:
        return "today"

    return server


COMPLETED: list[tuple[dict[str, Any], str]] = [
    (
        {
            "ref": {"type": "ref/prompt", "name": "letter"},
            "argument": {"name": "customer", "value": ""},
        },
        "letters mcp",
    ),
    (
        {
            "ref": {"type": "ref/resource", "uri": "note://{id}"},
            "argument": {"name": "id", "value": ""},
        },
        "mcp notes",
    ),
]


@pytest.mark.parametrize("kind", SERVERS)
async def test_completing_an_argument_needs_the_scopes_of_what_it_belongs_to(
    issuer: Issuer, kind: str
) -> None:
    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp letters notes")
    async with open_shop(archive(issuer), kind) as web:
        old = await web.old(few).open()
        for params, needed in COMPLETED:
            message = old.request("completion/complete", params)
            for refused in (
                await web.send(request("completion/complete", **params), few),
                await web.http.post(web.url, json=message, headers=old.headers()),
            ):
                assert refused.status_code == 403, refused.text
                assert f'scope="{needed}"' in refused.headers["www-authenticate"]
            allowed = await web.send(request("completion/complete", **params), more)
            assert len(allowed.json()["result"]["completion"]["values"]) == 1


async def test_a_session_subscribes_to_a_resource_with_its_scopes_only(issuer: Issuer) -> None:
    async with open_shop(archive(issuer)) as web:
        old = await web.old(issuer.sign_in("carl")).open()
        message = old.request("resources/subscribe", {"uri": SECRET})
        refused = await web.http.post(web.url, json=message, headers=old.headers())
        assert refused.status_code == 403
        assert 'scope="mcp notes"' in refused.headers["www-authenticate"]
        assert "result" in await old.call("resources/subscribe", {"uri": PLAN})
        old.tokens = issuer.sign_in("carl", "mcp notes")
        assert "result" in await old.call("resources/subscribe", {"uri": SECRET})


async def test_a_resource_whose_scopes_are_lacking_is_left_out_of_what_is_listened_to(
    issuer: Issuer,
) -> None:
    async with open_shop(archive(issuer)) as web:
        few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp notes")
        assert await _accepted(web, few) == [PLAN]
        assert await _accepted(web, more) == [PLAN, SECRET]


async def test_what_needs_a_scope_is_not_shared_by_caches(issuer: Issuer) -> None:
    more = issuer.sign_in("carl", "mcp notes")
    async with open_shop(archive(issuer)) as web:
        for uri, shared in ((PLAN, "public"), (SECRET, "private")):
            answer = await web.send(request("resources/read", uri=uri), more)
            assert answer.json()["result"]["cacheScope"] == shared


async def _accepted(web: Web, tokens: Tokens) -> list[str]:
    wanted = {"resourceSubscriptions": [PLAN, SECRET]}
    message = request("subscriptions/listen", notifications=wanted)
    headers = {name.decode(): value.decode() for name, value in mirrored(message, host=None)}
    headers |= tokens.header
    async with web.http.stream("POST", web.url, json=message, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                said = json.loads(line.removeprefix("data:"))
                return said["params"]["notifications"]["resourceSubscriptions"]
    raise AssertionError("no acknowledgement")
