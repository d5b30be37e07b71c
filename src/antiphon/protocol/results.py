"""The `result` objects of the protocol as bytes, joined from parts that are encoded already.

Also the JSON-RPC message that carries one; the other messages are in `messages`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_encode = msgspec.json.encode

_TEXT_RESULT = b'{"resultType":"complete","content":[{"type":"text","text":'
_RESULT_META = b',"_meta":{"io.modelcontextprotocol/serverInfo":'


def response(id: bytes, result: bytes) -> bytes:
    """Write a result response from an encoded id and an encoded result."""
    return b"".join((b'{"jsonrpc":"2.0","id":', id, b',"result":', result, b"}"))


def server_meta(name: str, version: str, title: str | None = None) -> bytes:
    """Return the closing `_meta` member that every result of a server carries (WIRE-04)."""
    info: dict[str, str] = {"name": name, "version": version}
    if title:
        info["title"] = title
    return _RESULT_META + _encode(info) + b"}}"


def complete(members: bytes, meta: bytes) -> bytes:
    """Return a complete result from its members, encoded without braces."""
    comma = b"," if members else b""
    return b'{"resultType":"complete"' + comma + members + meta


def members(fields: Mapping[str, Any]) -> bytes:
    """Encode a mapping as members without the braces around them."""
    return _encode(fields)[1:-1]


def merged_meta(own: Mapping[str, Any], meta: bytes) -> bytes:
    """Put a handler's own `_meta` members before the server's."""
    if not own:
        return meta
    return b',"_meta":{' + _encode(own)[1:-1] + b"," + meta[len(b',"_meta":{') :]


def input_required(asks: Iterable[tuple[str, bytes]], token: str, meta: bytes) -> bytes:
    """Write an InputRequiredResult from keys and encoded requests."""
    parts = [b'{"resultType":"input_required"']
    before = b',"inputRequests":{'
    for key, body in asks:
        parts += (before, _encode(key), b":", body)
        before = b","
    if len(parts) > 1:
        parts.append(b"}")
    # A token is base64url: nothing in it needs escaping.
    parts += (b',"requestState":"', token.encode(), b'"', meta)
    return b"".join(parts)


def tool_result(content: bytes, structured: bytes | None, *, is_error: bool, meta: bytes) -> bytes:
    """Write a CallToolResult from its encoded parts."""
    parts = [b'"content":', content]
    if structured is not None:
        parts += [b',"structuredContent":', structured]
    parts.append(b',"isError":true' if is_error else b',"isError":false')
    return complete(b"".join(parts), meta)


def text_result(text: str, meta: bytes) -> bytes:
    """Write the result of a tool that returned a text."""
    return b"".join((_TEXT_RESULT, _encode(text), b'}],"isError":false', meta))


def text_content(text: str) -> bytes:
    """Encode a content list of one text block."""
    return b'[{"type":"text","text":' + _encode(text) + b"}]"


def form_request(message: str, schema: bytes) -> bytes:
    """Write an embedded form elicitation."""
    return (
        b'{"method":"elicitation/create","params":{"mode":"form","message":'
        + _encode(message)
        + b',"requestedSchema":'
        + schema
        + b"}}"
    )


def url_request(message: str, url: str) -> bytes:
    """Write an embedded URL elicitation."""
    return b'{"method":"elicitation/create","params":{"mode":"url","message":%b,"url":%b}}' % (
        _encode(message),
        _encode(url),
    )


def sample_request(params: bytes) -> bytes:
    """Write an embedded sampling request from its encoded params."""
    return b'{"method":"sampling/createMessage","params":' + params + b"}"


ROOTS_REQUEST = b'{"method":"roots/list"}'
"""An embedded roots request."""


def tool_error(text: str, meta: bytes) -> bytes:
    """Write the failure of a tool as a result, which the model can read."""
    return tool_result(text_content(text), None, is_error=True, meta=meta)
