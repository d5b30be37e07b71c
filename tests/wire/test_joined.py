"""What is joined from encoded parts is the JSON that encoding the whole would give."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol import messages, results, tasks

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
META = results.server_meta("shop", "1.0")
INFO = {"io.modelcontextprotocol/serverInfo": {"name": "shop", "version": "1.0"}}


def read(raw: bytes) -> Any:
    return msgspec.json.decode(raw)


@given(TEXT)
def test_the_result_of_a_text_is_that_of_a_content_list_with_it(text: str) -> None:
    content = results.text_content(text)
    whole = results.tool_result(content, None, is_error=False, meta=META)
    assert results.text_result(text, META) == whole
    assert read(whole) == {
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "isError": False,
        "_meta": INFO,
    }


@given(TEXT, TEXT)
def test_embedded_requests_carry_any_text(message: str, url: str) -> None:
    form = read(results.form_request(message, b'{"type":"object"}'))
    assert form["params"] == {
        "mode": "form",
        "message": message,
        "requestedSchema": {"type": "object"},
    }
    assert read(results.url_request(message, url)) == {
        "method": "elicitation/create",
        "params": {"mode": "url", "message": message, "url": url},
    }
    sample = read(results.sample_request(msgspec.json.encode({"systemPrompt": message})))
    assert sample == {"method": "sampling/createMessage", "params": {"systemPrompt": message}}


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
def test_a_notification_carries_any_text(method: str, params: dict[str, str]) -> None:
    sent = read(messages.notification(method, params))
    assert sent == {"jsonrpc": "2.0", "method": method, "params": params}


@given(TEXT, TEXT, st.none() | st.floats(0.001, 1e9), st.floats(0, 100))
def test_a_task_has_every_required_member(
    id: str, message: str, ttl: float | None, poll: float
) -> None:
    view = tasks.TaskView(id, "working", message, 0.5, 1.25, ttl, poll)
    expected = {
        "taskId": id,
        "status": "working",
        "createdAt": "1970-01-01T00:00:00.500Z",
        "lastUpdatedAt": "1970-01-01T00:00:01.250Z",
        "ttlMs": None if ttl is None else round(ttl * 1000),
        "pollIntervalMs": max(1, round(poll * 1000)),
    }
    if message:
        expected["statusMessage"] = message
    assert read(tasks.details(view)) == expected
    made = {"resultType": "task", **expected, "_meta": INFO}
    assert read(tasks.created(view, META)) == made
    assert read(tasks.shown(view, META)) == {**made, "resultType": "complete"}


@pytest.mark.parametrize(
    ("status", "more", "member", "value"),
    [
        ("input_required", {"asks": (("k", b'{"a":1}'),)}, "inputRequests", {"k": {"a": 1}}),
        ("completed", {"result": b'{"b":2}'}, "result", {"b": 2}),
        ("failed", {"error": {"code": 1}}, "error", {"code": 1}),
    ],
)
def test_a_task_carries_what_its_status_brings(
    status: str, more: dict[str, Any], member: str, value: Any
) -> None:
    view = tasks.TaskView("t", status, "", 0.0, 0.0, None, 1.0, **more)
    assert read(tasks.details(view))[member] == value
