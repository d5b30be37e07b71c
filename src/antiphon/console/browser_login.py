"""A login that is under way in one browser, which alone can finish it."""

import json

from starlette.requests import Request
from starlette.responses import Response

from antiphon.console import guard
from antiphon.console.sessions import Sessions
from antiphon.console.settings import Console
from antiphon.ports import Clock


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
        response.headers.update(guard.HEADERS)

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
