"""Signing in at an OpenID provider: a real one on loopback, which can be told to misbehave."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from antiphon import ConfigError
from antiphon.console import OIDC
from tests.console.console_inbox import ConsoleInbox, go_to_place

SECRET = "the-client-s-secret-that-only-one-address-may-see"


class Provider:
    """An OpenID provider with one user."""

    def __init__(self) -> None:
        self.key: Any = ECKey.generate_key("P-256", {"kid": "1"})
        self.signing: Any = self.key
        self.header: dict[str, Any] = {"alg": "ES256", "kid": "1"}
        self.changes: dict[str, Any] = {}
        self.named = ""
        self.authorized: dict[str, str | None] = {}
        """The `Authorization` header that came to each path."""

        self.asked: dict[str, str] = {}
        self.described = 0
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.authorized[self.path] = self.headers.get("authorization")
                self._send(provider.about() if "well-known" in self.path else provider.keys())

            def do_POST(self) -> None:
                provider.authorized[self.path] = self.headers.get("authorization")
                self.rfile.read(int(self.headers["content-length"]))
                self._send({"id_token": provider.token(), "access_token": "x"})

            def _send(self, value: Any) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.http.server_port}"

    def about(self) -> dict[str, str]:
        self.described += 1
        return {
            "issuer": self.named or self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def keys(self) -> Any:
        return {"keys": [self.key.as_dict(private=False)]}

    def token(self) -> str:
        claims = {
            "iss": self.issuer, "sub": "anna", "aud": "console", "exp": 1_800_000_600,
            "iat": 1_800_000_000, "nonce": self.asked["nonce"], "groups": ["grp-finance"],
            "name": "Anna Berg",
        }  # fmt: skip
        claims = {name: v for name, v in (claims | self.changes).items() if v is not None}
        return jwt.encode(self.header, claims, self.signing, algorithms=["ES256", "HS256", "none"])


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def desk_of(provider: Provider) -> ConsoleInbox:
    login = OIDC(provider.issuer, client_id="console", client_secret=SECRET)
    return ConsoleInbox(login=login, roles={"finance": "grp-finance"})


async def begin(provider: Provider, browser: httpx.AsyncClient) -> dict[str, str]:
    """Go to the provider; returns the query that comes back with the person."""
    answer = await browser.get("/console/login", params={"next": "/console/ask/abc"})
    assert answer.status_code == 303
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    provider.asked = {name: values[0] for name, values in query.items()}
    return {"state": provider.asked["state"], "code": "code"}


async def finish(browser: httpx.AsyncClient, back: dict[str, str]) -> httpx.Response:
    return await browser.get("/console/login/callback", params=back)


async def test_a_person_signs_in_with_the_roles_of_their_groups(provider: Provider) -> None:
    held_inbox = desk_of(provider)
    item = await held_inbox.put()
    async with held_inbox.browser() as anna:
        back = await begin(provider, anna)
        assert provider.asked["code_challenge_method"] == "S256"
        answer = await finish(anna, back)
        assert (answer.status_code, answer.headers["location"][-16:]) == (303, "/console/ask/abc")
        go_to_place(anna, answer)
        assert "Approve" in (await anna.get(f"/console/ask/{item.id}")).text
        assert (await finish(anna, back)).status_code == 403, "a state is good once"
    assert provider.authorized["/token"] is not None
    assert provider.authorized["/keys"] is None, "the secret is for the token endpoint alone"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "KeyError"),
        ({"aud": "another"}, "Claim"),
        ({"aud": ["console", "another"]}, "another client"),
        ({"azp": "another"}, "another client"),
        ({"iss": "https://another.example"}, "Claim"),
        ({"exp": 1_700_000_000}, "Expired"),
        ({"exp": None}, "Claim"),
        ({"sub": None}, "Claim"),
    ],
    ids=str,
)
async def test_a_token_that_is_not_for_this_sign_in_is_refused(
    provider: Provider,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    why: str,
) -> None:
    provider.changes = changes
    await refused(provider)
    [record] = [one for one in caplog.records if "sign-in refused" in one.getMessage()]
    assert why in record.getMessage()
    assert record.levelno == logging.WARNING
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ({"alg": "HS256"}, OctKey.import_key(SECRET)),
        ({"alg": "none"}, OctKey.import_key(SECRET)),
        ({"alg": "ES256", "kid": "1"}, ECKey.generate_key("P-256")),
    ],
    ids=["the client's secret", "none", "another key"],
)
async def test_a_token_that_the_provider_did_not_sign_is_refused(
    provider: Provider, header: dict[str, Any], key: Any
) -> None:
    provider.header, provider.signing = header, key
    await refused(provider)


async def refused(provider: Provider) -> None:
    held_inbox = desk_of(provider)
    async with held_inbox.browser() as anna:
        back = await begin(provider, anna)
        assert (await finish(anna, back)).status_code == 403
        assert "antiphon-console-8401" not in anna.cookies
        assert (await anna.get("/console/inbox")).status_code == 303


async def test_a_sign_in_ends_in_the_browser_that_began_it(provider: Provider) -> None:
    held_inbox = desk_of(provider)
    async with held_inbox.browser() as anna, held_inbox.browser() as eve:
        back = await begin(provider, anna)
        assert (await finish(eve, back)).status_code == 403
        assert (await finish(anna, back)).status_code == 303


async def test_a_provider_that_is_away_or_another_one_is_said_so(provider: Provider) -> None:
    held_inbox = desk_of(provider)
    provider.named = "https://another.example"
    async with held_inbox.browser() as anna:
        answer = await anna.get("/console/login")
        assert answer.status_code == 503
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    away = ConsoleInbox(login=OIDC("http://127.0.0.1:9", client_id="console"))
    async with away.browser() as anna:
        assert (await anna.get("/console/login")).status_code == 503


@pytest.mark.parametrize("issuer", ["http://id.example", "id.example", "ftp://127.0.0.1", ""])
def test_a_provider_is_reached_over_tls(issuer: str) -> None:
    with pytest.raises(ConfigError, match="https"):
        OIDC(issuer, client_id="console")


async def test_beginning_to_sign_in_keeps_no_row_and_asks_the_provider_once(
    provider: Provider,
) -> None:
    desk = desk_of(provider)
    rows: Any = desk.store
    for _ in range(40):
        async with desk.browser() as stranger:
            await begin(provider, stranger)
    assert rows._sessions == {}
    assert provider.described == 1


async def test_a_provider_that_is_away_is_not_asked_by_everybody(provider: Provider) -> None:
    provider.named = "https://another.example"
    desk = desk_of(provider)
    async with desk.browser() as stranger:
        for _ in range(20):
            assert (await stranger.get("/console/login")).status_code == 503
    assert provider.described == 1


async def test_a_login_under_way_cannot_be_changed_kept_or_moved(provider: Provider) -> None:
    desk = desk_of(provider)
    async with desk.browser() as anna:
        back = await begin(provider, anna)
        (name,) = list(anna.cookies)
        value = str(anna.cookies[name])
        for changed in (value[:-2] + ("AA" if value[-2:] != "AA" else "BB"), "", "x" * 3_000):
            async with desk.browser() as other:
                other.cookies.set(name, changed)
                assert (await finish(other, back)).status_code == 403
        second = await begin(provider, anna)
        async with desk.browser() as other:
            moved = next(one for one in anna.cookies if one != name)
            other.cookies.set(moved, value)
            assert (await finish(other, second)).status_code == 403
        desk.clock.now += 601
        assert (await finish(anna, second)).status_code == 403


async def test_several_tabs_sign_in_and_their_cookies_are_bounded(provider: Provider) -> None:
    desk = desk_of(provider)
    async with desk.browser() as anna:
        first = await begin(provider, anna)
        asked = provider.asked
        await begin(provider, anna)
        provider.asked = asked
        assert (await finish(anna, first)).status_code == 303
    async with desk.browser() as busy:
        for _ in range(9):
            await begin(provider, busy)
        assert len(list(busy.cookies)) <= 4


async def test_a_long_way_back_is_not_kept(provider: Provider) -> None:
    desk = desk_of(provider)
    async with desk.browser() as stranger:
        path = "/console/" + "x" * 3_000
        answer = await stranger.get("/console/login", params={"next": path})
        assert answer.status_code == 303
        assert all(len(str(cookie.value)) < 1_000 for cookie in stranger.cookies.jar)
