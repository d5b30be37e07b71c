"""OAuth of a server behind ours, by the official SDK: as a client of its own, without a person.

A provider of the SDK that asks a person works as well: `server.mount(url, auth=provider)`.
"""

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class MemoryTokens:
    """Keeps the tokens of one server while the process lives."""

    def __init__(self) -> None:
        """There are none yet."""
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return how the client is registered."""
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep how the client is registered."""
        self._client = client_info


def client_credentials(
    url: str, client_id: str, client_secret: str, *, issuer: str, scope: str | None
) -> httpx2.Auth:
    """Return what authenticates requests to a URL with the client's own credentials."""
    return ClientCredentialsOAuthProvider(
        server_url=url,
        storage=MemoryTokens(),
        client_id=client_id,
        client_secret=client_secret,
        scope=scope,
        issuer=issuer,
    )
