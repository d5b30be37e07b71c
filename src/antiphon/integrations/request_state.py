"""Our keys for the `requestState` that the official SDK seals around every tool's own.

The SDK seals what a tool asks to have returned, and by default with a key that dies with the
process. With this policy the processes that can open our tokens can open theirs, and theirs last as
long as a call of ours may.
"""

from mcp.server.request_state import InvalidRequestState, RequestStateSecurity

from antiphon.errors import ConfigError, TokenRefused
from antiphon.protocol.asks import Seconds, seconds
from antiphon.seal.aead import Aead
from antiphon.seal.sealer import from_text, to_text
from antiphon.server import Server


class KeyringCodec:
    """Seals and opens with the keys of a server, under a subkey that serves nothing else."""

    def __init__(self, aead: Aead) -> None:
        self._aead = aead

    def seal(self, payload: bytes) -> str:
        """Seal bytes as text for a URL."""
        return to_text(self._aead.seal(payload, b""))

    def unseal(self, token: str) -> bytes:
        """Return what `seal` was given.

        Raises:
            InvalidRequestState: Not sealed by these keys.
        """
        try:
            return self._aead.open(from_text(token), b"")
        except (ValueError, TokenRefused):
            raise InvalidRequestState("not sealed by these keys") from None


def request_state_security(server: Server, ttl: Seconds | None) -> RequestStateSecurity:
    """Return a policy with the keys of a server.

    Args:
        server: Whose keys and audience are meant.
        ttl: How long a round may wait; as long as a call may take unless given.

    Raises:
        ConfigError: The server has a key service, which the SDK cannot wait for.
    """
    environment, keyring = server.parts.environment, server.parts.keys.keyring
    if keyring is None:
        raise ConfigError(
            "Seal(codec=...) is a key service, and the official SDK seals without waiting: give "
            "its server RequestStateSecurity(keys=[...]) with keys that every process shares"
        )
    aead = Aead(keyring, "request-state", environment.entropy, environment.clock)
    longest = longest_call(server) if ttl is None else seconds(ttl)
    return RequestStateSecurity(codec=KeyringCodec(aead), ttl=longest, audience=server.audience)


def longest_call(server: Server) -> float:
    """Return for how many seconds a call may last; no token of it is valid longer."""
    registry = server.parts.registry
    own = (
        listed.handler.options.deadline
        for listed in (*registry.tools.values(), *registry.prompts.values())
    )
    return max(seconds(span) for span in (server.limits.call, *own) if span is not None)
