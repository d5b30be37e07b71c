"""The agent that acts for a person, however the server learns of it."""

from typing import Any

import pytest
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from antiphon import Context, Principal, Server
from antiphon.protocol.credentials import actors_of
from antiphon.testing import KEY
from tests.transports.wire import post, request

ISSUER = "https://id.example"


def user(act: Any = None) -> AuthenticatedUser:
    claims = {"iss": ISSUER, **({} if act is None else {"act": act})}
    token = AccessToken(
        token="t", client_id="laptop", scopes=["mcp"], subject="carl", claims=claims
    )
    return AuthenticatedUser(token)


def telling(**settings: Any) -> Server:
    server = Server("shop", environ={"ANTIPHON_KEYS": KEY}, **settings)

    @server.tool
    async def whoami(ctx: Context) -> str:
        return f"{ctx.principal.subject}/{ctx.principal.actor}"

    return server


@pytest.mark.parametrize(
    ("act", "status", "told"),
    [
        (None, 200, "carl/"),
        ({"sub": "agent"}, 200, f"carl/{ISSUER} agent"),
        ({"sub": "an agent", "iss": "https://b.example"}, 200, "carl/https://b.example an%20agent"),
        ({"sub": "agent", "act": {"sub": "before"}}, 200, f"carl/{ISSUER} agent"),
        ("agent", 401, ""),
        ({"iss": "https://b.example"}, 401, ""),
        ({}, 401, ""),
    ],
)
async def test_the_official_bearer_check_names_the_agent(act: Any, status: int, told: str) -> None:
    server = telling()
    async with server.running():
        message = request(name="whoami", arguments={})
        answer = await post(server.asgi(), message, user=user(act))
    assert answer.status == status
    if status == 200:
        assert answer.result["content"][0]["text"] == told


async def test_a_function_may_name_the_agent() -> None:
    server = telling(principal=lambda scope: Principal("shop", "carl", actor="bot"))
    async with server.running():
        answer = await post(server.asgi(), request(name="whoami", arguments={}))
    assert answer.result["content"][0]["text"] == "carl/bot"


def test_agents_of_different_issuers_have_different_names() -> None:
    one, other = {"sub": "b c", "iss": "a"}, {"sub": "c", "iss": "a b"}
    assert actors_of({"act": one}, "x") != actors_of({"act": other}, "x")


def test_the_agents_before_the_current_one_are_known() -> None:
    claims = {"act": {"sub": "now", "act": {"sub": "before", "act": {"sub": "first"}}}}
    assert actors_of(claims, "x") == ("x now", "x before", "x first")


@pytest.mark.parametrize(
    "act", [{"sub": "now", "act": "before"}, {"sub": "now", "act": {"iss": "x"}}]
)
def test_an_agent_before_the_current_one_that_cannot_be_told_is_refused(act: Any) -> None:
    with pytest.raises(ValueError, match="its actor"):
        actors_of({"act": act}, "x")


def test_a_token_that_nests_agents_without_end_is_refused() -> None:
    act: dict[str, Any] = {"sub": "agent"}
    for _ in range(100):
        act = {"sub": "agent", "act": act}
    with pytest.raises(ValueError, match="too many"):
        actors_of({"act": act}, "x")


def test_the_names_of_callers_without_an_agent_stay_as_they_were() -> None:
    assert Principal("i", "s", "c").owner == "i s c"
    owners = {
        Principal("i", "s", "c").owner,
        Principal("i", "s", "c", actor="a").owner,
        Principal("i", "s", "", actor="a").owner,
        Principal("i", "s", "a").owner,
        Principal("i", "s", "c a").owner,
    }
    assert len(owners) == 5
