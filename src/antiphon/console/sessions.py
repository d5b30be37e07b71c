"""Who is signed in: sessions kept in the store under a hash of a secret that only the browser has.

The cookie holds the secret. The token against forged forms is derived from it, so nothing else has
to be kept. One-time links and half-finished logins use the same rows, each for one use.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping

import msgspec

from antiphon.core.inbox import Person
from antiphon.environment import Environment
from antiphon.errors import TokenRefused
from antiphon.ports import Inbox

IDLE = 8 * 3600.0
"""Seconds without a request after which a session ends."""

LONGEST = 24 * 3600.0
"""Seconds after which a session ends although it is used."""

LOGIN = 600.0
"""Seconds within which a login must come back, and a one-time link must be used."""


class Session(msgspec.Struct, frozen=True):
    """A signed-in browser."""

    secret: str
    person: Person

    def proof(self, purpose: str) -> str:
        """Return a token that only this session can make, for one purpose."""
        return proof(self.secret, purpose)


class _KeptSession(msgspec.Struct, array_like=True, frozen=True):
    person: Person
    created: float


def proof(secret: str, purpose: str) -> str:
    """Return a keyed hash of a purpose."""
    digest = hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def same(left: str, right: str) -> bool:
    """Compare two proofs without telling how much of them agrees."""
    return hmac.compare_digest(left.encode(), right.encode())


class Sessions:
    """The sessions, one-time links and unfinished logins of one console."""

    def __init__(self, environment: Environment, store: Inbox) -> None:
        self._environment = environment
        self._store = store
        self._server = environment.sealer.audience

    async def start(self, person: Person) -> Session:
        """Begin a session for a person who has just signed in."""
        secret = self._secret()
        kept = _KeptSession(person, self._environment.clock())
        await self._keep("session", secret, msgspec.msgpack.encode(kept), IDLE)
        return Session(secret, person)

    async def find(self, secret: str, *, in_use: bool = True) -> Session | None:
        """Return the session of a cookie, and keep it alive; None when it has ended.

        One that is not in use, as by a page that is only open, is not kept alive by it.
        """
        ttl = IDLE if in_use else None
        sealed = await self._store.session(self._row("session", secret), ttl=ttl)
        data = await self._opened("session", secret, sealed)
        if data is None:
            return None
        kept = msgspec.msgpack.decode(data, type=_KeptSession)
        if self._environment.clock() - kept.created > LONGEST:
            await self.end(secret)
            return None
        return Session(secret, kept.person)

    async def end(self, secret: str) -> None:
        """End a session."""
        await self._store.take_session(self._row("session", secret))

    async def make_link(self, person: Person) -> str:
        """Return the secret of a link that signs this person in, once."""
        secret = self._secret()
        await self._keep("link", secret, msgspec.msgpack.encode(person), LOGIN)
        return secret

    async def use_link(self, secret: str) -> Person | None:
        """Return who the link signs in; it is worth nothing afterwards."""
        sealed = await self._store.take_session(self._row("link", secret))
        data = await self._opened("link", secret, sealed)
        return None if data is None else msgspec.msgpack.decode(data, type=Person)

    async def remember(self, browser: str, state: str, data: bytes) -> None:
        """Keep what a login needs when it comes back to the same browser."""
        await self._keep("login", f"{browser} {state}", data, LOGIN)

    async def recall(self, browser: str, state: str) -> bytes | None:
        """Return what a login has kept, once."""
        name = f"{browser} {state}"
        sealed = await self._store.take_session(self._row("login", name))
        return await self._opened("login", name, sealed)

    def secret(self) -> str:
        """Return a new secret for a browser."""
        return self._secret()

    def _secret(self) -> str:
        return urlsafe_b64encode(self._environment.entropy(32)).decode().rstrip("=")

    def _row(self, kind: str, secret: str) -> bytes:
        """Return where a row is kept: servers that share a store and keys share no sessions."""
        named = msgspec.json.encode([kind, self._server, secret])
        return hashlib.sha256(named).digest()

    async def _keep(self, kind: str, secret: str, data: bytes, ttl: float) -> None:
        row = self._row(kind, secret)
        sealed = await self._environment.protect(data, f"{kind} {row.hex()}")
        await self._store.keep_session(row, sealed, ttl=ttl)

    async def _opened(self, kind: str, secret: str, sealed: bytes | None) -> bytes | None:
        if sealed is None:
            return None
        try:
            return await self._environment.reveal(sealed, f"{kind} {self._row(kind, secret).hex()}")
        except TokenRefused:
            return None  # kept by a server with other keys: nobody is signed in


def cookie_of(cookies: Mapping[str, str], name: str) -> str:
    """Return the secret of a request; empty when there is none."""
    secret = cookies.get(name, "")
    return secret if len(secret) <= 128 else ""
