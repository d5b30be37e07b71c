"""How much of a connection the server keeps, and how long it waits for a client."""

import msgspec

COLLECTED_BYTES = 64 * 1024
"""A body up to this size is collected before the application is called."""

READ_AHEAD_BYTES = 64 * 1024
"""Bytes that the application has not taken yet, above which reading pauses."""

LINGER_SECONDS = 2.0
LINGER_BYTES = 16 * 1024 * 1024
"""How long, and how much, a client that was refused may go on sending."""


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The bounds of one server that depend on where it runs."""

    connections: int = 4096
    """Open at a time."""

    head_seconds: float = 20.0
    """For a whole head, from its first byte or from the beginning of the connection."""

    body_seconds: float = 30.0
    """For a body, however many pieces it comes in; a large one has more time as it comes."""

    body_rate: int = 16 * 1024
    """Bytes of a large body that give it a second more."""

    unfinished_bytes: int = 64 * 1024 * 1024
    """What has come of requests that are not complete, on all connections together."""

    idle_seconds: float = 75.0
    """Between two requests; longer than a proxy in front keeps its connections."""

    write_seconds: float = 60.0
    """For a client that reads nothing of what is sent to it."""

    @property
    def unfinished(self) -> int:
        """Connections that may have an unfinished request at a time: half of all."""
        return max(1, self.connections // 2)
