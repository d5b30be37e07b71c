"""What is recognised in one decode is what reading in full accepts, and the same request."""

import json
import random
from typing import Any

import msgspec
import pytest

from antiphon.errors import CallerError
from antiphon.protocol.envelope import RequestHeaders, Served, admit, check_shape, parse, request_id
from antiphon.protocol.headers import METHOD, NAME, VERSION, compile_header_params, read_mirrors
from antiphon.protocol.messages import encode_id
from antiphon.protocol.methods import MODERN_METHODS
from antiphon.protocol.ordinary import KEPT_METAS, OrdinaryRequests
from antiphon.protocol.request import MODERN, NO_CHANNEL, Principal, Request

DEPTH = 8
REGION = compile_header_params(
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
)
SERVED = Served((MODERN,), set(), dict(MODERN_METHODS), {"book": REGION})
CALLER = Principal(subject="ann")
TRACE = "00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "desk", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}
ANSWERS = {"where": {"action": "accept", "content": {"region": "eu", "size": 2}}}


def call(method: str = "tools/call", id: Any = 7, meta: Any = None, **params: Any) -> bytes:
    params = {**params, "_meta": {**META, **(meta or {})}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


ORDINARY = [
    call(name="book"),
    call(name="book", arguments={}),
    call(name="plan", id="a-1", arguments={"city": "Zürich", "n": [1, {"x": None}], "f": 1.5}),
    call(name="plan", arguments={"a": 1}, inputResponses=ANSWERS, requestState="abc"),
    call(name="plan", meta={"progressToken": 5}, arguments={"a": "b"}),
    call(name="plan", meta={"traceparent": TRACE, "io.modelcontextprotocol/logLevel": "info"}),
    call(name="plan", meta={"progressToken": "p", "traceparent": TRACE, "tracestate": "a=1"}),
    call(name="plan", meta={"tracestate": "a=1"}),
    call(name="plan", meta={"progressToken": None, "traceparent": ""}),
    call(name="plan", meta={"progressToken": 5, "traceparent": "nonsense"}),
    call(name="plan", meta={"progressToken": 5, "traceparent": 7}),
    call(name="plan", meta={"progressToken": 5, "org.example/more": {"a": 1}}),
    call("prompts/get", name="greet", arguments={"who": "Bo"}),
    call("resources/read", uri="shop://stock/ä"),
]


def headers_of(raw: bytes) -> dict[bytes, bytes]:
    """Mirror a message as a client does, whatever else is wrong with it."""
    message = json.loads(raw)
    params = message["params"]
    target = params.get("name") or params.get("uri") or ""
    plain = target.isascii() and target.isprintable()
    name = target.encode() if plain else b"=?base64?c2hvcDovL3N0b2NrL8Ok?="
    return {VERSION: MODERN.encode(), METHOD: message["method"].encode(), NAME: name}


def in_full(raw: bytes, headers: dict[bytes, bytes] | None = None) -> tuple[bytes, Request]:
    message = parse(raw)
    id = request_id(message)
    check_shape(message, id, raw, DEPTH)
    assert id is not None
    given = None if headers is None else RequestHeaders(headers)
    request = admit(message, SERVED, CALLER, headers=given)
    assert msgspec.json.decode(meta_of(raw)) == request.params["_meta"]
    return encode_id(id), msgspec.structs.replace(request, params={}, encoded_meta=meta_of(raw))


class _Params(msgspec.Struct):
    meta: msgspec.Raw = msgspec.field(name="_meta")


class _Message(msgspec.Struct):
    params: _Params


def meta_of(raw: bytes) -> bytes:
    """Return the bytes of a request's `_meta`."""
    return bytes(msgspec.json.decode(raw, type=_Message).params.meta)


def recognised(raw: bytes, headers: dict[bytes, bytes] | None = None) -> Any:
    mirrors = None
    if headers is not None:
        mirrors = read_mirrors(headers.get(VERSION), headers.get(METHOD), headers.get(NAME))
    reader = OrdinaryRequests(SERVED, DEPTH)
    first = reader.read(raw, CALLER, NO_CHANNEL, mirrors, headers or {})
    assert reader.read(raw, CALLER, NO_CHANNEL, mirrors, headers or {}) == first
    return first


@pytest.mark.parametrize("raw", ORDINARY)
def test_an_ordinary_request_is_the_one_that_reading_in_full_gives(raw: bytes) -> None:
    assert recognised(raw) == in_full(raw)
    headers = headers_of(raw)
    assert recognised(raw, headers) == in_full(raw, headers)
    assert recognised(raw, headers) is not None


def test_a_trace_may_come_as_a_header() -> None:
    raw = call(name="plan")
    headers = {**headers_of(raw), b"traceparent": TRACE.encode()}
    assert recognised(raw, headers) == in_full(raw, headers)
    assert recognised(raw, headers)[1].trace == TRACE
    headers[b"traceparent"] = b"nonsense"
    assert recognised(raw, headers)[1].trace == ""


def test_requests_that_repeat_their_meta_keep_their_own_token_and_trace() -> None:
    reader = OrdinaryRequests(SERVED, DEPTH)
    for number in range(3):
        trace = f"{TRACE[:-2]}0{number}"
        raw = call(name="plan", meta={"progressToken": number, "traceparent": trace})
        found = reader.read(raw, CALLER, NO_CHANNEL)
        assert found == in_full(raw)
        assert found is not None
        assert (found[1].progress_token, found[1].trace) == (number, trace)
    assert reader.read(call(name="plan"), CALLER, NO_CHANNEL) == in_full(call(name="plan"))


VERSION_MEMBER = b"io.modelcontextprotocol/protocolVersion"
OWN = call(name="plan", meta={"progressToken": 5})
TEXT = call(name="plan", arguments={"a": 1, "b": {"c": 2}}, requestState="abc")

NOT_ORDINARY = {
    "member of the message twice": TEXT.replace(b'"id":7', b'"id":7,"id":7'),
    "member of params twice": TEXT.replace(b'"name":"plan"', b'"name":"plan","name":"plan"'),
    "_meta twice": TEXT.replace(b'"_meta":{', b'"_meta":{},"_meta":{'),
    "progress token twice": OWN.replace(b'"progressToken"', b'"progressToken":6,"progressToken"'),
    "version twice": OWN.replace(b'"_meta":{', b'"_meta":{"%s":"x",' % VERSION_MEMBER),
    "inner member of _meta twice": OWN.replace(b'"form":{}', b'"form":{},"form":{}'),
    "white space in _meta": OWN.replace(b'"form":{}', b'"form": {}'),
    "a _meta nested deeply": OWN.replace(b'"form":{}', b'"form":' + b"[" * 20 + b"]" * 20),
    "argument twice": TEXT.replace(b'"a":1', b'"a":1,"a":1'),
    "inner argument twice": TEXT.replace(b'"c":2', b'"c":2,"c":2'),
    "escaped name": TEXT.replace(b'"plan"', b'"\\u0070lan"'),
    "escaped argument": TEXT.replace(b'"a":1', b'"\\u0061":1'),
    "white space": TEXT.replace(b'"id":7', b'"id": 7'),
    "another member": TEXT.replace(b'"id":7', b'"id":7,"x":1'),
    "another param": TEXT.replace(b'"name":', b'"x":1,"name":'),
    "unusual number": TEXT.replace(b'"a":1', b'"a":1E2'),
    "negative zero": TEXT.replace(b'"id":7', b'"id":-0'),
    "an id that is no integer": TEXT.replace(b'"id":7', b'"id":7.0'),
    "an id with an exponent": TEXT.replace(b'"id":7', b'"id":1e9'),
    "no id": TEXT.replace(b'"id":7,', b""),
    "a long id": TEXT.replace(b'"id":7', b'"id":"' + b"x" * 1025 + b'"'),
    "not UTF-8 in an argument": TEXT.replace(b'"a":1', b'"a":"\xff"'),
    "a lone surrogate": TEXT.replace(b'"a":1', b'"a":"\\ud800"'),
    "nested deeply": TEXT.replace(b'"a":1', b'"a":' + b"[" * 20 + b"]" * 20),
    "another version": TEXT.replace(MODERN.encode(), b"1999-01-01"),
    "another method": TEXT.replace(b"tools/call", b"tools/list"),
    "no method": TEXT.replace(b"tools/call", b"tools/none"),
    "arguments that are a list": call(name="plan", arguments=[1]),
    "arguments that are null": call(name="plan", arguments=None),
    "numbers for a prompt": call("prompts/get", name="greet", arguments={"who": 1}),
    "an empty name": call(name=""),
    "a long name": call(name="x" * 9_000),
    "an empty state": call(name="plan", requestState=""),
    "a state that is no text": call(name="plan", requestState=5),
    "a wrong progress token": call(name="plan", meta={"progressToken": 1.5}),
    "a wrong log level": call(name="plan", meta={"io.modelcontextprotocol/logLevel": "loud"}),
    "no capabilities": TEXT.replace(b"clientCapabilities", b"clientCapabilitiez"),
    "no JSON": TEXT[:-1],
    "two messages": TEXT + TEXT,
    "a batch": b"[" + TEXT + b"]",
}


@pytest.mark.parametrize("raw", NOT_ORDINARY.values(), ids=NOT_ORDINARY.keys())
def test_everything_unusual_is_left_to_reading_in_full(raw: bytes) -> None:
    assert recognised(raw) is None


@pytest.mark.parametrize("header", [VERSION, METHOD, NAME])
@pytest.mark.parametrize("value", [b"", b"other", b"\xff", b"=?base64?!?=", None])
def test_headers_that_do_not_mirror_the_body_are_left_to_reading_in_full(
    header: bytes, value: bytes | None
) -> None:
    headers = headers_of(TEXT)
    if value is None:
        del headers[header]
    else:
        headers[header] = value
    assert recognised(TEXT, headers) is None
    with pytest.raises(CallerError):
        in_full(TEXT, headers)


def test_headers_that_do_not_mirror_an_argument_are_left_to_reading_in_full() -> None:
    raw = call(name="book", arguments={"region": "eu"})
    headers = headers_of(raw)
    assert recognised(raw, {**headers, b"mcp-param-region": b"eu"}) is not None
    assert recognised(raw, {**headers, b"mcp-param-region": b"us"}) is None
    assert recognised(raw, headers) is None


def test_whatever_is_recognised_reading_in_full_accepts() -> None:
    """Cut, repeat and move parts of messages at random; both ways of reading must agree."""
    chance = random.Random(2026)
    accepted = 0
    for _ in range(30_000):
        raw = mutated(chance, chance.choice(ORDINARY))
        found = recognised(raw)
        if found is not None:
            accepted += 1
            assert in_full(raw) == found, raw
    assert accepted > 300


def mutated(chance: random.Random, raw: bytes) -> bytes:
    for _ in range(chance.randint(1, 2)):
        start = chance.randrange(len(raw))
        end = min(len(raw), start + chance.choice((1, 2, 4, 8, 16)))
        part = raw[start:end]
        match chance.randrange(4):
            case 0:
                raw = raw[:start] + raw[end:]
            case 1:
                raw = raw[:end] + part + raw[end:]
            case 2:
                raw = raw[:start] + bytes([chance.randrange(256)]) + raw[start + 1 :]
            case _:
                place = chance.randrange(len(raw))
                raw = (
                    raw[:place]
                    + chance.choice((b" ", b"\\", b'"', b"1", b"{}", part))
                    + raw[place:]
                )
    return raw


def test_the_metas_that_are_kept_are_bounded() -> None:
    reader = OrdinaryRequests(SERVED, DEPTH)
    for n in range(3 * KEPT_METAS):
        raw = call(name="plan", meta={"own": n})
        assert reader.read(raw, CALLER, NO_CHANNEL) is not None
        assert len(reader._metas) <= KEPT_METAS
    large = call(name="plan", meta={"own": "x" * 5_000})
    kept = len(reader._metas)
    assert reader.read(large, CALLER, NO_CHANNEL) is not None
    assert len(reader._metas) == kept
