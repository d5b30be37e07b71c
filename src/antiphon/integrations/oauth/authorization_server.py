"""The authorization server as a resource server needs it: its keys and its introspection endpoint.

Keys are fetched when the first token comes, fetched anew from time to time, and at once, but not
more often than every few seconds, for a token of a key that is not known: that is how a rotated key
is noticed. However many tokens wait, one request is under way. Tokens do not wait while keys are
fetched anew, unless nobody has called for long: a key that was withdrawn meanwhile must not count.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from joserfc.jwk import Key
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls

from antiphon.auth import OAuth, check_endpoint
from antiphon.integrations.oauth.grants import TokenInvalid
from antiphon.integrations.oauth.keys import PublicKeys, TokenHeader
from antiphon.outbound.fetching import SECONDS, Fetcher, ServerAway
from antiphon.protocol.failures import OccasionalLog

FRESH_SECONDS = 300.0
"""After that keys are fetched anew, while those that are there still count."""

OVERDUE_SECONDS = 600.0
"""Keys that were not fetched anew for so long, because no token came, are waited for."""

STALE_SECONDS = 3_600.0
"""Keys that could not be fetched anew for so long do not count any more."""

WHOLE_SECONDS = 2 * SECONDS
"""For the description, which may be at one of several addresses, and the keys together."""

UNKNOWN_LOOKUPS = 8
"""Tokens looked up at once that were never good here; a further one is refused at once."""

INACTIVE_SECONDS, INACTIVE_KEPT = 5.0, 4_096
"""For how long, and of how many tokens, it is remembered that they are not active."""

REFETCH_SECONDS = 5.0
"""Between two requests for keys, whatever tokens say."""

_log = logging.getLogger("antiphon.auth")


class Described(NamedTuple):
    """What an authorization server says of itself (RFC 8414)."""

    issuer: str
    jwks: str
    introspection: str


class _Fetched(NamedTuple):
    described: Described
    keys: PublicKeys
    at: float


class AuthorizationServer:
    """One authorization server."""

    def __init__(self, settings: OAuth, clock: Callable[[], float], fetcher: Fetcher) -> None:
        self._settings = settings
        self._clock = clock
        self._fetcher = fetcher
        self._held: _Fetched | None = None
        self._fetching: asyncio.Task[_Fetched] | None = None
        self._asked_at = float("-inf")
        self._failing = False
        """Whether the last request for keys failed: then nobody waits for another one in vain."""

        self._lookups: dict[bytes, asyncio.Task[Mapping[str, Any]]] = {}
        """What is being looked up, by the digest of the token."""

        self._unknown: set[bytes] = set()
        """Those of them that were never good here."""

        self._inactive: dict[bytes, float] = {}
        """Until when a token that is not active is not looked up again, by its digest."""

        self._occasionally = OccasionalLog(_log, clock)

    async def described(self) -> Described:
        """Return where things are.

        Raises:
            ServerAway: It cannot be known.
        """
        return (await self._current()).described

    async def key(self, header: TokenHeader) -> Key:
        """Return the key that a token names.

        Raises:
            TokenInvalid: There is none.
            ServerAway: The keys cannot be had.
        """
        found = (await self._current()).keys.find(header)
        if found is None and (self._fetching is not None or self._may_ask()):
            found = (await self._fetched()).keys.find(header)
        if found is None:
            raise TokenInvalid("the authorization server has no such key")
        return found

    async def introspect(self, token: str, *, known: bool = False) -> Mapping[str, Any]:
        """Look a token up (RFC 7662).

        Args:
            token: As it was presented.
            known: Whether it was good before. Unknown tokens have few places of their own, so that
                inventing tokens keeps no known caller out.

        Raises:
            TokenInvalid: It is not active.
            ServerAway: It cannot be known.
        """
        # However many requests bring the same token at once, it is looked up once.
        key, loop = sha256(token.encode()).digest(), asyncio.get_running_loop()
        if self._clock() < self._inactive.get(key, float("-inf")):
            raise TokenInvalid("the authorization server has just said that it is not active")
        asking = self._lookups.get(key)
        if asking is None or asking.get_loop() is not loop:
            if not known:
                if len(self._unknown) >= UNKNOWN_LOOKUPS:
                    raise ServerAway("too many unknown tokens are being looked up")
                self._unknown.add(key)
            asking = loop.create_task(self._look_up(token), name="antiphon introspection")
            self._lookups[key] = asking
            asking.add_done_callback(partial(self._looked_up, key))
        return await asyncio.shield(asking)

    async def _look_up(self, token: str) -> Mapping[str, Any]:
        described, settings = await self.described(), self._settings
        if not described.introspection:
            raise ServerAway("the authorization server names no introspection endpoint")
        form = {"token": token, "token_type_hint": "access_token"}
        claims = await self._fetcher.post(
            described.introspection, form, settings.client_id, settings.client_secret
        )
        if claims.get("active") is not True:
            self._note_inactive(sha256(token.encode()).digest())
            raise TokenInvalid("the authorization server says that it is not active")
        return claims

    def _note_inactive(self, key: bytes) -> None:
        """Remember for a moment that a token is not good, so that repeating it costs nothing."""
        if len(self._inactive) >= INACTIVE_KEPT:
            del self._inactive[next(iter(self._inactive))]
        self._inactive[key] = self._clock() + INACTIVE_SECONDS

    def _looked_up(self, key: bytes, task: "asyncio.Task[Mapping[str, Any]]") -> None:
        if self._lookups.get(key) is task:
            del self._lookups[key]
            self._unknown.discard(key)
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited may have gone

    async def close(self) -> None:
        """End the requests that are under way. Idempotent."""
        running = [*self._lookups.values(), *([self._fetching] if self._fetching else [])]
        mine = [task for task in running if task.get_loop() is asyncio.get_running_loop()]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine)

    # --- what is held ---------------------------------------------------------------------------

    async def _current(self) -> _Fetched:
        held, now = self._held, self._clock()
        age = float("inf") if held is None else now - held.at
        if held is not None and 0 <= age < FRESH_SECONDS:
            return held
        if held is None or not 0 <= age < STALE_SECONDS:
            if not self._may_ask() and self._fetching is None:
                raise ServerAway("the authorization server did not answer a moment ago")
            return await self._fetched()
        if self._may_ask() or self._fetching is not None:
            fetching = self._start()
            if age >= OVERDUE_SECONDS and not self._failing:
                await asyncio.wait({fetching}, timeout=SECONDS)
        return self._held or held

    def _may_ask(self) -> bool:
        return not 0 <= self._clock() - self._asked_at < REFETCH_SECONDS

    async def _fetched(self) -> _Fetched:
        # Whoever waits may go away; the others wait on.
        return await asyncio.shield(self._start())

    def _start(self) -> "asyncio.Task[_Fetched]":
        fetching = self._fetching
        if fetching is None or fetching.get_loop() is not asyncio.get_running_loop():
            self._asked_at = self._clock()
            fetching = asyncio.create_task(self._fetch(), name="antiphon keys")
            fetching.add_done_callback(self._fetch_ended)
            self._fetching = fetching
        return fetching

    def _fetch_ended(self, task: "asyncio.Task[_Fetched]") -> None:
        self._fetching = None
        error = None if task.cancelled() else task.exception()
        self._failing = error is not None
        if error is not None:
            self._occasionally.error(f"keys of the authorization server: {error}")

    async def _fetch(self) -> _Fetched:
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                described = await self._describe()
                jwks = await self._fetcher.get(described.jwks) if described.jwks else {}
        except TimeoutError:
            raise ServerAway(f"nothing was found out within {WHOLE_SECONDS:g} s") from None
        self._held = _Fetched(described, PublicKeys(jwks), self._clock())
        return self._held

    async def _describe(self) -> Described:
        """Fetch what the configured issuer says of itself; it must say that it is that issuer."""
        issuer, troubles = self._settings.issuer, list[str]()
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
            try:
                return self._read(await self._fetcher.get(url), url)
            except ServerAway as error:
                troubles.append(str(error))
        raise ServerAway("; ".join(troubles))

    def _read(self, document: Mapping[str, Any], url: str) -> Described:
        named, issuer = document.get("issuer"), self._settings.issuer
        if not isinstance(named, str) or named.rstrip("/") != issuer.rstrip("/"):
            raise ServerAway(f"{url} describes another issuer than {issuer}")
        found = {name: document.get(name) or "" for name in ("jwks_uri", "introspection_endpoint")}
        for name, address in found.items():
            try:
                if address:
                    check_endpoint(str(address), issuer)
            except ValueError as error:
                raise ServerAway(f"{url}: {name}: {error}") from None
        return Described(named, str(found["jwks_uri"]), str(found["introspection_endpoint"]))
