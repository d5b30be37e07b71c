"""Signing in with a browser on this machine, which comes back to an address of this machine."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, cast
from urllib.parse import parse_qs, urlsplit

from pydantic import AnyUrl

from antiphon.client.login.provider import (
    LoginKeeper,
    LoginProvider,
    client_metadata,
    read_kept,
)
from antiphon.client.login.redirect import RedirectListener


class BrowserSignIn(LoginProvider):
    """A login for which a person signs in with a browser."""

    asks: ClassVar[bool] = True

    def __init__(
        self, url: str, keeper: LoginKeeper, open_page: Callable[[str], Awaitable[None]]
    ) -> None:
        """Sign in to the server at a URL; `open_page` sends the person to a page."""
        self._open_page = open_page
        self._listener = RedirectListener(_port_of(read_kept(keeper.load()).client))
        super().__init__(
            url,
            keeper,
            client_metadata(
                redirect_uris=[AnyUrl(self._listener.url)],
                grant_types=["authorization_code", "refresh_token"],
            ),
            send_person=self._send_person,
            came_back=self._listener.wait,
        )

    def fits(self, client: dict[str, Any]) -> bool:
        """Whether a kept registration is for the address that the browser comes back to."""
        return _port_of(client) == self._listener.port

    def close(self) -> None:
        """Stop listening for the browser; after the event loop has ended. Idempotent."""
        self._listener.close()

    async def _send_person(self, page: str) -> None:
        self.check_private(page)
        await self._listener.expect(parse_qs(urlsplit(page).query)["state"][0])
        await self._open_page(page)


def _port_of(client: dict[str, Any] | None) -> int:
    uris = cast("list[object]", (client or {}).get("redirect_uris") or [])
    return (urlsplit(str(uris[0])).port or 0) if uris else 0
