"""`OAuth`: what an author says about the access tokens of a server."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from urllib.parse import urlsplit

from antiphon.errors import ConfigError
from antiphon.protocol.credentials import read_scopes
from antiphon.protocol.web_url import is_loopback, web_host

_PLAIN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""What may stand between quotes in a header."""


@dataclass(frozen=True, slots=True)
class OAuth:
    """Every request over HTTP must carry an access token of an authorization server.

    Args:
        issuer: The authorization server, as `iss` of its tokens names it.
        audience: Whom tokens must be made for (`aud`): the URL at which clients reach the endpoint,
            such as `https://mcp.example.com/mcp`.
        scopes: Those that every request needs.
        resource: That URL, where the authorization server names the audience otherwise.
        client_id: How this server signs in at the introspection endpoint. With it every token is
            looked up there, so that a revoked one is noticed; without it tokens are JWTs, which are
            verified with the keys of the authorization server.
        client_secret: The secret that belongs to `client_id`.
    """

    issuer: str
    _: KW_ONLY
    audience: str
    scopes: Sequence[str] = ()
    resource: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse what would not work, or would not be safe."""
        _check_address("issuer", self.issuer)
        if not self.audience.strip("/"):
            raise ConfigError("OAuth(audience=...) must not be empty: any token would be accepted")
        if not self.resource and not self.audience.startswith(("http://", "https://")):
            raise ConfigError(
                f"OAuth(audience={self.audience!r}) is no URL: say with resource= at which URL "
                "clients reach the endpoint"
            )
        _check_address("resource" if self.resource else "audience", self.url)
        # Read once: what can be read only once would be empty, and let everybody in, later.
        scopes = read_scopes("OAuth(scopes=...)", self.scopes)
        object.__setattr__(self, "scopes", tuple(sorted(scopes)))
        if bool(self.client_id) != bool(self.client_secret):
            raise ConfigError("OAuth(client_id=..., client_secret=...) go together")

    @property
    def url(self) -> str:
        """Where clients reach the endpoint."""
        return self.resource or self.audience


def check_endpoint(url: str, issuer: str) -> None:
    """Refuse an address of the authorization server at which anybody could answer in its place.

    Raises:
        ValueError: It is not https, and not on this machine as the issuer itself.
    """
    host = web_host(url)
    if urlsplit(url).scheme == "https":
        return
    if not is_loopback(host.strip("[]")) or not issuer.startswith("http://"):
        raise ValueError(f"{url} is not https")


def _check_address(name: str, url: str) -> None:
    try:
        check_endpoint(url, url)
    except ValueError as error:
        raise ConfigError(
            f"OAuth({name}=...) must be an https URL, or http on this machine; got {url!r}: {error}"
        ) from None
    parts = urlsplit(url)
    if parts.query or parts.fragment or not _PLAIN.fullmatch(url):
        raise ConfigError(
            f"OAuth({name}=...) must be a URL without query and fragment, in plain ASCII; "
            f"got {url!r}"
        )
