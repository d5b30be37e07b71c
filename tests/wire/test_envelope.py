"""From bytes to a checked round."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.errors import InvalidRequest, TokenRefused
from antiphon.protocol.envelope import Served, admit, check_shape, claims_modern, parse, request_id
from antiphon.protocol.methods import MODERN_METHODS
from antiphon.protocol.request import MODERN, Principal, Request

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
DEPTH = 64


SERVED = Served((MODERN, "2027-01-01"), set(), dict(MODERN_METHODS), {})


def shape(raw: bytes) -> dict[str, Any]:
    message = parse(raw)
    check_shape(message, request_id(message), raw, DEPTH)
    return message


def round_of(method: str = "tools/call", meta: Any = None, **params: Any) -> Request:
    params.setdefault("name", "book")
    full = {**params, "_meta": {**META, **(meta or {})}}
    return admit({"jsonrpc": "2.0", "id": 1, "method": method, "params": full}, SERVED, Principal())


def refused(code: int, raw: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        shape(raw)
    assert caught.value.code == code
    return caught.value.message


# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"", b" ", b"{", b"{}x", b"NaN", b'{"a":NaN}', b'{"a":Infinity}', b"\xff",
        b'"\xed\xa0\x80"',
        b'{"a":"\\ud800"}', b'\xef\xbb\xbf{}', b'{"a":1,}', b"{'a':1}", b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}", '{"a":1}'.encode("utf-16"), b'{"a":"\x01"}',
    ],
)  # fmt: skip
def test_what_is_no_json_in_utf8_is_a_parse_error(raw: bytes) -> None:
    assert "JSON" in refused(-32700, raw)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"x"', b'[{"jsonrpc":"2.0"}]', b"[" * 5000])
def test_what_is_no_object_is_no_request(raw: bytes) -> None:
    if raw.startswith(b"[["):
        raw += b"]" * 5000
    refused(-32600, raw)


def test_a_large_integer_and_a_surrogate_pair_are_fine() -> None:
    raw = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":%d,"s":"\\ud83d\\ude00"}}' % 2**80
    assert shape(raw)["params"] == {"n": 2**80, "s": "😀"}


# --- JSON-RPC ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        '"id":1,"method":"m"',
        '"jsonrpc":"1.0","id":1,"method":"m"',
        '"jsonrpc":2.0,"id":1,"method":"m"',
        '"jsonrpc":"2.0","id":1',
        '"jsonrpc":"2.0","id":1,"method":5',
        '"jsonrpc":"2.0","id":null,"method":"m"',
        '"jsonrpc":"2.0","id":true,"method":"m"',
        '"jsonrpc":"2.0","id":1.0,"method":"m"',
        '"jsonrpc":"2.0","id":[1],"method":"m"',
        '"jsonrpc":"2.0","id":"' + "x" * 1025 + '","method":"m"',
        '"jsonrpc":"2.0","id":1,"result":{}',
        '"jsonrpc":"2.0","id":1,"method":"m","result":{}',
        '"jsonrpc":"2.0","id":1,"error":{}',
    ],
)
def test_what_is_no_jsonrpc_request_is_invalid(members: str) -> None:
    refused(-32600, b"{" + members.encode() + b"}")


@pytest.mark.parametrize("id", [0, -1, "", "x", 2**64])
def test_a_good_id_is_given_with_its_type(id: str | int) -> None:
    told = request_id(shape(msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "m"})))
    assert (told, type(told)) == (id, type(id))


def test_a_message_without_an_id_is_a_notification() -> None:
    assert request_id(shape(b'{"jsonrpc":"2.0","method":"m"}')) is None


DOUBLED = [
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}',
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1,"b":1}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[{"b":1},{"b":1,"\\u0062":2}]}}',
    b'{ "jsonrpc" : "2.0", "id":1, "method":"m", "params":{"a":1, "a":1}}',
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":1.0,"n":1.0}}',
]


@pytest.mark.parametrize("raw", DOUBLED)
def test_a_member_name_twice_in_one_object_is_refused(raw: bytes) -> None:
    assert "two members" in refused(-32600, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1},"c":{"b":1}}}',
        json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": "é", "b": 1e3}}, indent=2
        ).encode(),
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"n":1.0,"e":1E2,"z":-0}}',
        b'\n\t{"jsonrpc":"2.0","id":1,"method":"m"}\r\n',
    ],
)
def test_unusual_writing_without_doubled_names_is_fine(raw: bytes) -> None:
    assert shape(raw) == json.loads(raw)


def nested(levels: int) -> bytes:
    arguments = b'{"a":' * (levels - 2) + b"1" + b"}" * (levels - 2)
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":' + arguments + b"}}"


def test_nesting_is_allowed_up_to_its_limit() -> None:
    shape(nested(DEPTH))
    assert "deeper" in refused(-32600, nested(DEPTH + 1))
    refused(-32600, nested(50_000))


def test_many_brackets_that_do_not_nest_are_fine() -> None:
    wide = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"x": [[]] * 1000, "s": "[" * 99}}
    assert shape(msgspec.json.encode(wide)) == wide


# --- the envelope -----------------------------------------------------------------------------


@pytest.mark.parametrize("params", [None, [], "x", {}, {"_meta": None}, {"_meta": []}])
def test_params_and_meta_must_be_objects(params: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admit({"method": "tools/call", "params": params}, SERVED, Principal())
    assert caught.value.code == -32602


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("io.modelcontextprotocol/protocolVersion", 20260728),
        ("io.modelcontextprotocol/protocolVersion", None),
        ("io.modelcontextprotocol/clientCapabilities", None),
        ("io.modelcontextprotocol/clientCapabilities", True),
        ("io.modelcontextprotocol/clientCapabilities", []),
        ("io.modelcontextprotocol/logLevel", "loud"),
        ("io.modelcontextprotocol/logLevel", 5),
        ("progressToken", True),
        ("progressToken", 1.5),
        ("progressToken", {}),
    ],
)
def test_a_wrong_member_of_meta_is_named(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        round_of(meta={key: value})
    assert caught.value.code == -32602
    assert key in caught.value.message


def test_client_info_is_never_a_reason_to_refuse() -> None:
    assert round_of().client is None
    assert round_of(meta={"io.modelcontextprotocol/clientInfo": "desk"}).client is None
    assert round_of(meta={"io.modelcontextprotocol/clientInfo": {"name": 5}}).client == {"name": 5}


@pytest.mark.parametrize(
    ("traceparent", "kept"),
    [
        ("00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01", True),
        ("cc-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01-later", True),
        ("ff-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01", False),
        ("00-00000000000000000000000000000000-3d5f7a9b1c2d4e60-01", False),
        ("00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-0000000000000000-01", False),
        ("00-9B1F0C7C2C0E4F5EA1D3B7C95E60AA11-3d5f7a9b1c2d4e60-01", False),
        ("nonsense", False),
        (5, False),
    ],
)
def test_an_invalid_trace_is_ignored(traceparent: Any, kept: bool) -> None:
    assert round_of(meta={"traceparent": traceparent}).trace == (traceparent if kept else "")


def test_every_served_version_is_taken() -> None:
    assert round_of(meta={"io.modelcontextprotocol/protocolVersion": "2027-01-01"}).version == (
        "2027-01-01"
    )


def test_the_era_follows_from_the_body() -> None:
    assert claims_modern({"params": {"_meta": META}})
    assert not claims_modern({"params": {"_meta": {"progressToken": 1}}})
    assert not claims_modern({"params": []})
    assert not claims_modern({})


# --- answers and token -------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", 0, False, [], {}])
def test_a_state_of_the_wrong_shape_is_refused_like_a_bad_one(token: Any) -> None:
    with pytest.raises(TokenRefused):
        round_of(requestState=token)


def test_null_means_no_state_and_no_answers() -> None:
    round = round_of(requestState=None, inputResponses=None)
    assert (round.token, round.answers) == (None, None)


def test_answers_are_handed_on_as_they_came() -> None:
    assert round_of(inputResponses={}).answers == {}
    assert round_of(inputResponses=[1]).answers == [1]


def test_only_the_three_calls_carry_state_and_answers() -> None:
    round = round_of("tools/list", requestState=5, inputResponses={"a": {}})
    assert (round.token, round.answers) == (None, None)


# --- params of each method --------------------------------------------------------------------

PROMPT = {"type": "ref/prompt", "name": "p"}
ARGUMENT = {"name": "a", "value": "v"}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"arguments": None}),
        ("tools/call", {"arguments": {"a": [1]}}),
        ("prompts/get", {"arguments": {"a": "b"}}),
        ("resources/read", {"uri": "x://y"}),
        ("tools/list", {"cursor": ""}),
        ("tools/list", {"cursor": None}),
        ("completion/complete", {"ref": PROMPT, "argument": ARGUMENT}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "x"},
                "argument": ARGUMENT,
                "context": {"arguments": {"b": "c"}},
            },
        ),
        ("completion/complete", {"ref": PROMPT, "argument": ARGUMENT, "context": {}}),
        ("subscriptions/listen", {"notifications": {}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["a"], "new": 1}}),
        ("tasks/get", {"taskId": "t"}),
        ("tasks/update", {"taskId": "t", "inputResponses": {}}),
    ],
)
def test_params_of_the_right_shape_pass(method: str, params: dict[str, Any]) -> None:
    round = round_of(method, **params)
    assert round.params.items() >= params.items()
    assert round.method == method


@pytest.mark.parametrize(
    ("method", "params", "names"),
    [
        ("tools/call", {"name": None}, "name"),
        ("tools/call", {"name": 5}, "name"),
        ("tools/call", {"name": ""}, "name"),
        ("tools/call", {"name": "x" * 9000}, "name"),
        ("tools/call", {"arguments": []}, "arguments"),
        ("prompts/get", {"arguments": {"a": 1}}, "arguments"),
        ("resources/read", {}, "uri"),
        ("resources/list", {"cursor": 5}, "cursor"),
        ("completion/complete", {"argument": ARGUMENT}, "ref"),
        ("completion/complete", {"ref": {"type": "ref/other"}, "argument": ARGUMENT}, "ref"),
        ("completion/complete", {"ref": {"type": []}, "argument": ARGUMENT}, "ref"),
        ("completion/complete", {"ref": PROMPT}, "argument"),
        ("completion/complete", {"ref": PROMPT, "argument": {"name": "a"}}, "argument"),
        ("completion/complete", {"ref": PROMPT, "argument": ARGUMENT, "context": 5}, "context"),
        ("subscriptions/listen", {}, "notifications"),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": 1}}, "toolsListChanged"),
        ("subscriptions/listen", {"notifications": {"taskIds": "t"}}, "taskIds"),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": ["u"] * 1001}},
            "resourceSubscriptions",
        ),
        ("tasks/get", {}, "taskId"),
        ("tasks/update", {"taskId": "t"}, "inputResponses"),
    ],
)
def test_params_of_the_wrong_shape_are_named(
    method: str, params: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        round_of(method, **params)
    assert caught.value.code == -32602
    assert names in caught.value.message


def test_an_unknown_method_is_named_without_what_could_harm_a_terminal() -> None:
    with pytest.raises(InvalidRequest) as caught:
        round_of("\x1b[2Jboo")
    assert caught.value.code == -32601
    assert "\x1b" not in caught.value.message
