"""Messages as bytes."""

import msgspec
import pytest

from antiphon.errors import CapabilityMissing, InvalidRequest, TokenRefused, Unavailable
from antiphon.protocol import messages, results


def test_a_response_joins_what_was_encoded() -> None:
    assert results.response(b'"a"', b'{"x":1}') == b'{"jsonrpc":"2.0","id":"a","result":{"x":1}}'


def test_an_error_without_a_readable_id_has_no_id_member() -> None:
    assert messages.error(None, -32700, "no") == (
        b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}'
    )
    assert messages.error(b"0", -32603, "no", {"a": None}) == (
        b'{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"no","data":{"a":null}}}'
    )


def test_text_and_data_that_json_cannot_carry_do_not_hide_the_error() -> None:
    error = msgspec.json.decode(messages.error(b"1", -32602, "\ud800", object()))["error"]
    assert error == {"code": -32602, "message": "?"}


def test_a_refusal_tells_code_message_and_data() -> None:
    refused = CapabilityMissing({"sampling": {}}, "the tool 'a'")
    error = msgspec.json.decode(messages.refusal(b"1", refused))["error"]
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"sampling": {}}})


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (InvalidRequest("", code=-32700), 400),
        (InvalidRequest("", code=-32600), 400),
        (InvalidRequest("", code=-32601), 404),
        (InvalidRequest(""), 400),
        (InvalidRequest("", code=-32020), 400),
        (InvalidRequest("", code=-32022), 400),
        (CapabilityMissing({}), 400),
        (TokenRefused("expired"), 400),
        (Unavailable(""), 200),
    ],
)
def test_each_code_has_its_http_status(refused: InvalidRequest, status: int) -> None:
    assert messages.status(refused.code) == status


def test_an_event_is_two_lines_and_an_empty_one() -> None:
    note = messages.notification("notifications/message", {"data": "two\nlines"})
    assert messages.sse(note) == (
        b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message",'
        b'"params":{"data":"two\\nlines"}}\n\n'
    )
    assert messages.KEEP_ALIVE.startswith(b":")
    assert messages.KEEP_ALIVE.endswith(b"\n\n")


@pytest.mark.parametrize("id", [0, "", 7, "7"])
def test_a_listen_stream_carries_its_id_as_it_was_given(id: str | int) -> None:
    key = "io.modelcontextprotocol/subscriptionId"
    note = msgspec.json.decode(messages.acknowledged({"toolsListChanged": True}, id))
    assert note["method"] == "notifications/subscriptions/acknowledged"
    assert note["params"] == {"notifications": {"toolsListChanged": True}, "_meta": {key: id}}
    result = msgspec.json.decode(messages.listen_result(messages.encode_id(id)))
    assert result == {
        "jsonrpc": "2.0",
        "id": id,
        "result": {"resultType": "complete", "_meta": {key: id}},
    }
