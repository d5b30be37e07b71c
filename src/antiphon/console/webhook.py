"""`Webhook`: a target of notices, signed as Standard Webhooks describe. Only values and bytes."""

import base64
import hashlib
import hmac
import os
from dataclasses import KW_ONLY, dataclass
from urllib.parse import urlsplit

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
