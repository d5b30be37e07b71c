"""What every request to the console must pass, and what every response carries.

A page on another site can make a browser send requests here, but cannot read the answers and cannot
send our cookie with a form. A POST must come from our own pages (`Sec-Fetch-Site` or `Origin`) and
bring a token that only the session knows. The content security policy lets no script run but ours.
A login under way is tied to the browser that began it, which alone can finish it.
"""

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from antiphon.console.sessions import Session, Sessions, same
from antiphon.console.settings import Console
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
CSRF = "form"
"""The purpose for which a session proves that a form is its own."""


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
    """Return a path inside the console to go to after signing in."""
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
        self._cookie = console.cookie + "-login"
        self._browser = request.cookies.get(self._cookie, "")[:128] or sessions.secret()
        self.following: str = following

    @property
    def callback(self) -> str:
        """The address at which the login comes back."""
        return f"{self._console.place.url}/login/callback"

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock()

    def tie(self, response: Response) -> None:
        """Let the browser prove later that it began this login."""
        response.set_cookie(
            self._cookie,
            self._browser,
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
        await self._sessions.remember(self._browser, state, kept)

    async def recall(self, state: str) -> bytes | None:
        """Return what was kept, once."""
        kept = await self._sessions.recall(self._browser, state)
        if kept is None:
            return None
        following, data = json.loads(kept)
        self.following = str(following)
        return str(data).encode()
