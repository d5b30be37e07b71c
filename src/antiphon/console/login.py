"""How people sign in to the console: a port, a one-time link, and a function of the author's.

A login ends in a `Person`. Who that person is, and in which groups, is the login's word; there is
no table of users here.
"""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from antiphon.core.identities import LINK_ISSUER
from antiphon.core.inbox import Person
from antiphon.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class LoginAttempt(Protocol):
    """What a login is given to begin with."""

    @property
    def callback(self) -> str:
        """The address at which the login comes back."""
        ...

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        ...

    async def remember(self, state: str, data: bytes) -> None:
        """Keep something until the login comes back, for this browser only."""
        ...

    async def recall(self, state: str) -> bytes | None:
        """Return what was kept, once."""
        ...


@runtime_checkable
class Login(Protocol):
    """How people sign in."""

    async def begin(
        self, request: "Request", started: LoginAttempt, *, fresh: bool
    ) -> "Response | Person | None":
        """Send the browser to sign in, or say at once who it is; None when it cannot be known.

        `fresh` asks for a new sign-in even where the browser is signed in already.
        """
        ...

    async def finish(self, request: "Request", started: LoginAttempt) -> Person | None:
        """Return who has signed in, from the request that comes back; None when nobody has."""
        ...


@runtime_checkable
class CurrentLogin(Protocol):
    """A login that can say with every request who somebody is and which roles they have now."""

    async def current(self, request: "Request") -> Person | None:
        """Return who sends a request; None when nobody is known to: their session ends."""
        ...


@runtime_checkable
class VouchedLogin(Protocol):
    """A login whose people are all vouched for by one issuer."""

    @property
    def issuer(self) -> str:
        """Whoever vouches for them."""
        ...


class OneTimeLink:
    """People sign in with a link that works once: printed by `antiphon inbox`, or made by code."""

    async def begin(
        self, request: "Request", started: LoginAttempt, *, fresh: bool
    ) -> "Response | Person | None":
        """There is nothing to begin: the link is the sign-in."""
        return None

    async def finish(self, request: "Request", started: LoginAttempt) -> Person | None:
        """Nobody comes back."""
        return None


LoginFunction: TypeAlias = "Callable[[Request], Person | Awaitable[Person | None] | None]"


class FunctionLogin:
    """An author's function that knows who sends a request, such as from a proxy's headers."""

    def __init__(self, who: LoginFunction) -> None:
        self._who = who

    async def begin(
        self, request: "Request", started: LoginAttempt, *, fresh: bool
    ) -> "Response | Person | None":
        """Ask the function."""
        return await self.current(request)

    async def current(self, request: "Request") -> Person | None:
        """Ask the function again: groups are taken away from people while they are signed in."""
        found = self._who(request)
        person = cast("Any", await found if isawaitable(found) else found)
        if person is None or isinstance(person, Person):
            return person
        raise ConfigError(
            f"Console(login=...) must return a Person or None, and returned {type(person).__name__}"
        )

    async def finish(self, request: "Request", started: LoginAttempt) -> Person | None:
        """Nobody comes back."""
        return None


def as_login(login: object) -> Login:
    """Return what an author gave as a login.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(login, Login):
        return login
    if callable(login):
        return FunctionLogin(cast("LoginFunction", login))
    raise ConfigError(
        "Console(login=...) takes OneTimeLink(), OIDC(...) or a function from a request to a "
        f"Person, not {type(login).__name__}"
    )


def issuers_of(login: object) -> frozenset[str] | None:
    """Return who vouches for the people of a login; None where that is not known beforehand."""
    if isinstance(login, OneTimeLink):
        return frozenset({LINK_ISSUER})
    return frozenset({login.issuer}) if isinstance(login, VouchedLogin) else None
