"""What every request to the console must pass, and what every response carries.

A page on another site can make a browser send requests here, but cannot read the answers and cannot
send our cookie with a form. A POST must come from our own pages (`Sec-Fetch-Site` or `Origin`) and
bring a token that only the session knows. The content security policy lets no script run but ours.
A login under way is tied to the browser that began it, which alone can finish it.

Browsers send a cookie to every port of its host, so that on this machine another user's server
would get it. Without TLS a session therefore has a path of its own, which nobody can guess: the
cookie is sent there only, and is worth nothing without it.
"""

import hashlib
import json
import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from antiphon.apps.console.sessions import Session, Sessions, proof, same
from antiphon.console import Console
from antiphon.ports import Clock

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_MOST_LOGINS = 4
"""Logins that a browser may have under way; the oldest are given up."""

_LONGEST_PATH = 1_024
"""Characters of a path to go on to after signing in: it is kept in a cookie."""

CSRF = "form"
"""The purpose for which a session proves that a form is its own."""


_PLACE = re.compile(r"/s-[A-Za-z0-9_-]{22}(?=/|$)")


def place_of(secret: str, console: Console) -> str:
    """Return what stands before the paths of the console in the pages of a secret's session."""
    return "" if console.secure else f"/s-{proof(secret, 'place')[:22]}"


def place_in(path: str, console: Console) -> str:
    """Return the part of a path that names the place of a session; empty when there is none."""
    found = None if console.secure else _PLACE.match(path)
    return found[0] if found else ""


def is_our_host(headers: Mapping[str, str], console: Console) -> bool:
    """Tell whether the request names the host of the console: no other name reaches it."""
    return headers.get("host", "").lower() == console.host


def is_from_our_pages(headers: Mapping[str, str], console: Console) -> bool:
    """Tell whether a POST comes from a page of the console.

    Browsers send `Sec-Fetch-Site` or at least `Origin` with every POST; a request that has neither
    does not come from one that is safe to answer.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if site is not None and site != "same-origin":
        return False
    if origin is not None and origin.lower() not in (console.origin, "null"):
        return False
    return site is not None or (origin or "").lower() == console.origin


def is_own_form(token: str, session: Session) -> bool:
    """Tell whether a form was rendered for this session."""
    return same(token, session.proof(CSRF))


def safe_return(path: str, console: Console) -> str:
    """Return a path inside the console to go to after signing in, without a session's place."""
    path = path.removeprefix(place_in(path, console))
    inside = path.startswith(f"{console.path}/") and "//" not in path and "\\" not in path
    return path if inside and path.isprintable() else f"{console.path}/inbox"


class BrowserLogin:
    """A login under way, tied to the browser that began it."""

    def __init__(
        self,
        sessions: Sessions,
        console: Console,
        clock: Clock,
        request: Request,
        following: str,
    ) -> None:
        self._sessions = sessions
        self._console = console
        self._clock = clock
        self._cookies: Mapping[str, str] = request.cookies
        self._cookie = f"{console.cookie}-login-"
        self._state = ""
        self._sealed = ""
        self.following: str = following if len(following) <= _LONGEST_PATH else ""

    @property
    def callback(self) -> str:
        """The address at which the login comes back."""
        return f"{self._console.place.url}/login/callback"

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def tie(self, response: Response) -> None:
        """Leave with the browser what it needs to come back with: nothing is kept here."""
        begun = [name for name in self._cookies if name.startswith(self._cookie)]
        for name in begun[: max(0, len(begun) + 1 - _MOST_LOGINS)]:
            self._remove(response, name)
        if self._sealed:
            response.set_cookie(
                self._name(self._state),
                self._sealed,
                max_age=600,
                httponly=True,
                secure=self._console.secure,
                samesite="lax",
                path="/",
            )
        response.headers.update(HEADERS)

    async def remember(self, state: str, data: bytes) -> None:
        """Keep something until the login comes back, for this browser only."""
        kept = json.dumps([self.following, data.decode()]).encode()
        self._state, self._sealed = state, await self._sessions.seal_login(state, kept)

    async def recall(self, state: str) -> bytes | None:
        """Return what was kept, until somebody has signed in with it."""
        sealed = self._cookies.get(self._name(state), "") if state else ""
        kept = await self._sessions.open_login(state, sealed) if sealed else None
        if kept is None:
            return None
        self._state = state
        following, data = json.loads(kept)
        self.following = str(following)
        return str(data).encode()

    async def finish(self, response: Response) -> None:
        """Note that somebody has signed in: the login is good once."""
        if self._state:
            await self._sessions.end_login(self._state)
            self._remove(response, self._name(self._state))

    def _name(self, state: str) -> str:
        """Name the cookie of one login; several tabs may each have one under way."""
        return self._cookie + hashlib.sha256(state.encode()).hexdigest()[:16]

    def _remove(self, response: Response, name: str) -> None:
        response.delete_cookie(
            name, path="/", secure=self._console.secure, httponly=True, samesite="lax"
        )
