"""Small HTTP answers of the earlier era that need no session and no SDK."""

from typing import Any

import msgspec

from antiphon.errors import INVALID_REQUEST
from antiphon.transports.http.response import Send
from antiphon.wire import messages

Scope = dict[str, Any]


class _Head(msgspec.Struct):
    method: str = ""


_head = msgspec.json.Decoder(_Head).decode


def header(scope: Scope, name: bytes) -> str | None:
    """Read a header that may stand once."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1").strip()
    return None


def is_handshake(body: bytes) -> bool:
    """Tell whether a message opens a session."""
    try:
        return _head(body).method == "initialize"
    except msgspec.DecodeError:
        return False


async def refuse(send: Send, status: int, text: str, code: int = INVALID_REQUEST) -> None:
    """Answer with a JSON-RPC error that belongs to no request."""
    body = messages.error(None, code, text)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
