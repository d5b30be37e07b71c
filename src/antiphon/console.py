"""The console: what an author says about the pages on which people decide.

`Console` has the settings, `OneTimeLink` and `OIDC` sign people in, and `Webhook` sends notices.
Importing this loads no page; `Server.asgi()` does when its server has a `Console`.
"""

import asyncio
import base64
import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from inspect import isawaitable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import urlsplit

from antiphon.errors import ConfigError
from antiphon.protocol.identities import LINK_ISSUER
from antiphon.protocol.inbox import Approver as Approver
from antiphon.protocol.inbox import InboxPlace
from antiphon.protocol.inbox import Person as Person
from antiphon.protocol.request import Principal
from antiphon.protocol.web_url import is_loopback

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


_KEPT, _FAILED = 300.0, 5.0
"""Seconds for which a provider's description counts, and for which a failure to get one does."""


class ProviderDescription:
    """A provider's description of itself: one request for all who sign in, and few of them."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._found: dict[str, Any] | Exception | None = None
        self._fetching: asyncio.Task[dict[str, Any]] | None = None

    async def get(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return the description, fetched if none is kept; raises as `fetch` has raised."""
        if self._found is not None and self._clock() < self._until:
            if isinstance(self._found, Exception):
                raise self._found
            return self._found
        loop = asyncio.get_running_loop()
        if self._fetching is None or self._fetching.get_loop() is not loop:
            self._fetching = loop.create_task(self._fetch(fetch), name="antiphon provider")
        return await asyncio.shield(self._fetching)

    async def _fetch(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        try:
            found = await fetch()
        except Exception as error:
            self._found, self._until = error, self._clock() + _FAILED
            raise
        else:
            self._found, self._until = found, self._clock() + _KEPT
            return found
        finally:
            self._fetching = None


@dataclass(frozen=True, slots=True)
class OIDC:
    """Signs people in at an OpenID provider.

    Args:
        issuer: The provider.
        client_id: As it is registered there.
        client_secret: If the provider gave one.
        roles: The claim that holds the groups of a person.
        scope: What is asked for.
    """

    issuer: str
    _: KW_ONLY
    client_id: str
    client_secret: str | None = None
    roles: str = "groups"
    scope: str = "openid profile email"
    description: "ProviderDescription" = field(
        default_factory=lambda: ProviderDescription(), init=False, repr=False, compare=False
    )
    """What the provider has said of itself, fetched once for all who sign in."""

    def __post_init__(self) -> None:
        """Refuse a provider whose answers anybody on the way could write."""
        parts = urlsplit(self.issuer)
        if parts.scheme == "https" and parts.hostname:
            return
        if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
            raise ConfigError(f"OIDC(issuer) must be an https URL, got {self.issuer!r}")

    async def begin(
        self, request: "Request", started: "LoginAttempt", *, fresh: bool
    ) -> "Response | Person | None":
        """Send the browser to the provider."""
        from antiphon.apps.console.oidc_flow import begin

        return await begin(self, started, fresh=fresh)

    async def finish(self, request: "Request", started: "LoginAttempt") -> Person | None:
        """Return who has signed in, once the provider's answer has been checked."""
        from antiphon.apps.console.oidc_flow import finish

        return await finish(self, dict(request.query_params), started)

    def person(self, claims: dict[str, Any]) -> Person:
        """Return the person whom checked claims describe."""
        groups = claims.get(self.roles) or ()
        names = [groups] if isinstance(groups, str) else groups
        return Person(
            issuer=str(claims["iss"]),
            subject=str(claims["sub"]),
            name=str(claims.get("name") or claims.get("email") or claims["sub"]),
            roles=tuple(str(each) for each in names),
            auth_time=float(claims.get("auth_time") or 0.0),
            amr=tuple(str(each) for each in claims.get("amr") or ()),
        )


_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sends notices as signed POST requests.

    Args:
        url: Where they go.
        secret: `whsec_` and base64, any other text, or `env:NAME` to read it from the environment.
        name: Under which undelivered notices are kept; changing it leaves those behind.
    """

    url: str
    _: KW_ONLY
    secret: str
    name: str = "webhook"

    def __post_init__(self) -> None:
        """Refuse what could not be sent to."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"Webhook(url) must be an http or https URL, got {self.url!r}")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ConfigError(
                "Webhook(url) must be https unless it is on this machine: notices would travel in "
                f"the clear to {parts.hostname}"
            )
        if not self.secret:
            raise ConfigError("Webhook(secret=...) must not be empty: receivers check it")

    def key(self) -> bytes:
        """Return the signing key.

        Raises:
            ConfigError: The environment does not hold it.
        """
        secret = self.secret
        if secret.startswith("env:"):
            name = secret.removeprefix("env:")
            secret = os.environ.get(name, "")
            if not secret:
                raise ConfigError(f"Webhook(secret='env:{name}'): {name} is not set")
        if secret.startswith(_PREFIX):
            try:
                return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
            except ValueError:
                raise ConfigError("Webhook(secret='whsec_...') is not base64") from None
        return secret.encode()

    def signed_headers(self, id: str, body: bytes, now: float) -> dict[str, str]:
        """Return the headers of one delivery; the id is the same in every try."""
        stamp = str(int(now))
        content = b".".join([id.encode(), stamp.encode(), body])
        mac = hmac.new(self.key(), content, hashlib.sha256).digest()
        return {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": stamp,
            "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
        }


OPERATOR, AUDITOR = "operator", "auditor"
"""Roles that the console itself knows."""


@dataclass(frozen=True, slots=True)
class Console:
    """The web pages of a server.

    Args:
        url: Where people reach the pages, such as `https://mcp.example.com/console`. Links are made
            from this and never from what a request says.
        login: How people sign in: `OneTimeLink()`, `OIDC(...)`, or a function from a Starlette
            request to a `Person` or None.
        roles: Which group of the login makes a role: `{"finance": "grp-finance"}`. Without it the
            groups are the roles.
        notify: Where notices go.
        same_person: Says whether a person is a caller whom another issuer knows under another name.
        notice_details: Whether notices hold the question and its details.
    """

    url: str
    _: KW_ONLY
    login: Login | Callable[..., object] = field(default_factory=OneTimeLink)
    roles: Mapping[str, str] | None = None
    notify: Sequence[Webhook] = ()
    same_person: Callable[[Person, Principal], bool] | None = None
    notice_details: bool = False

    def __post_init__(self) -> None:
        """Refuse what would not work, or would not be safe."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"Console(url=...) must be an http or https URL, got {self.url!r}")
        if parts.query or parts.fragment or parts.username or not parts.path.strip("/"):
            raise ConfigError(
                "Console(url=...) must name a path of its own and nothing after it, such as "
                f"https://mcp.example.com/console; got {self.url!r}"
            )
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ConfigError(
                "Console(url=...) must be https unless it is on this machine: sessions would "
                f"travel in the clear to {parts.hostname}"
            )
        as_login(self.login)
        names = [target.name for target in self.notify]
        if len(set(names)) < len(names):
            raise ConfigError("two targets of Console(notify=...) have the same name")

    @property
    def path(self) -> str:
        """Where the pages are on the server, without a slash at the end."""
        return urlsplit(self.url).path.rstrip("/")

    @property
    def secure(self) -> bool:
        """Whether the pages are reached over TLS."""
        return self.url.startswith("https:")

    @property
    def cookie(self) -> str:
        """The name of the session's cookie.

        Over TLS no other host and no subdomain can set it. Cookies do not tell ports apart, so that
        each of several consoles on one machine has a name of its own.
        """
        if self.secure:
            return "__Host-antiphon"
        return f"antiphon-console-{urlsplit(self.url).port or 80}"

    @property
    def host(self) -> str:
        """The host and port under which the pages are reached."""
        return urlsplit(self.url).netloc.lower()

    @property
    def origin(self) -> str:
        """The origin of the pages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower()

    def is_elsewhere(self, port: int) -> bool:
        """Return whether a server on this port cannot be where the pages are said to be.

        Before https stands a proxy, whose port is another matter; port 0 is not known yet.
        """
        return not self.secure and bool(port) and (urlsplit(self.url).port or 80) != port

    def warning_of(self, port: int) -> str:
        """Return what is wrong with a server that listens on this port; nothing if it fits."""
        if not self.is_elsewhere(port):
            return ""
        return (
            f"Console(url={self.url!r}) names another port than {port}, on which this server "
            "listens: every link to its pages leads elsewhere. Name the port in Console(url=...), "
            "or listen on that one."
        )

    @property
    def place(self) -> InboxPlace:
        """What calls must know of the inbox."""
        roles = None if self.roles is None else frozenset(self.roles)
        return InboxPlace(
            self.url.rstrip("/"),
            roles,
            tuple(target.name for target in self.notify),
            issuers_of(self.login),
            self.same_person is not None,
        )

    def person(self, signed_in: Person) -> Person:
        """Return a person with the roles that the groups of the login make."""
        if self.roles is None:
            return signed_in
        roles = tuple(role for role, group in self.roles.items() if group in signed_in.roles)
        return Person(
            signed_in.issuer,
            signed_in.subject,
            signed_in.name,
            roles,
            signed_in.auth_time,
            signed_in.amr,
        )
