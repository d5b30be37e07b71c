"""How a round ended, as it is recorded and repeated (S3-3, S3-4). Knows no store."""

from typing import Any

import msgspec

from antiphon.core.capabilities import Capability, require
from antiphon.errors import CallerError, InvalidRequest, TokenRefused
from antiphon.ports import NewTask


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The end of a round: a result or an error, and what a client needs to be told it."""

    result: bytes = b""
    code: int = 0
    """Of a JSON-RPC error; 0 with a result."""

    message: str = ""
    data: Any = None
    needs: tuple[Capability, ...] = ()
    keep: bool = True
    """Whether the round is over. Otherwise it may be tried again with the same token."""

    task: NewTask | None = None
    """The task that the round made, to be kept in the same step; not part of the record."""

    counts: bool = False
    """Whether a round that is not over counts as a failed try."""

    @property
    def kind(self) -> str:
        """How the round ended, in a word."""
        if self.code:
            return "error"
        if self.task is not None or "tasks" in self.needs:
            return "task"
        return "input_required" if self.result.startswith(_ASKING) else "complete"


_ASKING = b'{"resultType":"input_required"'
_decode = msgspec.msgpack.Decoder(Reply).decode


def to_bytes(reply: Reply) -> bytes:
    """Write a reply for the ledger."""
    if reply.task is not None:
        reply = msgspec.structs.replace(reply, task=None)
    return msgspec.msgpack.encode(reply)


def from_bytes(data: bytes) -> Reply:
    """Read a reply that the ledger kept."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        raise TokenRefused("outcome-unreadable") from None


def failed(error: CallerError, *, keep: bool) -> Reply:
    """Make a reply of an error."""
    return Reply(code=error.code, message=error.message, data=error.data, keep=keep)


def deliver(reply: Reply, capabilities: dict[str, Any]) -> bytes:
    """Give a reply to one request: gated on its own capabilities."""
    if reply.code:
        raise InvalidRequest(reply.message, code=reply.code, data=reply.data)
    if reply.needs:
        require(capabilities, reply.needs, "this round")
    return reply.result
