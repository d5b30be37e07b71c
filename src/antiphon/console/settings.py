"""`Console`: what an author says about the pages of a server; `Webhook`: where its notices go.

Notices are signed as Standard Webhooks describe.
"""

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from urllib.parse import urlsplit

from antiphon.console.login import Login, OneTimeLink, as_login, issuers_of
from antiphon.core.inbox import InboxPlace, Person
from antiphon.core.request import Principal
from antiphon.core.web_url import is_loopback
from antiphon.errors import ConfigError

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
