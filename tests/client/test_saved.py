"""A saved call: what is written is read, and nothing else is taken for one."""

import json
from typing import Any

import pytest

from antiphon.client import SavedCallInvalid
from antiphon.client.saved import MAX_BYTES, SavedCall, load
from antiphon.core.dialogue import Call
from antiphon.core.wants import PendingAsk

ASK = PendingAsk(
    key="k",
    method="elicitation/create",
    params={"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
)


@pytest.mark.parametrize(
    "call",
    [
        Call(method="tools/call", params={"name": "t", "arguments": {"n": None, "deep": [1, 2.5]}}),
        Call(method="prompts/get", params={"name": "p"}, token=""),
        Call(method="resources/read", params={"uri": "x://é"}, token="\u0000ü", asks=(ASK,)),
        Call(
            method="tools/call",
            params={},
            asks=(ASK,),
            answers={"k": {"action": "decline"}},
            rounds=3,
        ),
    ],
)
def test_a_call_comes_back_as_it_was(call: Call):
    saved = SavedCall(
        call=call,
        target=["python", "server.py"],
        server={"name": "s", "version": "1"},
        protocol="2026-07-28",
        received=12.5,
    )
    assert load(saved.dump()) == saved


def test_a_call_without_a_token_has_no_such_member_and_an_empty_one_has():
    none = SavedCall(call=Call(method="tools/call", params={}))
    empty = SavedCall(call=Call(method="tools/call", params={}, token=""))
    assert "token" not in json.loads(none.dump())
    assert json.loads(empty.dump())["token"] == ""
    assert load(none.dump()).call.token is None
    assert load(empty.dump()).call.token == ""


def good(**changes: Any) -> str:
    data = json.loads(SavedCall(call=Call(method="tools/call", params={}, asks=(ASK,))).dump())
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
