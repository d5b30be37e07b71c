"""How the authorization server is asked: rotation, revocation, what is remembered and how long."""

import asyncio
import logging
import time
from typing import Any

import pytest

from antiphon import OAuth
from antiphon.integrations.oauth import authorization_server, resource_server
from antiphon.integrations.oauth.resource_server import ResourceServer
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller
from tests.auth.issuer import AUDIENCE, Issuer, Tokens
from tests.auth.shop import open_shop, shop


class Clock:
    """The time of the machine, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class Door:
    """A resource server without an endpoint."""

    def __init__(self, issuer: Issuer, **settings: Any) -> None:
        self.clock = Clock()
        settings = {"audience": AUDIENCE, "scopes": ["mcp"], **settings}
        self.server = ResourceServer(OAuth(issuer.url, **settings), self.clock, "/mcp")

    async def __aenter__(self) -> "Door":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    async def ask(self, tokens: Tokens) -> IdentifiedCaller | HttpRefusal:
        header = [(b"authorization", tokens.header["authorization"].encode())]
        return await self.server.identify({"headers": header})

    async def status(self, tokens: Tokens) -> int:
        found = await self.ask(tokens)
        return found.status if isinstance(found, HttpRefusal) else 200


def introspecting(issuer: Issuer) -> Door:
    return Door(issuer, client_id="mcp", client_secret="mcp-secret")


# --- keys ---------------------------------------------------------------------------------------


async def test_a_rotated_key_is_found_and_the_old_one_counts_while_it_is_published(
    issuer: Issuer,
) -> None:
    async with Door(issuer) as door:
        before = issuer.sign_in("carl")
        assert await door.status(before) == 200
        door.clock.ahead += 6  # the keys were fetched a moment ago
        issuer.rotate(keep=True)
        after = issuer.sign_in("carl")
        assert [await door.status(after), await door.status(before)] == [200, 200]


async def test_a_withdrawn_key_ends_when_what_was_verified_is_forgotten(issuer: Issuer) -> None:
    async with Door(issuer) as door:
        before = issuer.sign_in("carl")
        assert await door.status(before) == 200
        issuer.rotate(keep=False)
        door.clock.ahead += 6
        assert await door.status(issuer.sign_in("carl")) == 200, "the new key is known"
        door.clock.ahead += resource_server.KEPT_SECONDS
        assert await door.status(before) == 401


async def test_tokens_of_unknown_keys_make_few_requests_to_the_authorization_server(
    issuer: Issuer,
) -> None:
    async with Door(issuer) as door:
        good = issuer.sign_in("carl")
        assert await door.status(good) == 200
        before = issuer.counts()["jwks"]
        bad = [issuer.signed({"kid": f"nobody-{number}"}) for number in range(20)]
        assert await asyncio.gather(*map(door.status, bad)) == [401] * 20
        door.clock.ahead += 6
        assert await asyncio.gather(*map(door.status, bad)) == [401] * 20
        assert issuer.counts()["jwks"] - before == 1, "one for all that came within five seconds"
        assert await door.status(good) == 200


async def test_many_first_requests_share_one_fetch_of_the_keys(issuer: Issuer) -> None:
    people = [issuer.signed(sub=f"person-{number}") for number in range(20)]
    before = issuer.counts()
    async with Door(issuer) as door:
        assert await asyncio.gather(*map(door.status, people)) == [200] * 20
    after = issuer.counts()
    assert (after["jwks"] - before["jwks"], after["metadata"] - before["metadata"]) == (1, 1)


async def test_one_who_leaves_while_keys_are_fetched_takes_nothing_from_the_others(
    issuer: Issuer,
) -> None:
    async with Door(issuer) as door:
        first = asyncio.create_task(door.status(issuer.sign_in("carl")))
        second = asyncio.create_task(door.status(issuer.sign_in("dora")))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 200


async def test_keys_are_fetched_anew_in_the_background_and_end_when_they_cannot_be(
    issuer: Issuer,
) -> None:
    async with Door(issuer) as door:
        assert await door.status(issuer.sign_in("carl")) == 200
        issuer.away()
        try:
            door.clock.ahead += 301
            lasting: dict[str, Any] = {"exp": int(time.time()) + 10_000, "iat": int(time.time())}
            assert await door.status(issuer.signed(**lasting)) == 200, "the keys still count"
            door.clock.ahead += 3_600
            assert await door.status(issuer.signed(**lasting, jti="2")) == 503
        finally:
            issuer.away(away=False)
        door.clock.ahead += 6
        assert await door.status(issuer.signed(**lasting, jti="4")) == 200


async def test_a_key_that_was_withdrawn_while_nobody_called_does_not_count(issuer: Issuer) -> None:
    async with Door(issuer) as door:
        assert await door.status(issuer.sign_in("carl")) == 200
        stolen = issuer.signed(exp=int(time.time()) + 10_000)
        issuer.rotate(keep=False)
        door.clock.ahead += 3_500
        assert await door.status(stolen) == 401, "the issuer answers: its keys of now count"


async def test_closing_ends_the_request_for_keys_that_is_under_way(issuer: Issuer) -> None:
    async with Door(issuer) as door:
        assert await door.status(issuer.sign_in("carl")) == 200
        door.clock.ahead += 301
        assert await door.status(issuer.signed()) == 200
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "antiphon keys"]
        assert len(tasks) == 1, "in the background"
    assert tasks[0].done()


async def test_an_issuer_that_is_away_for_long_is_not_waited_for_again_and_again(
    issuer: Issuer,
) -> None:
    async with Door(issuer) as door:
        lasting: dict[str, Any] = {"exp": int(time.time()) + 10_000}
        assert await door.status(issuer.signed(**lasting)) == 200
        issuer.away()
        try:
            door.clock.ahead += 1_000
            assert await door.status(issuer.signed(**lasting, jti="1")) == 200
            door.clock.ahead += 6
            asked = door.ask(issuer.signed(**lasting, jti="2"))
            before = issuer.counts()["metadata"]
            assert isinstance(await asked, IdentifiedCaller)
            assert issuer.counts()["metadata"] == before, "asked again, but not waited for"
        finally:
            issuer.away(away=False)


async def test_an_authorization_server_that_is_away_is_asked_every_few_seconds_only(
    issuer: Issuer,
) -> None:
    issuer.away()
    try:
        async with Door(issuer) as door:
            before = issuer.counts()["metadata"]
            for _ in range(5):
                assert await door.status(issuer.signed()) == 503
            assert issuer.counts()["metadata"] - before == 1
            issuer.away(away=False)
            door.clock.ahead += 6
            assert await door.status(issuer.signed()) == 200
    finally:
        issuer.away(away=False)


# --- what is remembered -------------------------------------------------------------------------


async def test_a_verified_token_expires_although_it_is_remembered(issuer: Issuer) -> None:
    async with Door(issuer) as door:
        brief = issuer.signed(exp=int(time.time()) + 10)
        assert await door.status(brief) == 200
        door.clock.ahead += 41
        assert await door.status(brief) == 401


async def test_a_clock_that_was_set_back_makes_nothing_of_the_memory_count(issuer: Issuer) -> None:
    async with Door(issuer) as door:
        good = issuer.sign_in("carl")
        assert await door.status(good) == 200
        door.clock.ahead -= 3_600
        assert await door.status(good) == 401, "it was issued in the future"


async def test_what_is_remembered_is_bounded_and_holds_no_token(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_server, "KEPT", 3)
    async with Door(issuer) as door:
        people = [issuer.signed(sub=f"person-{number}") for number in range(5)]
        for tokens in people:
            assert await door.status(tokens) == 200
        kept = door.server._verified  # pyright: ignore[reportPrivateUsage]
        assert len(kept) == 3
        assert all(tokens.access not in repr(vars(door.server)) for tokens in people)


# --- introspection ------------------------------------------------------------------------------


async def test_a_token_is_looked_up_and_a_revoked_one_is_refused_within_seconds(
    issuer: Issuer,
) -> None:
    async with introspecting(issuer) as door:
        carl = issuer.sign_in("carl")
        agent = issuer.act_for(carl)
        found = await door.ask(carl)
        assert isinstance(found, IdentifiedCaller)
        assert (found.principal.subject, found.principal.client_id) == ("carl", "laptop")
        acting = await door.ask(agent)
        assert isinstance(acting, IdentifiedCaller)
        assert acting.principal.actor == f"{issuer.url} agent"
        before = issuer.counts()["introspection"]
        assert await door.status(carl) == 200
        assert issuer.counts()["introspection"] == before, "it was looked up a moment ago"
        issuer.revoke(carl)
        door.clock.ahead += resource_server.LOOKED_UP_SECONDS
        assert await door.status(carl) == 401
        assert await door.status(Tokens("opaque-and-unknown")) == 401


async def test_requests_with_one_token_at_once_share_one_lookup(issuer: Issuer) -> None:
    async with introspecting(issuer) as door:
        carl = issuer.sign_in("carl")
        before = issuer.counts().get("introspection", 0)
        gone = asyncio.create_task(door.ask(carl))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(door.status(carl)) for _ in range(30)]
        await asyncio.sleep(0)
        gone.cancel()
        assert await asyncio.gather(*waiting) == [200] * 30, "one who leaves takes nothing away"
        assert issuer.counts()["introspection"] - before == 1
        unknown = [door.status(Tokens("opaque-and-unknown")) for _ in range(30)]
        assert await asyncio.gather(*unknown) == [401] * 30
        assert issuer.counts()["introspection"] - before == 2


async def test_invented_tokens_keep_no_known_caller_out_and_are_few_at_once(
    issuer: Issuer,
) -> None:
    async with introspecting(issuer) as door:
        carl = issuer.sign_in("carl")
        assert await door.status(carl) == 200
        door.clock.ahead += resource_server.LOOKED_UP_SECONDS  # looked up again from here on
        before = issuer.counts()["introspection"]
        flood = [asyncio.create_task(door.status(Tokens(f"invented-{n}"))) for n in range(200)]
        await asyncio.sleep(0)
        assert await door.status(carl) == 200
        told = await asyncio.gather(*flood)
        assert sorted(set(told)) == [401, 503]
        assert told.count(401) == authorization_server.UNKNOWN_LOOKUPS
        asked = issuer.counts()["introspection"] - before
        assert asked == authorization_server.UNKNOWN_LOOKUPS + 1
        assert await door.status(Tokens("invented-0")) == 401
        assert issuer.counts()["introspection"] - before == asked, "it was not active a moment ago"


async def test_a_lookup_that_fails_is_no_refusal_of_the_token(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    carl = issuer.sign_in("carl")
    async with Door(issuer, client_id="mcp", client_secret="wrong") as door:
        found = await door.ask(carl)
    assert isinstance(found, HttpRefusal)
    assert (found.status, dict(found.headers)[b"retry-after"]) == (503, b"5")
    assert "introspect answers with status 401" in caplog.text
    assert "wrong" not in caplog.text
    assert carl.access not in caplog.text


async def test_revocation_is_noticed_between_the_rounds_of_a_call(issuer: Issuer) -> None:
    auth = OAuth(
        issuer.url, audience=AUDIENCE, scopes=["mcp"], client_id="mcp", client_secret="mcp-secret"
    )
    clock = Clock()
    async with open_shop(shop(issuer, auth=auth, clock=clock)) as web:
        carl = issuer.sign_in("carl")
        asked = await web.result("order", carl)
        ((key, _),) = asked["inputRequests"].items()
        given = {key: {"action": "accept", "content": {"size": "M"}}}
        issuer.revoke(carl)
        clock.ahead += resource_server.LOOKED_UP_SECONDS
        state = asked["requestState"]
        again = await web.call("order", carl, requestState=state, inputResponses=given)
        assert again.status_code == 401
        fresh = issuer.sign_in("carl")
        done = await web.text("order", fresh, requestState=state, inputResponses=given)
        assert done == "carl ordered M"


async def test_no_line_of_the_log_holds_a_token(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    carl = issuer.sign_in("carl", "mcp refunds:write")
    async with open_shop(shop(issuer)) as web:
        old = await web.old(carl).open()
        assert await old.text("order") is not None
        await web.result("order", carl)
        await web.call("refund", issuer.sign_in("carl"))
    ours = "\n".join(record.getMessage() for record in caplog.records)
    assert carl.access not in ours
    assert carl.access.rpartition(".")[2] not in ours
