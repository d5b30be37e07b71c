"""A saved call: what is written is read, and nothing else is taken for one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.client import SavedCallInvalid
from antiphon.client.flow_types import PendingCall
from antiphon.client.read_asks import PendingAsk, Task
from antiphon.client.saved import MAX_BYTES, SavedCall, load
from antiphon.client.targets.named import Url

ASK = PendingAsk(
    key="k",
    method="elicitation/create",
    params={"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
)

TASK = Task(
    id="t-1", status="input_required", message="é", created="2026", updated="", ttl=60.0, poll=0.2
)


@pytest.mark.parametrize(
    "call",
    [
        PendingCall(
            method="tools/call", params={"name": "t", "arguments": {"n": None, "deep": [1, 2.5]}}
        ),
        PendingCall(method="prompts/get", params={"name": "p"}, token=""),
        PendingCall(method="resources/read", params={"uri": "x://é"}, token="\u0000ü", asks=(ASK,)),
        PendingCall(
            method="tools/call",
            params={},
            asks=(ASK,),
            answers={"k": {"action": "decline"}},
            rounds=3,
        ),
        PendingCall(method="tools/call", params={"name": "t"}, task=TASK),
        PendingCall(
            method="tools/call",
            params={},
            task=TASK,
            asks=(ASK, replace(ASK, key="l")),
            answers={"l": {"action": "decline"}},
            keys={"k": "d1", "l": "d2", "m": "d3"},
            answered=frozenset({"m"}),
        ),
    ],
)
def test_a_call_comes_back_as_it_was(call: PendingCall):
    saved = SavedCall(
        call=call,
        target=Url("http://h/mcp"),
        server={"name": "s", "version": "1"},
        protocol="2026-07-28",
        received=12.5,
    )
    assert load(saved.dump()) == saved


def test_a_call_without_a_token_has_no_such_member_and_an_empty_one_has():
    none = SavedCall(call=PendingCall(method="tools/call", params={}))
    empty = SavedCall(call=PendingCall(method="tools/call", params={}, token=""))
    assert "token" not in json.loads(none.dump())
    assert json.loads(empty.dump())["token"] == ""
    assert load(none.dump()).call.token is None
    assert load(empty.dump()).call.token == ""


def test_a_call_that_is_no_task_is_written_as_readers_of_old_expect_it():
    plain = json.loads(SavedCall(call=PendingCall(method="tools/call", params={})).dump())
    assert (plain["version"], "task" in plain) == (1, False)
    tasked = json.loads(
        SavedCall(call=PendingCall(method="tools/call", params={}, task=TASK)).dump()
    )
    assert (tasked["version"], tasked["task"]["id"]) == (2, "t-1")


def test_a_text_of_the_first_version_is_read():
    text = (
        '{"antiphon":"call","version":1,"method":"tools/call","params":{"name":"t"},"asks":{},'
        '"rounds":2,"pauses":0,"target":"http://h/mcp","server":null,"protocol":"2026-07-28",'
        '"received":1.5,"token":"s"}'
    )
    call = load(text).call
    assert (call.token, call.rounds, call.task) == ("s", 2, None)


def good(**changes: Any) -> str:
    data = json.loads(
        SavedCall(call=PendingCall(method="tools/call", params={}, asks=(ASK,))).dump()
    )
    return json.dumps({**data, **changes})


@pytest.mark.parametrize(
    "text",
    [
        good(antiphon="token"),
        good(version=3),
        good(version=True),
        good(version="1"),
        good(method="tools/list"),
        good(params=[]),
        good(token=7),
        good(asks={"k": {"method": "shell/run", "params": {}}}),
        good(asks={"k": 1}),
        good(answers={"other": {}}),
        good(rounds="many"),
        good(task={}),
        good(task={"id": ""}),
        good(task={"id": "t", "status": "lost"}),
        good(task={"id": "t", "keys": {"k": "d"}}),
        good(task={"id": "t"}, method="prompts/get"),
        good(task={"id": "t"}, answers={"other": {}}),
        good(target="touch /tmp/x"),
        good(target=["touch", "/tmp/x"]),
        good(target="shop.py"),
        good(target="http:/shop.example/mcp.py"),
        good(target="http://"),
        good(target="http://h:99999/"),
        good(target=" https://a.example/mcp"),
        good(target="https://a.example/mcp\nx"),
        good(target="ftp://a.example/mcp"),
        good(target="https://evil.example\\@good.example/mcp"),
        good(target="https://a.example/\x7f"),
        good(rounds=-1_000_000),
        good(pauses=10**12),
        good(received=-1.0),
        good(received=1e300),
        good(task={"id": "t", "poll": -1}),
        good(task={"id": "t", "poll": 1e300}),
        good(task={"id": "t", "ttl": 1e300}),
        "\ud800",
        " " * (MAX_BYTES + 1),
    ],
)
def test_a_damaged_text_is_refused(text: str):
    load(good())
    with pytest.raises(SavedCallInvalid):
        load(text)


def test_members_of_a_later_writer_are_ignored():
    assert load(good(later="thing")) == load(good())
