"""From the bytes of one message to a checked `Request`: one parse, then checks in a fixed order.

The order is that of HTTP-21 and is the same on every transport:

    parse      JSON (-32700), a JSON-RPC message (-32600)
    (the adapter chooses the era here)
    admit      envelope keys (-32602), mirrored headers (-32020), version served (-32022),
               method known (-32601), params (-32602), `Mcp-Param-*` headers (-32020)

Owns what a message must look like. Knows no transport, no handler and no token: answers and token
are handed on as they came, because only the engine can tell what they are worth.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import msgspec

from antiphon.core.limits import Limits
from antiphon.core.request import LEVELS, Channel, Principal, Request
from antiphon.core.text import safe
from antiphon.errors import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
    InvalidRequest,
    TokenRefused,
)
from antiphon.wire import params as shapes
from antiphon.wire.headers import HeaderParam, Headers, check_mirrors, check_params

Json: TypeAlias = dict[str, Any]

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

ID_LENGTH = 1024
"""Characters of a request id. It is kept while the request runs and repeated in its answer."""

CONTAINERS = 50_000
"""Opening brackets in one message: walking through them is work that a stranger orders."""

NAMED = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Methods with a target, and the member of params that names it; mirrored by `Mcp-Name`."""

MULTI_ROUND = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The only methods that may ask, so the only ones that may carry answers and a token."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.{1,200})?"
)
_NO_ANSWER_TEXT = 200

# Compared with `type(...) is`: JSON objects are plain dicts, and Any stays Any to the type checker.
_OBJECT: Any = dict

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Served(Protocol):
    """What the checks must know of a server."""

    @property
    def limits(self) -> Limits: ...
    @property
    def versions(self) -> tuple[str, ...]: ...
    def serves(self, method: str) -> bool:
        """Whether the method is known and its capability declared."""
        ...

    def header_params(self, tool: str) -> Mapping[str, HeaderParam] | None:
        """What headers mirror of a tool's arguments; None when nothing."""
        ...


class Mirror(msgspec.Struct, frozen=True):
    """The headers of one HTTP request, for the transports that have some."""

    headers: Headers
    doubled: frozenset[bytes] = frozenset()


# --- parse ------------------------------------------------------------------------------------


def parse(raw: bytes) -> Json:
    """Decode one message.

    Raises:
        InvalidRequest: It is no JSON (-32700) or no JSON object (-32600); its id is not known.
    """
    try:
        message: Any = _decode(raw)
    except RecursionError:
        raise _invalid("the message is nested too deeply") from None
    except ValueError:  # malformed, not UTF-8, a lone surrogate, a number out of range
        raise InvalidRequest("Parse error: not valid JSON in UTF-8", code=PARSE_ERROR) from None
    if type(message) is not _OBJECT:
        raise _invalid("a message must be one JSON object; batches are not supported")
    return message


def request_id(message: Json) -> str | int | None:
    """Give the id of a request, or None when it has none that an answer could repeat.

    A response has an id too, but of a request that we sent, so it is not ours to repeat.
    """
    if "result" in message or "error" in message:
        return None
    id = message.get("id")
    if type(id) is str:
        return id if len(id) <= ID_LENGTH else None
    return id if type(id) is int else None


def check_shape(message: Json, id: str | int | None, raw: bytes, depth: int) -> None:
    """Refuse what is no single JSON-RPC 2.0 request or notification (BASE-01, BASE-02, S2-5).

    `id` is what `request_id` said; with None the message is a notification or refused here.
    """
    if message.get("jsonrpc") != "2.0":
        raise _invalid('the member "jsonrpc" must be "2.0"')
    if type(message.get("method")) is not str:
        raise _invalid('the member "method" must be a string')
    if id is None and ("result" in message or "error" in message):
        raise _invalid("responses are not accepted")
    if id is None and "id" in message:
        raise _invalid(f'"id" must be an integer or a string of at most {ID_LENGTH} characters')
    # Each level needs an opening bracket: few brackets cannot nest deeply.
    brackets = raw.count(b"{") + raw.count(b"[")
    if brackets > depth:
        if brackets > CONTAINERS:
            raise _invalid(f"the message has more than {CONTAINERS} brackets")
        if _deeper(message, depth):
            raise _invalid(f"the message is nested deeper than {depth} levels")
    if _encode(message) != raw:
        _refuse_doubled(message, raw)


def _refuse_doubled(message: Json, raw: bytes) -> None:
    """Refuse a member name that stands twice in one object: readers would disagree about it.

    Decoding drops all but the last, so bytes that encode again to themselves have none. Blanks
    are looked through; only escapes and unusual numbers need the slow reader.
    """
    if msgspec.json.format(raw, indent=-1) == _encode(message):
        return
    json.loads(raw, object_pairs_hook=_unique, parse_int=_skip, parse_float=_skip)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _invalid("an object of the message has two members of the same name")


def _skip(_: str) -> None:
    """Read a number as nothing: only names matter here, and digits can be many."""


def _deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [inner for one in level for inner in _contained(one)]
        if not level:
            return False
    return True


def _contained(value: object) -> list[object]:
    if type(value) is dict:
        inner = list(cast("dict[str, object]", value).values())
    elif type(value) is list:
        inner = cast("list[object]", value)
    else:
        return []
    return [one for one in inner if type(one) is dict or type(one) is list]


# --- era --------------------------------------------------------------------------------------


def claims_modern(message: Json) -> bool:
    """Whether the body names a protocol version for itself, which only modern requests do."""
    params = message.get("params")
    if type(params) is not dict:
        return False
    meta = cast("Json", params).get("_meta")
    return type(meta) is dict and PROTOCOL_VERSION in meta


def refuse_handshake(message: Json, served: Served) -> NoReturn:
    """Tell a client of the earlier era what a server without that era speaks (VER-34)."""
    params = message.get("params")
    offered = cast("Json", params).get("protocolVersion") if type(params) is dict else None
    raise _unsupported(served, offered if isinstance(offered, str) else "")


# --- admit ------------------------------------------------------------------------------------


def admit(
    message: Json,
    served: Served,
    principal: Principal,
    *,
    mirror: Mirror | None = None,
    channel: Channel | None = None,
    trace: str = "",
) -> Request:
    """Check a modern request and make a `Request` of it.

    Raises:
        InvalidRequest: The first rule it breaks, in the order above.
        TokenRefused: `requestState` is not a string, or is empty (S2-7).
    """
    method: str = message["method"]
    params: Any = message.get("params")
    meta, version, capabilities = _envelope(params)
    member = NAMED.get(method)
    target: Any = params.get(member) if member is not None else None
    if mirror is not None:
        check_mirrors(mirror.headers, mirror.doubled, version, method, target)
    if version not in served.versions:
        raise _unsupported(served, version)
    if not served.serves(method):
        raise InvalidRequest(
            f"Method not found: {safe(method, _NO_ANSWER_TEXT)}", code=METHOD_NOT_FOUND
        )
    arguments = shapes.check(method, member, params)
    round = Request(
        method=method,
        target=target if member is not None else "",
        arguments=arguments,
        capabilities=capabilities,
        principal=principal,
        version=version,
        channel=channel,
        params=params,
    )
    _optional(round, params, meta, trace)
    if mirror is not None and method == "tools/call":
        mirrored = served.header_params(round.target)
        if mirrored:
            check_params(mirror.headers, mirror.doubled, mirrored, arguments)
    return round


def _optional(round: Request, params: Json, meta: Json, trace: str) -> None:
    """Read what a request may bring; most bring little of it."""
    if round.method in MULTI_ROUND:
        round.answers = params.get("inputResponses")
        if "requestState" in params:
            round.token = _token(params)
    client = meta.get(CLIENT_INFO)
    if type(client) is _OBJECT:
        # For display only: one that is malformed is not worth refusing a request for.
        round.client = client
    if "progressToken" in meta:
        round.progress_token = _progress_token(meta)
    if LOG_LEVEL in meta:
        round.log_level = _log_level(meta)
    if trace or "traceparent" in meta:
        round.trace = _trace(meta, trace)


def _envelope(params: Any) -> tuple[Json, str, Json]:
    """Read the required members of `_meta`; they must stand on every request (WIRE-02)."""
    if type(params) is not _OBJECT:
        raise InvalidRequest('"params" with "_meta" is missing or not an object')
    meta: Any = params.get("_meta")
    if type(meta) is not _OBJECT:
        raise InvalidRequest('params need an object "_meta"')
    version: Any = meta.get(PROTOCOL_VERSION)
    if type(version) is not str:
        raise InvalidRequest(f'_meta needs "{PROTOCOL_VERSION}", a string')
    capabilities: Any = meta.get(CLIENT_CAPABILITIES)
    if type(capabilities) is not _OBJECT:
        raise InvalidRequest(f'_meta needs "{CLIENT_CAPABILITIES}", an object')
    return meta, version, capabilities


def _token(params: Json) -> str | None:
    token = params["requestState"]
    if token is None:
        return None
    if type(token) is not str or not token:
        raise TokenRefused("shape")
    return token


def _progress_token(meta: Json) -> str | int | None:
    token = meta["progressToken"]
    if token is None or type(token) is str or type(token) is int:
        return token
    raise InvalidRequest('"progressToken" must be a string or an integer')


def _log_level(meta: Json) -> str | None:
    level = meta[LOG_LEVEL]
    if level is None or level in LEVELS:
        return level
    raise InvalidRequest(f'"{LOG_LEVEL}" must be one of {", ".join(LEVELS)}')


def _trace(meta: Json, header: str) -> str:
    """Take the trace of `_meta`, else that of the transport; an invalid one counts as none."""
    own = meta.get("traceparent")
    if type(own) is str and _TRACEPARENT.fullmatch(own):
        return own
    return header if header and _TRACEPARENT.fullmatch(header) else ""


def _unsupported(served: Served, requested: str) -> InvalidRequest:
    supported = list(served.versions)
    return InvalidRequest(
        f"Unsupported protocol version; this server speaks {', '.join(supported)}",
        code=VERSION_UNSUPPORTED,
        data={"supported": supported, "requested": safe(requested, _NO_ANSWER_TEXT)},
    )


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid Request: {message}", code=INVALID_REQUEST)
