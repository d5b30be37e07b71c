"""Tokens that are not valid: one fixed refusal for all, and the reason in the log."""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwe import JWERegistry
from joserfc.jwk import ECKey, RSAKey

from antiphon.protocol import failures
from tests.auth.issuer import AUDIENCE, Issuer, Tokens
from tests.auth.shop import SERVERS, open_shop, shop
from tests.transports.wire import request

Make = Callable[[Issuer], Tokens]
INVALID = (
    'Bearer error="invalid_token", '
    'resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp", '
    'scope="mcp"'
)


def encoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(issuer: Issuer, alg: str = "none", signature: bytes = b"") -> Tokens:
    header = {"alg": alg, "typ": "at+jwt", "kid": issuer.public_key()["kid"]}
    return Tokens(f"{encoded(header)}.{encoded(issuer.claims())}.{encoded(signature)}")


def keyed_with_the_public_key(issuer: Issuer) -> Tokens:
    """HS256 with what everybody knows: the public key of the issuer."""
    public = issuer.public_key()
    pem = RSAKey.import_key(public).as_pem(private=False)
    header = {"alg": "HS256", "typ": "at+jwt", "kid": public["kid"]}
    signed = f"{encoded(header)}.{encoded(issuer.claims())}"
    return Tokens(f"{signed}.{encoded(hmac.digest(pem, signed.encode(), hashlib.sha256))}")


def with_its_own_key(issuer: Issuer) -> Tokens:
    key = ECKey.generate_key("P-256")
    header = {"alg": "ES256", "typ": "at+jwt", "jwk": key.as_dict(private=False)}
    return Tokens(jwt.encode(header, issuer.claims(), key))


def by_hand(header: dict[str, Any], issuer: Issuer) -> Tokens:
    """A header that no library would write."""
    whole = {"alg": "RS256", "typ": "at+jwt", "kid": issuer.public_key()["kid"], **header}
    return Tokens(f"{encoded(whole)}.{encoded(issuer.claims())}.{encoded(b'signature')}")


def encrypted(issuer: Issuer) -> Tokens:
    """A JWE for the public key of the issuer, which anybody can make."""
    found = issuer.public_key()
    public = RSAKey.import_key({name: found[name] for name in ("kty", "n", "e")})
    header = {"alg": "RSA-OAEP", "enc": "A256GCM", "kid": found["kid"]}
    registry = JWERegistry(algorithms=[header["alg"], header["enc"]])
    return Tokens(jwt.encode(header, issuer.claims(), public, registry=registry))


def cut(issuer: Issuer) -> Tokens:
    return Tokens(issuer.sign_in("carl").access.rpartition(".")[0])


def changed(issuer: Issuer) -> Tokens:
    """The signature of a good token on other claims."""
    header, _, signature = issuer.sign_in("carl").access.split(".")
    return Tokens(f"{header}.{encoded(issuer.claims(sub='dora'))}.{signature}")


def now(seconds: float) -> int:
    return int(time.time() + seconds)


BAD: dict[str, tuple[str, Make]] = {
    "another audience": ("another audience", lambda i: i.signed(aud="https://other.example/mcp")),
    "a part of the audience": ("another audience", lambda i: i.signed(aud="https://mcp.example")),
    "no audience": ("another audience", lambda i: i.signed(aud=...)),
    "several other audiences": ("another audience", lambda i: i.signed(aud=["a", "b"])),
    "the audience in another case": (
        "another audience",
        lambda i: i.signed(aud=AUDIENCE.replace("/mcp", "/MCP")),
    ),
    "something below the audience": (
        "another audience",
        lambda i: i.signed(aud=f"{AUDIENCE}/admin"),
    ),
    "an audience inside a text": (
        "another audience",
        lambda i: i.signed(aud=f"{AUDIENCE} https://other.example"),
    ),
    "audiences that are no texts": ("another audience", lambda i: i.signed(aud=[[AUDIENCE], 7])),
    "another issuer": ("another issuer", lambda i: i.signed(iss="https://evil.example")),
    "an issuer with a slash": ("another issuer", lambda i: i.signed(iss=i.url + "/")),
    "no issuer": ("another issuer", lambda i: i.signed(iss=...)),
    "expired": ("has expired", lambda i: i.signed(exp=now(-31))),
    "no expiry": ("when it expires", lambda i: i.signed(exp=...)),
    "an expiry that is text": ("when it expires", lambda i: i.signed(exp="never")),
    "an expiry that is true": ("when it expires", lambda i: i.signed(exp=True)),
    "not yet valid": ("not valid yet", lambda i: i.signed(nbf=now(60))),
    "issued in the future": ("in the future", lambda i: i.signed(iat=now(60))),
    "no subject": ("its subject", lambda i: i.signed(sub=...)),
    "a subject that is no text": ("its subject", lambda i: i.signed(sub=["carl"])),
    "an actor that is no object": ("actor is no object", lambda i: i.signed(act="agent")),
    "an actor without a subject": ("actor has no subject", lambda i: i.signed(act={"iss": "x"})),
    "bound to a key": ("is bound to a key", lambda i: i.signed(cnf={"jkt": "x"})),
    "bound to a certificate": ("is bound to a key", lambda i: i.signed(cnf={"x5t#S256": "x"})),
    "bound to something empty": ("is bound to a key", lambda i: i.signed(cnf={})),
    "of the type DPoP": ("no bearer token", lambda i: i.signed(token_type="DPoP")),
    "encrypted": ("no JWT", encrypted),
    "alg none": ("algorithm is not accepted", unsigned),
    "alg None": ("algorithm is not accepted", lambda i: unsigned(i, "None")),
    "unsigned": ("signature does not fit", lambda i: unsigned(i, "RS256")),
    "HS256 with the public key": ("algorithm is not accepted", keyed_with_the_public_key),
    "the key of somebody else": ("signature does not fit", lambda i: i.signed(key="other")),
    "a kid that nobody has": ("no such key", lambda i: i.signed({"kid": "key-99"})),
    "a kid that is no text": ("kid is no text", lambda i: by_hand({"kid": 7}, i)),
    "a kid that is a path": ("no such key", lambda i: i.signed({"kid": "../../etc/passwd"})),
    "a key of another kind": (
        "no such key",
        lambda i: i.signed({"alg": "ES256"}, key="elliptic"),
    ),
    "its own key": ("brings its own key", with_its_own_key),
    "the address of a key": (
        "brings its own key",
        lambda i: i.signed({"jku": "https://evil.example/jwks"}),
    ),
    "the address of a certificate": (
        "brings its own key",
        lambda i: i.signed({"x5u": "https://evil.example/cert"}),
    ),
    "an ID-JAG": ("JWT of another kind", lambda i: i.signed({"typ": "oauth-id-jag+jwt"})),
    "a proof of DPoP": ("JWT of another kind", lambda i: i.signed({"typ": "dpop+jwt"})),
    "a critical extension": ("signature does not fit", lambda i: by_hand({"crit": ["x"]}, i)),
    "cut off": ("no JWT", cut),
    "changed": ("signature does not fit", changed),
    "garbage": ("no JWT", lambda i: Tokens("garbage")),
    "dots": ("no JWT", lambda i: Tokens("..")),
    "deep": ("no JWT", lambda i: Tokens(f"{encoded(b'[' * 5000)}.e30.e30")),
    "giant": ("longer than", lambda i: Tokens("a" * 20_000)),
    "a name that no store can keep": (
        "the name of a caller is longer",
        lambda i: i.signed(sub="x" * 3_000),
    ),
}


async def test_every_bad_token_is_refused_alike_and_the_log_has_its_reason(
    issuer: Issuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "EVERY", -1.0)  # otherwise many share a line
    caplog.set_level(logging.INFO)
    async with open_shop(shop(issuer)) as web:
        for name, (reason, make) in BAD.items():
            bad = make(issuer)
            caplog.clear()
            answer = await web.call("whoami", bad)
            told = (answer.status_code, answer.text, answer.headers["www-authenticate"])
            assert told == (401, "The access token is not valid.", INVALID), name
            assert reason in caplog.text, (name, caplog.text)
            for part in bad.access.split("."):
                assert len(part) < 8 or part not in caplog.text, f"{name}: a token in the log"
        assert await web.text("whoami", issuer.signed()) == "carl/laptop/"


@pytest.mark.parametrize("kind", SERVERS)
async def test_every_path_of_the_endpoint_refuses_a_bad_token_and_none(
    issuer: Issuer, kind: str
) -> None:
    listen = request("subscriptions/listen", notifications={"toolsListChanged": True})
    opening = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "old", "version": "1"},
        },
    }
    bad = issuer.signed(aud="https://other.example/mcp")
    async with open_shop(shop(issuer), kind) as web:
        carl = await web.old(issuer.sign_in("carl")).open()
        for tokens in (bad, None):
            own: dict[str, str] = tokens.header if tokens is not None else {}
            session = {**carl.headers(), "authorization": ""} | own
            if tokens is None:
                del session["authorization"]
            answers = [
                await web.call("whoami", tokens),
                await web.send(request("tools/list"), tokens),
                await web.send(request("tasks/get", taskId="0" * 48), tokens),
                await web.send(listen, tokens),
                await web.http.post(web.url, json=opening, headers=own),
                await web.http.post(web.url, json=opening, headers=session),
                await web.http.get(web.url, headers=session),
                await web.http.delete(web.url, headers=session),
                await web.http.put(web.url, headers=own),
                await web.http.options(web.url, headers=own),
                await web.http.post(web.url, content=b"{", headers=own),
            ]
            assert [answer.status_code for answer in answers] == [401] * len(answers)
            assert len({answer.headers["www-authenticate"] for answer in answers}) == 1
        assert await carl.text("whoami") == "carl/laptop/", "its session is still there"


async def test_without_a_token_the_challenge_names_no_error(issuer: Issuer) -> None:
    async with open_shop(shop(issuer)) as web:
        answer = await web.call("whoami", None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == INVALID.replace('error="invalid_token", ', "")


async def test_other_schemes_and_other_places_for_a_token_are_refused(issuer: Issuer) -> None:
    good = issuer.sign_in("carl").access
    schemes = [
        "Basic Y2FybDpwdw==",
        f"DPoP {good}",
        "Bearer",
        "Bearer a b",
        "bearer\tx",
        "Bearer ä",
    ]
    async with open_shop(shop(issuer)) as web:
        for scheme in schemes:
            sent = {b"authorization": scheme.encode()}
            answer = await web.http.post(web.url, json=request(name="whoami"), headers=sent)
            assert answer.status_code == 401, scheme
        there = f"{web.url}?access_token={good}"
        answer = await web.http.post(there, json=request(name="whoami"))
        assert answer.status_code == 401
        twice = [("authorization", f"Bearer {good}"), ("authorization", "Bearer other")]
        answer = await web.http.post(web.url, json=request(name="whoami"), headers=twice)
        assert answer.status_code == 400


ACCEPTED: list[dict[str, Any]] = [
    {"exp": -10},
    {"nbf": 15},
    {"iat": 15},
    {"aud": ["https://other.example", AUDIENCE]},
    {"aud": AUDIENCE + "/"},
    {"client_id": ..., "azp": "laptop"},
    {"scope": ..., "scp": ["mcp", "more"]},
    {"exp": 10**30},
    {"header": {"typ": "JWT"}},
    {"header": {"typ": None}},
    {"header": {"kid": None}},
    {"header": {"x-own": "1"}},
]


async def test_what_differs_within_the_rules_is_accepted(issuer: Issuer) -> None:
    async with open_shop(shop(issuer)) as web:
        for changes in ACCEPTED:
            # A small number is one of seconds from now.
            said: dict[str, Any] = {
                name: now(value) if isinstance(value, int) and value < 1_000 else value
                for name, value in changes.items()
            }
            answer = await web.call("whoami", issuer.signed(**said))
            assert answer.status_code == 200, (changes, answer.text)
