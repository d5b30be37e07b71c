"""An issuer that misbehaves, and settings that would let anybody stand in for it."""

import asyncio
import json
import socket
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from antiphon import ConfigError, OAuth, Principal, Server
from antiphon.integrations.oauth import authorization_server
from antiphon.integrations.oauth.resource_server import ResourceServer
from antiphon.outbound.fetching import Fetcher, ServerAway
from antiphon.outbound.http_client import MAX_REPLY
from antiphon.transports.http.access import HttpRefusal
from tests.auth.issuer import AUDIENCE

Reply = Callable[[str, Any], Awaitable[tuple[int, dict[bytes, bytes], bytes]]]


@asynccontextmanager
async def answering(reply: Reply) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers as told; gives its address and the paths that were asked for."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        status, headers, body = await reply(scope["path"], url)
        sent = [*headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": body})

    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield url, asked
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 20)


def document(url: str, **changes: str) -> bytes:
    return json.dumps({"issuer": url, "jwks_uri": f"{url}/jwks", **changes}).encode()


TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.e30.c2ln"
PLAIN: dict[bytes, bytes] = {}


async def asked(url: str) -> HttpRefusal:
    """Present a token to a resource server of this issuer."""
    server = ResourceServer(OAuth(url, audience=AUDIENCE), time.time, "/mcp")
    try:
        scope = {"headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
        found = await server.identify(scope)
    finally:
        await server.close()
    assert isinstance(found, HttpRefusal)
    return found


async def refused(reply: Reply, caplog: pytest.LogCaptureFixture) -> tuple[list[str], str]:
    async with answering(reply) as (url, paths):
        assert (await asked(url)).status == 503
    return paths, caplog.text


async def test_a_redirect_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        return 302, {b"location": b"/elsewhere"}, b""

    paths, log = await refused(reply, caplog)
    assert "/elsewhere" not in paths
    assert "status 302" in log


async def test_the_description_of_another_issuer_does_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        return 200, PLAIN, document("https://evil.example")

    paths, log = await refused(reply, caplog)
    assert "/jwks" not in paths
    assert "describes another issuer" in log


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://internal.example/jwks",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "https://user@evil.example/",
    ],
)
async def test_keys_are_never_asked_for_where_the_issuer_could_not_be(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        return 200, PLAIN, document(url, jwks_uri=address)

    _, log = await refused(reply, caplog)
    assert "jwks_uri" in log


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        (PLAIN, b"x" * (MAX_REPLY + 1), "larger than"),
        ({b"content-encoding": b"gzip"}, b"bomb", "compressed"),
        (PLAIN, b"<html>", "no JSON"),
        (PLAIN, b'{"issuer": "\xff"}', "no JSON"),
        (PLAIN, b"[1]", "no JSON object"),
        (PLAIN, b"[" * 100_000, "no JSON"),
        (PLAIN, b"{}", "another issuer"),
    ],
    ids=["giant", "compressed", "page", "no UTF-8", "list", "deep", "empty"],
)
async def test_an_answer_that_is_no_description_is_not_read_on(
    headers: dict[bytes, bytes], body: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        return 200, headers, body

    _, log = await refused(reply, caplog)
    assert reason in log


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    over = asyncio.Event()

    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        await over.wait()
        return 200, PLAIN, b"{}"

    async with answering(reply) as (url, _):
        fetcher = Fetcher(0.1)
        with pytest.raises(ServerAway, match="does not answer in"):
            await fetcher.get(url)
        over.set()
        await fetcher.close()


async def test_an_issuer_that_takes_every_request_and_answers_none_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authorization_server, "WHOLE_SECONDS", 2.0)
    over = asyncio.Event()

    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        await over.wait()
        return 200, PLAIN, b"{}"

    async with answering(reply) as (url, paths), asyncio.timeout(4.5):  # one may take 5
        server = ResourceServer(OAuth(url, audience=AUDIENCE), time.time, "/mcp")
        scope = {"headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
        many = await asyncio.gather(*(server.identify(scope) for _ in range(20)))
        assert {found.status for found in many if isinstance(found, HttpRefusal)} == {503}
        assert len(paths) == 1, "all of them share one request"
        over.set()
        await server.close()


@pytest.mark.parametrize(
    "keys",
    [
        b"[]",
        b'{"keys": 7}',
        b'{"keys": [7, null, {}, {"kty": "oct", "k": "c2VjcmV0", "kid": "k"}]}',
        b'{"keys": [{"kty": "RSA", "n": "AQAB", "kid": "k"}]}',
        b'{"keys": [{"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB", "kid": "k"}]}',
    ],
)
async def test_what_is_no_key_for_signatures_verifies_nothing(keys: bytes) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        return 200, PLAIN, keys if path == "/jwks" else document(url)

    async with answering(reply) as (url, _):
        assert (await asked(url)).status in (401, 503)


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", RSAKey.generate_key(2048)),
        ("PS512", RSAKey.generate_key(2048)),
        ("ES256", ECKey.generate_key("P-256")),
        ("ES384", ECKey.generate_key("P-384")),
        ("Ed25519", OKPKey.generate_key("Ed25519")),
        ("EdDSA", OKPKey.generate_key("Ed25519")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_issuer_is_known_by_its_own_spelling_and_signs_with_any_listed_algorithm(
    algorithm: str, key: Any
) -> None:
    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        if path == "/jwks":
            public = {**key.as_dict(private=False), "kid": "k"}
            return 200, PLAIN, json.dumps({"keys": [public]}).encode()
        return 200, PLAIN, document(url, issuer=f"{url}/")

    found: list[Any] = []
    async with answering(reply) as (url, _):
        server = ResourceServer(OAuth(url, audience=AUDIENCE), time.time, "/mcp")
        for spelled in (f"{url}/", url):
            claims = {"iss": spelled, "sub": "carl", "aud": AUDIENCE, "exp": time.time() + 60}
            header = {"alg": algorithm, "kid": "k"}
            with warnings.catch_warnings(action="ignore"):
                token = jwt.encode(header, claims, key, algorithms=[algorithm])
            scope = {"headers": [(b"authorization", f"Bearer {token}".encode())]}
            found.append(await server.identify(scope))
        await server.close()
    assert found[0].principal == Principal(f"{url}/", "carl"), "as its metadata spells it"
    assert found[1].status == 401


@pytest.mark.parametrize("named", [{"kid": "k"}, {}], ids=["one kid for both", "no kid"])
async def test_the_key_of_a_token_is_one_of_the_kind_that_its_algorithm_takes(
    named: dict[str, str],
) -> None:
    keys = {"RS256": RSAKey.generate_key(2048), "ES256": ECKey.generate_key("P-256")}
    public = [{**key.as_dict(private=False), "kid": "k"} for key in keys.values()]

    async def reply(path: str, url: Any) -> tuple[int, dict[bytes, bytes], bytes]:
        if path == "/jwks":
            return 200, PLAIN, json.dumps({"keys": public}).encode()
        return 200, PLAIN, document(url)

    async with answering(reply) as (url, _):
        server = ResourceServer(OAuth(url, audience=AUDIENCE), time.time, "/mcp")
        claims = {"iss": url, "sub": "carl", "aud": AUDIENCE, "exp": time.time() + 60}
        for algorithm, key in keys.items():
            token = jwt.encode({"alg": algorithm, **named}, claims, key, algorithms=[algorithm])
            scope = {"headers": [(b"authorization", f"Bearer {token}".encode())]}
            found = await server.identify(scope)
            assert not isinstance(found, HttpRefusal), algorithm
        await server.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"issuer": "http://id.example"}, "https"),
        ({"issuer": "id.example"}, "https"),
        ({"issuer": "https://id.example/?tenant=1"}, "query"),
        ({"issuer": "https://user@id.example"}, "@"),
        ({"issuer": "https://id.exämple\\evil.example"}, "backslash"),
        ({"audience": ""}, "any token"),
        ({"audience": "/", "resource": AUDIENCE}, "any token"),
        ({"audience": "api://shop"}, "resource="),
        ({"audience": "http://mcp.example.com/mcp"}, "https"),
        ({"audience": 'https://mcp.example.com/"mcp'}, "plain ASCII"),
        ({"audience": "https://mcp.example.com/mcp#x"}, "fragment"),
        ({"scopes": "mcp"}, "list of scopes"),
        ({"scopes": ['a"b']}, "no scope"),
        ({"client_id": "mcp"}, "go together"),
    ],
    ids=str,
)
def test_settings_that_are_not_safe_are_refused(settings: dict[str, Any], reason: str) -> None:
    good = {"issuer": "https://id.example", "audience": AUDIENCE}
    with pytest.raises(ConfigError, match=reason):
        OAuth(**{**good, **settings})


async def test_scopes_that_can_be_read_only_once_are_still_needed() -> None:
    auth = OAuth("https://id.example", audience=AUDIENCE, scopes=map(str, ["mcp"]))  # type: ignore[arg-type]
    challenge = await ResourceServer(auth, time.time, "/mcp").identify({"headers": []})
    assert isinstance(challenge, HttpRefusal)
    assert b'scope="mcp"' in challenge.headers[0][1]


def test_one_source_says_who_calls() -> None:
    auth = OAuth("https://id.example", audience=AUDIENCE)
    with pytest.raises(ConfigError, match="leave out principal="):
        Server("shop", auth=auth, principal=lambda scope: Principal())


def test_the_secret_is_not_shown() -> None:
    auth = OAuth(
        "https://id.example", audience=AUDIENCE, client_id="mcp", client_secret="of-the-shop"
    )
    assert "of-the-shop" not in repr(auth)
