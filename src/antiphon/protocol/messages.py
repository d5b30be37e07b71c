"""JSON-RPC messages as bytes, their HTTP status and their SSE frame.

Messages are joined from parts that are encoded already. The id of a request is encoded once, by
`encode_id`, and joined into whatever answers it. An id that could not be read is None here and left
out of the message, because `null` is not valid (BASE-03).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.errors import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
    CallerError,
)
from antiphon.protocol.results import response

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

KEEP_ALIVE = b": keep-alive\n\n"
"""An SSE comment: it shows proxies that the stream is alive; clients ignore it."""

INTERNAL_MESSAGE = "Internal error"
"""All that a client is told of an unexpected failure; the log has the rest."""

_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    CAPABILITY_MISSING: 400,
    VERSION_UNSUPPORTED: 400,
    METHOD_NOT_FOUND: 404,
}

_encode = msgspec.json.Encoder().encode

encode_id = _encode
"""Encode a request id; a string stays a string and an integer an integer."""


def status(code: int) -> int:
    """Return the HTTP status of a JSON-RPC error, where nothing has been sent yet."""
    return _STATUS.get(code, 200)


def error(id: bytes | None, code: int, message: str, data: object = None) -> bytes:
    """Write an error response; without an id when it could not be read."""
    fields: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        fields["data"] = data
    try:
        body = _encode(fields)
    except (TypeError, ValueError):  # data or text that no JSON can carry must not hide the error
        safe = message.encode("utf-8", "replace").decode()
        body = _encode({"code": code, "message": safe})
    head = b'{"jsonrpc":"2.0",' if id is None else b'{"jsonrpc":"2.0","id":' + id + b","
    return head + b'"error":' + body + b"}"


def refusal(id: bytes | None, refused: CallerError) -> bytes:
    """Write the error response of a request that broke a rule."""
    return error(id, refused.code, refused.message, refused.data)


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    """Write a notification."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_encode(method), _encode(params))


def sse(message: bytes) -> bytes:
    """Frame one message as an SSE event. JSON has no raw line breaks, so one line holds it."""
    return b"event: message\ndata: " + message + b"\n\n"


# --- listen streams ---------------------------------------------------------------------------


def subscribed(method: str, params: Mapping[str, Any], id: str | int) -> bytes:
    """Write a notification of a listen stream, marked with the id of its request (SUB-03)."""
    return notification(method, {**params, "_meta": {SUBSCRIPTION: id}})


def acknowledged(accepted: Mapping[str, Any], id: str | int) -> bytes:
    """Write the first message of a listen stream: what it will report (SUB-02)."""
    params = {"notifications": accepted}
    return subscribed("notifications/subscriptions/acknowledged", params, id)


def listen_result(id: bytes, meta: bytes = b"") -> bytes:
    """Write the response that ends a listen stream from the server's side (SUB-08)."""
    inner = b'"' + SUBSCRIPTION.encode() + b'":' + id
    return response(id, b'{"resultType":"complete","_meta":{' + inner + meta + b"}}")


def cancelled(id: str | int, reason: str) -> bytes:
    """Write the notification that ends a listen stream on stdio, before its result."""
    return notification("notifications/cancelled", {"requestId": id, "reason": reason})
