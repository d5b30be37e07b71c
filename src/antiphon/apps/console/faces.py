"""What stands beside the inbox in one console: other pages for the same signed-in people."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from antiphon.apps.console.sessions import Session
    from antiphon.protocol.inbox import Person


class Renderer(Protocol):
    """Makes pages of templates."""

    def render(self, name: str, status: int = 200, **values: Any) -> "Response":
        """Return a page."""
        ...

    def plain(self, text: str, status: int) -> "Response":
        """Return a text."""
        ...


class Desk(Protocol):
    """What a face needs of the console that it stands in."""

    @property
    def pages(self) -> Renderer:
        """The templates."""
        ...

    async def signed(self, request: "Request") -> "Session":
        """Return the session of a request, or send the browser to sign in."""
        ...

    async def form(self, request: "Request", session: "Session") -> dict[str, list[str]]:
        """Return a form that this session's own page has sent."""
        ...

    async def welcome(self, signed_in: "Person", following: str) -> "Response":
        """Begin a session for a person, and go on to a page of the console."""
        ...

    def to(self, session: "Session", path: str) -> "Response":
        """Send the browser to another page of the console."""
        ...


class PageGroup(Protocol):
    """Pages of one kind. The first face of a console is where its people arrive."""

    @property
    def path(self) -> str:
        """Where it is, below the console's own path."""
        ...

    @property
    def title(self) -> str:
        """What the link to it says."""
        ...

    @property
    def role(self) -> str:
        """Who is shown the link; empty for everybody."""
        ...

    @property
    def package(self) -> str:
        """Where its templates and static files are."""
        ...

    @property
    def static(self) -> Mapping[str, str]:
        """Its static files by name, and what they are."""
        ...

    @property
    def filters(self) -> Mapping[str, Callable[[Any], str]]:
        """Filters of its templates."""
        ...

    def routes(self, desk: Desk) -> "Sequence[Route]":
        """Return its routes; the console is complete when one is used."""
        ...
