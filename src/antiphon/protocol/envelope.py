"""From the bytes of one message to a checked `Request`: one parse, then checks in a fixed order.

The order is that of HTTP-21 and is the same on every transport:

    parse      JSON (-32700), a JSON-RPC message (-32600)
    (the transport chooses the era here)
    admit      envelope keys (-32602), mirrored headers (-32020), version served (-32022),
               method known (-32601), params (-32602), `Mcp-Param-*` headers (-32020)

Owns what a message must look like. Answers and token are handed on unchecked: only the engine can
open a token.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias, cast

import msgspec

from antiphon.errors import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
    InvalidRequest,
    TokenRefused,
)
from antiphon.protocol import params as shapes
from antiphon.protocol.headers import (
    TRACE,
    HeaderParam,
    Headers,
    check_mirrors,
    check_params,
)
from antiphon.protocol.methods import MODERN_METHODS, Method, Offered
from antiphon.protocol.request import (
    IDEMPOTENCY_KEY,
    LEVELS,
    NO_CHANNEL,
    Channel,
    Principal,
    Request,
)
from antiphon.protocol.text import safe

Json: TypeAlias = dict[str, Any]

PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

ID_LENGTH = 1024
"""Characters of a request id. It is kept while the request runs and repeated in its answer."""

CONTAINERS = 50_000
"""Opening brackets in one message: walking through them is work that any client can cause."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.{1,200})?"
)
_NO_ANSWER_TEXT = 200
_KEY_LENGTH = 256

# Compared with `type(...) is`: JSON objects are plain dicts, and Any stays Any to the type checker.
_OBJECT: Any = dict

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Served(msgspec.Struct):
    """What a server serves at this moment. Its owner changes it as handlers are registered."""

    versions: tuple[str, ...]
    capabilities: set[Offered]
    """What has been declared; never taken back."""

    methods: dict[str, Method]
    """The methods of the table whose capability is declared."""

    header_params: dict[str, Mapping[str, HeaderParam]]
    """For the tools that have some: which arguments headers mirror."""


class RequestHeaders(msgspec.Struct, frozen=True):
    """The headers of one HTTP request, for the transports that have some."""

    values: Headers
    doubled: frozenset[bytes] = frozenset()
    """Names that were sent more than once."""


class EnvelopeMeta(msgspec.Struct, frozen=True):
    """What `_meta` says. Requests may share one: nobody may change what it holds."""

    version: str
    capabilities: Json
    client: Json | None
    progress_token: str | int | None
    log_level: str | None
    trace: str


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
    """Return the id of a request, or None when it has none that an answer could repeat.

    A response has an id too, but of a request that the server sent.
    """
    if "result" in message or "error" in message:
        return None
    id = message.get("id")
    if type(id) is str:
        return id if len(id) <= ID_LENGTH else None
    return id if type(id) is int else None


def check_shape(
    message: Json, id: str | int | None, raw: bytes, depth: int, *, answers: bool = False
) -> None:
    """Refuse what is no single JSON-RPC 2.0 request or notification (BASE-01, BASE-02).

    `id` is what `request_id` said; with None the message is a notification or refused here. Where
    the client can be asked, `answers` lets its responses pass.
    """
    if message.get("jsonrpc") != "2.0":
        raise _invalid('the member "jsonrpc" must be "2.0"')
    if answers and "method" not in message and ("result" in message or "error" in message):
        pass
    elif type(message.get("method")) is not str:
        raise _invalid('the member "method" must be a string')
    elif id is None and ("result" in message or "error" in message):
        raise _invalid("responses are not accepted")
    elif id is None and "id" in message:
        raise _invalid(f'"id" must be an integer or a string of at most {ID_LENGTH} characters')
    # Each level needs an opening bracket: few brackets cannot nest deeply.
    brackets = raw.count(b"{") + raw.count(b"[")
    if brackets > depth:
        if brackets > CONTAINERS:
            raise _invalid(f"the message has more than {CONTAINERS} brackets")
        if is_deeper(message, depth):
            raise _invalid(f"the message is nested deeper than {depth} levels")
    if _encode(message) != raw:
        _refuse_doubled(message, raw)


def _refuse_doubled(message: Json, raw: bytes) -> None:
    """Refuse a member name that stands twice in one object: readers would disagree about it.

    Decoding keeps only the last of them, so bytes that encode again to themselves have none.
    White space is ignored; only escapes and unusual numbers need the slow reader.
    """
    if msgspec.json.format(raw, indent=-1) == _encode(message):
        return
    json.loads(raw, object_pairs_hook=_unique, parse_int=_skip, parse_float=_skip)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise _invalid("an object of the message has two members of the same name")


def _skip(_: str) -> None:
    """Ignore a number: only names matter here, and a number may have many digits."""


def is_deeper(value: object, depth: int) -> bool:
    """Whether a JSON value is nested more than so many levels deep."""
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
    """Refuse a client of the earlier era; the error names the versions served (VER-34)."""
    params = message.get("params")
    offered = cast("Json", params).get("protocolVersion") if type(params) is dict else None
    raise _unsupported(served, offered if isinstance(offered, str) else "")


# --- admit ------------------------------------------------------------------------------------


def admit(
    message: Json,
    served: Served,
    principal: Principal,
    *,
    headers: RequestHeaders | None = None,
    channel: Channel = NO_CHANNEL,
) -> Request:
    """Check a modern request and make a `Request` of it.

    Raises:
        InvalidRequest: The first rule it breaks, in the order above.
        TokenRefused: `requestState` is not a string, or is empty.
    """
    name: str = message["method"]
    params: Any = message.get("params")
    meta, version, capabilities = _required(params)
    method = MODERN_METHODS.get(name)
    member = method.target if method is not None else None
    target: Any = params.get(member) if member is not None else None
    if headers is not None:
        check_mirrors(headers.values, headers.doubled, version, name, target)
    if version not in served.versions or method is None or name not in served.methods:
        raise _not_served(served, version, name)
    arguments = shapes.check(name, member, params)
    request = Request(
        method=name,
        target=target if member is not None else "",
        arguments=arguments,
        answers=params.get("inputResponses") if method.may_ask else None,
        token=_token(params) if method.may_ask else None,
        capabilities=capabilities,
        principal=principal,
        version=version,
        channel=channel,
        params=params,
        id=message.get("id"),
    )
    _optional(request, meta, headers)
    if headers is not None and name == "tools/call" and target in served.header_params:
        check_params(headers.values, headers.doubled, served.header_params[target], arguments)
    return request


def read_meta(meta: Json) -> EnvelopeMeta:
    """Read all that `_meta` says.

    Raises:
        InvalidRequest: A member is missing or wrong.
    """
    _, version, capabilities = _required({"_meta": meta})
    return EnvelopeMeta(
        version,
        capabilities,
        _client(meta),
        _progress_token(meta),
        _log_level(meta),
        valid_trace(meta.get("traceparent")),
    )


def _required(params: Any) -> tuple[Json, str, Json]:
    """Return `_meta` and its required members (WIRE-02)."""
    if type(params) is not _OBJECT:
        raise InvalidRequest('"params" with "_meta" is missing or not an object')
    meta = params.get("_meta")
    if type(meta) is not _OBJECT:
        raise InvalidRequest('params need an object "_meta"')
    version, capabilities = meta.get(PROTOCOL_VERSION), meta.get(CLIENT_CAPABILITIES)
    if type(version) is not str:
        raise InvalidRequest(f'_meta needs "{PROTOCOL_VERSION}", a string')
    if type(capabilities) is not _OBJECT:
        raise InvalidRequest(f'_meta needs "{CLIENT_CAPABILITIES}", an object')
    return meta, version, capabilities


def _optional(request: Request, meta: Json, headers: RequestHeaders | None) -> None:
    """Read what `_meta` may hold besides its required members."""
    request.client = _client(meta)
    request.progress_token = _progress_token(meta)
    request.log_level = _log_level(meta)
    request.trace = valid_trace(meta.get("traceparent"))
    if not request.trace and headers is not None:
        request.trace = valid_trace(headers.values.get(TRACE))
    if IDEMPOTENCY_KEY in meta:
        request.idempotency_key = _idempotency_key(meta)


def _client(meta: Json) -> Json | None:
    client = meta.get(CLIENT_INFO)
    # For display only: one that is malformed is not worth refusing a request for.
    return client if type(client) is _OBJECT else None


def _token(params: Json) -> str | None:
    token = params.get("requestState")
    return None if token is None else token if type(token) is str and token else _refuse_token()


def _refuse_token() -> NoReturn:
    raise TokenRefused("shape")


def _not_served(served: Served, version: str, name: str) -> InvalidRequest:
    """Name what is not served: the version, else the method."""
    if version not in served.versions:
        return _unsupported(served, version)
    text = f"Method not found: {safe(name, _NO_ANSWER_TEXT)}"
    return InvalidRequest(text, code=METHOD_NOT_FOUND)


def _progress_token(meta: Json) -> str | int | None:
    token = meta.get("progressToken")
    if token is None or type(token) is str or type(token) is int:
        return token
    raise InvalidRequest('"progressToken" must be a string or an integer')


def _idempotency_key(meta: Json) -> str:
    key = meta[IDEMPOTENCY_KEY]
    if type(key) is str and 0 < len(key) <= _KEY_LENGTH:
        return key
    raise InvalidRequest(f'"{IDEMPOTENCY_KEY}" must be a text of 1 to {_KEY_LENGTH} characters')


def _log_level(meta: Json) -> str | None:
    level = meta.get(LOG_LEVEL)
    if level is None or level in LEVELS:
        return level
    raise InvalidRequest(f'"{LOG_LEVEL}" must be one of {", ".join(LEVELS)}')


def valid_trace(sent: object) -> str:
    """Return a `traceparent` as text, or nothing where there is none that is valid."""
    text = sent.decode("latin-1") if type(sent) is bytes else sent
    return text if type(text) is str and _TRACEPARENT.fullmatch(text) else ""


def _unsupported(served: Served, requested: str) -> InvalidRequest:
    supported = list(served.versions)
    return InvalidRequest(
        f"Unsupported protocol version; this server speaks {', '.join(supported)}",
        code=VERSION_UNSUPPORTED,
        data={"supported": supported, "requested": safe(requested, _NO_ANSWER_TEXT)},
    )


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid Request: {message}", code=INVALID_REQUEST)
