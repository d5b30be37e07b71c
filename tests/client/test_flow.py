"""The client's flow, driven by hand: no loop, no clock, no transport."""

from typing import Any

import pytest

from antiphon.client.flow import converse
from antiphon.client.flow_types import (
    Action,
    ActionOutcome,
    Answered,
    End,
    Event,
    Failure,
    GetAnswers,
    Lost,
    PendingCall,
    Replied,
    SendRequest,
    Stopped,
    Succeeded,
    TimedOut,
    Timeouts,
    Wait,
    Waited,
    WatchTask,
)

ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
CALL = PendingCall(method="tools/call", params={"name": "book", "arguments": {"day": "friday"}})
FORM = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
}
YES = {"action": "accept", "content": {}}


class Driven:
    """A flow with a clock that only the test moves."""

    def __init__(
        self, call: PendingCall = CALL, declared: dict[str, Any] = ALL, **timeouts: Any
    ) -> None:
        self.now = 100.0
        self.flow = converse(call, timeouts=Timeouts(**timeouts), declared=declared, now=self.now)
        self.action: Action | End = next(self.flow)

    def tell(self, outcome: ActionOutcome, after: float = 0.0) -> Action | End:
        self.now += after
        try:
            self.action = self.flow.send(Event(self.now, outcome))
        except StopIteration as end:
            self.action = end.value
        return self.action

    def asks(self, *keys: str, token: str | None = None) -> Action | End:
        body: dict[str, Any] = {"resultType": "input_required"}
        if keys:
            body["inputRequests"] = dict.fromkeys(keys, FORM)
        if token is not None:
            body["requestState"] = token
        return self.tell(Replied(body))

    @property
    def sent(self) -> dict[str, Any]:
        assert isinstance(self.action, SendRequest)
        method, params = self.action.call.request()
        assert method == self.action.call.method
        return params


def test_a_call_that_asks_nothing_is_one_round():
    flow = Driven()
    assert flow.sent == dict(CALL.params)
    assert flow.tell(Replied({"content": []})) == Succeeded({"content": []})


@pytest.mark.requirement("MRTR-C-05", "MRTR-C-09")
def test_the_token_and_the_latest_answers_travel_and_nothing_older():
    flow = Driven()
    flow.asks("a", token="t1")
    flow.tell(Answered({"a": YES}))
    assert flow.sent == {**CALL.params, "inputResponses": {"a": YES}, "requestState": "t1"}
    flow.asks("b", "c")
    flow.tell(Answered({"b": YES, "c": YES}))
    assert flow.sent == {**CALL.params, "inputResponses": {"b": YES, "c": YES}}


@pytest.mark.requirement("MRTR-C-04")
@pytest.mark.parametrize("token", ["", "0", " spaced ", "ünï\x00code", "x" * 100_000])
def test_any_string_is_a_token_and_comes_back_as_it_came(token: str):
    flow = Driven()
    flow.asks("a", token=token)
    flow.tell(Answered({"a": YES}))
    assert flow.sent["requestState"] == token


@pytest.mark.requirement("MRTR-C-05")
def test_a_round_without_a_token_sends_none_even_if_an_earlier_one_had_it():
    flow = Driven()
    flow.asks(token="t1")
    flow.tell(Waited())
    flow.asks("a")
    flow.tell(Answered({"a": YES}))
    assert "requestState" not in flow.sent


@pytest.mark.requirement("MRTR-C-03")
def test_state_only_rounds_wait_longer_and_longer_up_to_a_cap():
    flow = Driven(total=600.0)
    waits: list[float] = []
    for _ in range(6):
        effect = flow.asks(token="t")
        assert isinstance(effect, Wait)
        waits.append(effect.seconds)
        flow.tell(Waited(), after=effect.seconds)
        assert flow.sent == {**CALL.params, "requestState": "t"}
    assert waits == [0.05, 0.1, 0.2, 0.25, 0.25, 0.25]


@pytest.mark.requirement("MRTR-C-03")
def test_state_only_rounds_are_bounded_by_time_and_not_by_their_number():
    flow = Driven(total=3_600.0)
    for _ in range(150):
        effect = flow.asks(token="t")
        assert isinstance(effect, Wait)
        flow.tell(Waited(), after=22.0)
    flow.asks(token="t")
    ended = flow.tell(Waited(), after=500.0)
    assert isinstance(ended, Stopped)
    assert ended.reason == "total"


def test_after_the_last_round_the_call_is_handed_back_with_its_open_question():
    flow = Driven(rounds=2)
    for _ in range(2):
        flow.asks("a", token="t")
        flow.tell(Answered({"a": YES}))
    ended = flow.asks("again", token="last")
    assert isinstance(ended, Stopped)
    assert (ended.reason, ended.call.token) == ("rounds", "last")
    assert [ask.key for ask in ended.call.asks] == ["again"]


def test_a_saved_call_goes_on_with_fresh_timeouts():
    first = Driven(rounds=1)
    first.asks("a", token="t")
    first.tell(Answered({"a": YES}))
    ended = first.asks("b", token="u")
    assert isinstance(ended, Stopped)
    second = Driven(ended.call, rounds=1)
    assert isinstance(second.action, GetAnswers)
    second.tell(Answered({"b": YES}))
    assert second.sent == {**CALL.params, "inputResponses": {"b": YES}, "requestState": "u"}


def test_each_bound_of_time_has_its_own_reason():
    thinking = Driven(answer=5.0)
    thinking.asks("a")
    assert isinstance(thinking.action, GetAnswers)
    assert thinking.action.within == 5.0
    ended = thinking.tell(TimedOut(), after=5.0)
    assert isinstance(ended, Stopped)
    assert ended.reason == "answer"

    stalled = Driven(reply=7.0)
    assert isinstance(stalled.action, SendRequest)
    assert stalled.action.within == 7.0
    ended = stalled.tell(TimedOut(), after=7.0)
    assert isinstance(ended, Stopped)
    assert ended.reason == "reply"

    slow = Driven(total=10.0, answer=60.0)
    slow.asks("a")
    assert isinstance(slow.action, GetAnswers)
    assert slow.action.within == 10.0
    ended = slow.tell(Answered({"a": YES}), after=11.0)
    assert isinstance(ended, Stopped)
    assert ended.reason == "total"
    assert ended.call.answers == {"a": YES}


def test_a_lost_reply_keeps_the_answers_that_were_given():
    flow = Driven()
    flow.asks("a", token="t")
    flow.tell(Answered({"a": YES}))
    ended = flow.tell(Lost(sent=True))
    assert isinstance(ended, Stopped)
    assert (ended.reason, ended.sent) == ("lost", True)
    again = Driven(ended.call)
    assert again.sent == {**CALL.params, "inputResponses": {"a": YES}, "requestState": "t"}


def test_invalid_params_is_a_refused_state_only_when_a_state_was_sent():
    first = Driven().tell(Failure(-32602, "no such tool"))
    assert isinstance(first, Stopped)
    assert first.reason == "error"
    flow = Driven()
    flow.asks("a", token="")
    flow.tell(Answered({"a": YES}))
    later = flow.tell(Failure(-32602, "no"))
    assert isinstance(later, Stopped)
    assert later.reason == "refused-state"


@pytest.mark.requirement("BASE-07")
def test_a_missing_result_type_is_complete_and_a_task_needs_the_extension():
    assert isinstance(Driven().tell(Replied({})), Succeeded)
    handle = {"resultType": "task", "taskId": "t", "status": "working"}
    assert isinstance(Driven().tell(Replied(handle)), WatchTask)
    refused = Driven(declared={}).tell(Replied(handle))
    assert isinstance(refused, Stopped)
    assert refused.reason == "violation"


def ask(**entry: Any) -> dict[str, Any]:
    return {"resultType": "input_required", "inputRequests": {"k": entry}}


@pytest.mark.requirement("BASE-08", "MRTR-C-14")
@pytest.mark.parametrize(
    "result",
    [
        None,
        [],
        "text",
        {"resultType": 3},
        {"resultType": "surprise"},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": "input_required", "requestState": 7},
        {"resultType": "input_required", "requestState": None},
        {"resultType": "input_required", "requestState": ["t"], "inputRequests": {"k": FORM}},
        {"resultType": "input_required", "inputRequests": [FORM]},
        {"resultType": "input_required", "inputRequests": {"k": "ask"}},
        {"resultType": "input_required", "inputRequests": dict.fromkeys(map(str, range(65)), FORM)},
        ask(method="shell/run", params={}),
        ask(method="elicitation/create"),
        ask(method="elicitation/create", params={"message": "m"}),
        ask(method="elicitation/create", params={"message": 3, "requestedSchema": {}}),
        ask(method="elicitation/create", params={"mode": "url", "message": "m"}),
        ask(method="elicitation/create", params={"mode": "voice", "message": "m"}),
        ask(method="sampling/createMessage", params={"messages": []}),
        ask(method="sampling/createMessage", params={"messages": [], "maxTokens": True}),
    ],
)
def test_a_breach_of_the_protocol_ends_the_call_at_once(result: Any):
    ended = Driven().tell(Replied(result))
    assert isinstance(ended, Stopped)
    assert ended.reason == "violation"
    assert ended.detail


@pytest.mark.parametrize(
    ("declared", "entry"),
    [
        ({}, FORM),
        ({"elicitation": {"url": {}}}, FORM),
        (
            {"elicitation": {}},
            {"method": "elicitation/create", "params": {"mode": "url", "message": "", "url": "x"}},
        ),
        ({"elicitation": {}}, {"method": "roots/list"}),
        (
            {"sampling": {}},
            {
                "method": "sampling/createMessage",
                "params": {"messages": [], "maxTokens": 1, "tools": []},
            },
        ),
    ],
)
def test_an_ask_for_what_was_not_declared_ends_the_call(
    declared: dict[str, Any], entry: dict[str, Any]
):
    ended = Driven(declared=declared).tell(Replied(ask(**entry)))
    assert isinstance(ended, Stopped)
    assert ended.reason == "violation"
    assert "did not declare" in ended.detail


@pytest.mark.requirement("MRTR-C-14")
def test_only_three_methods_may_be_answered_with_a_question():
    flow = Driven(PendingCall(method="tools/list", params={}))
    ended = flow.asks("a")
    assert isinstance(ended, Stopped)
    assert ended.reason == "violation"


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_bound_cannot_be_switched_off(value: float):
    with pytest.raises(ValueError, match="answer"):
        Timeouts(answer=value)
