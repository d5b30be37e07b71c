"""Who is signed in: sessions kept in the store under a hash of a secret that only the browser has.

The cookie holds the secret. The token against forged forms is derived from it, so nothing else has
to be kept. One-time links use the same rows, each for one use. A login under way is no row: it is
sealed in a cookie of the browser that began it, and a mark is kept when somebody has signed in.
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping

import msgspec

from antiphon.engine.environment import Environment
from antiphon.errors import TokenRefused
from antiphon.ports import Inbox
from antiphon.protocol.inbox import Person

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
    """The sessions and one-time links of one console, and what browsers keep of logins."""

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

    # --- logins under way: sealed in the browser, so that beginning one makes no row -------------

    async def seal_login(self, state: str, data: bytes) -> str:
        """Return what a browser keeps of a login that it has begun."""
        kept = msgspec.msgpack.encode((self._environment.clock(), data))
        return await self._environment.hand_out(kept, self._login_place(state))

    async def open_login(self, state: str, kept: str) -> bytes | None:
        """Return what a login has left in the browser; None if it is old, changed or done."""
        try:
            opened = await self._environment.take_back(kept, self._login_place(state))
            begun, data = msgspec.msgpack.decode(opened, type=tuple[float, bytes])
        except (TokenRefused, msgspec.DecodeError):
            return None
        if not 0 <= self._environment.clock() - begun <= LOGIN:
            return None
        done = await self._store.session(self._row("login", state), ttl=None)
        return data if done is None else None

    async def end_login(self, state: str) -> None:
        """Note that somebody has signed in with this login: it is good once."""
        await self._keep("login", state, b"", LOGIN)

    def _login_place(self, state: str) -> str:
        return f"login {self._row('login', state).hex()}"

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
