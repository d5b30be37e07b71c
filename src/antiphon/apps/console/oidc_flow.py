"""The steps of a sign-in at an OpenID provider, with PKCE. Tokens are checked by joserfc."""

import base64
import hashlib
import hmac
import json
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from antiphon.outbound.http_client import HttpClient
from antiphon.protocol.inbox import Person

if TYPE_CHECKING:
    from antiphon.console import OIDC, LoginAttempt

log: logging.Logger = logging.getLogger("antiphon")

TIMEOUT = 10.0
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
"""Signatures with a provider's own key; never one that the client's secret could make."""

_FAILURES = (httpx2.HTTPError, JoseError, KeyError, TypeError, ValueError)
"""What a provider that is away, or that answers something else, makes of a sign-in."""


async def begin(oidc: "OIDC", started: "LoginAttempt", *, fresh: bool) -> Response:
    """Send the browser to the provider."""
    try:
        authorization = (await _provider(oidc))["authorization_endpoint"]
    except _FAILURES as error:
        log.error("nobody can sign in: %s (%s)", oidc.issuer, type(error).__name__)
        raise HTTPException(
            503, "Signing in is not possible now. Try again in a moment."
        ) from error
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    kept = json.dumps({"nonce": nonce, "verifier": verifier, "fresh": fresh})
    await started.remember(state, kept.encode())
    query: dict[str, str] = {
        "response_type": "code",
        "client_id": oidc.client_id,
        "redirect_uri": started.callback,
        "scope": oidc.scope,
        "state": state,
        "nonce": nonce,
        "code_challenge": _challenge(verifier),
        "code_challenge_method": "S256",
    }
    if fresh:
        query |= {"prompt": "login", "max_age": "0"}
    return RedirectResponse(f"{authorization}?{urlencode(query)}", 303)


def _challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def finish(oidc: "OIDC", query: dict[str, str], started: "LoginAttempt") -> Person | None:
    """Return who has signed in; None, with the reason in the log, when nobody has."""
    kept = await started.recall(query.get("state", ""))
    if kept is None or "code" not in query:
        log.warning("sign-in refused: %s", "unknown state" if kept is None else "no code")
        return None
    wanted: dict[str, Any] = json.loads(kept)
    try:
        claims = await _claims(oidc, query["code"], wanted, started)
        if not hmac.compare_digest(str(claims["nonce"]).encode(), wanted["nonce"].encode()):
            raise ValueError("the nonce is another one")
        return oidc.person(claims)
    except _FAILURES as error:
        reason = error if type(error) is ValueError else type(error).__name__
        log.warning("sign-in refused: %s", reason)
        return None


async def _claims(
    oidc: "OIDC", code: str, wanted: dict[str, Any], started: "LoginAttempt"
) -> dict[str, Any]:
    provider = await _provider(oidc)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": started.callback,
        "client_id": oidc.client_id,
        "code_verifier": wanted["verifier"],
    }
    secret = oidc.client_secret
    auth = (oidc.client_id, secret) if secret else httpx2.USE_CLIENT_DEFAULT
    async with HttpClient(seconds=TIMEOUT) as client:
        answer = await client.post(provider["token_endpoint"], data=form, auth=auth)
        answer.raise_for_status()
    # Without the secret, which is for the one address that needs it.
    async with HttpClient(seconds=TIMEOUT) as client:
        keys: Any = await _json(client, provider["jwks_uri"])
    token = jwt.decode(answer.json()["id_token"], KeySet.import_key_set(keys), _ALGORITHMS)
    registry = JWTClaimsRegistry(
        now=int(started.now),
        leeway=60,
        iss={"essential": True, "value": provider["issuer"]},
        aud={"essential": True, "value": oidc.client_id},
        exp={"essential": True},
        sub={"essential": True},
    )
    registry.validate(token.claims)
    claims: dict[str, Any] = token.claims
    shared = isinstance(claims["aud"], list) and len(cast("list[Any]", claims["aud"])) > 1
    if claims.get("azp") not in (oidc.client_id, *(() if shared else (None,))):
        raise ValueError("the token was made for another client")
    if wanted["fresh"] and started.now - float(claims["auth_time"]) > TIMEOUT + 60:
        raise ValueError("the provider did not ask again")
    return claims


async def _provider(oidc: "OIDC") -> dict[str, Any]:
    """Return the provider's description of itself: kept, or fetched once for all who ask."""
    return await oidc.description.get(partial(_describe, oidc))


async def _describe(oidc: "OIDC") -> dict[str, Any]:
    """Fetch the provider's description, which must name the issuer that was asked."""
    address = oidc.issuer.rstrip("/") + "/.well-known/openid-configuration"
    async with HttpClient(seconds=TIMEOUT) as client:
        found = await _json(client, address)
    if found.get("issuer", "").rstrip("/") != oidc.issuer.rstrip("/"):
        raise ValueError(f"{address} describes another issuer")
    return found


async def _json(client: HttpClient, address: str) -> dict[str, Any]:
    answer = await client.get(address)
    answer.raise_for_status()
    return answer.json()
