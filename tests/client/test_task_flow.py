"""The part of the flow in which a call is a task, driven by hand: no loop, no clock, no wire."""

from dataclasses import replace
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
    TaskNotified,
    TimedOut,
    Timeouts,
    Wait,
    Waited,
    WatchTask,
)
from antiphon.client.read_asks import JITTER, Task
from antiphon.client.task_flow import MAX_KEYS, SUBSCRIBE_AFTER, SUBSCRIBED_POLL

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
CALL = PendingCall(method="tools/call", params={"name": "t"})
SAVED = replace(CALL, task=Task(id="t-1", ttl=60.0, poll=2.0))
YES = {"action": "accept", "content": {}}


def form(message: str = "?") -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def shown(status: str = "working", **more: Any) -> dict[str, Any]:
    return {"taskId": "t-1", "status": status, "ttlMs": 60_000, "pollIntervalMs": 2000, **more}


def asking(*keys: str, **more: Any) -> dict[str, Any]:
    return shown("input_required", inputRequests=dict.fromkeys(keys, form()), **more)


class Driven:
    """A flow with a clock that only the test moves."""

    def __init__(self, call: PendingCall = CALL, *, age: float = 0.0, **timeouts: Any) -> None:
        self.now = 100.0
        self.flow = converse(
            call, timeouts=Timeouts(**timeouts), declared=TASKS, now=self.now, age=age
        )
        self.at: Any = next(self.flow)

    def tell(self, outcome: ActionOutcome, after: float = 0.0) -> Action | End:
        self.now += after
        try:
            self.at = self.flow.send(Event(self.now, outcome))
        except StopIteration as end:
            self.at = end.value
        return self.at

    def handle(self, **more: Any) -> Any:
        return self.tell(Replied({"resultType": "task", **shown(**more)}))

    def wait(self) -> Any:
        """Let the time of a wait pass."""
        assert isinstance(self.at, WatchTask)
        return self.tell(Waited(), after=self.at.seconds)

    def look(self, body: Any) -> Any:
        """Wait until a look is due, and show the task."""
        while isinstance(self.at, WatchTask):
            self.wait()
        assert isinstance(self.at, SendRequest)
        assert self.at.call.request() == ("tasks/get", {"taskId": "t-1"})
        return self.tell(Replied(body))


def test_a_handle_is_followed_by_a_wait_and_then_by_a_look():
    flow = Driven()
    watch = flow.handle()
    assert isinstance(watch, WatchTask)
    assert 2.0 <= watch.seconds <= 2.0 * (1 + JITTER)
    result = {"content": []}
    assert flow.look(shown("completed", result=result)) == Succeeded(result, retried=True)


def test_what_a_handle_says_beside_its_id_is_not_taken_for_the_task():
    flow = Driven()
    watch = flow.handle(status="completed", result={"content": []}, requestState="x")
    assert isinstance(watch, WatchTask)
    assert (watch.call.task.status, watch.call.token) == ("working", None)  # pyright: ignore[reportOptionalMemberAccess]


def test_the_jitter_only_ever_lengthens_a_wait_and_differs_between_tasks():
    waits = {Task(id=f"t-{number}", poll=1.0).interval(3) for number in range(50)}
    assert min(waits) >= 1.0
    assert max(waits) <= 1.0 + JITTER
    assert len(waits) > 40
    assert Task(id="t", poll=0.0).interval(0) > 0
    own = [Task(id="t").interval(looks) for looks in range(20)]
    assert own[0] < own[5] < own[19] <= 5 * (1 + JITTER)


def test_asks_are_answered_by_update_and_each_key_once():
    flow = Driven()
    flow.handle()
    asked = flow.look(asking("a", "b"))
    assert isinstance(asked, GetAnswers)
    assert [ask.key for ask in asked.call.asks] == ["a", "b"]
    sent: Any = flow.tell(Answered({"a": YES, "b": YES}), after=30)
    answers = {"taskId": "t-1", "inputResponses": {"a": YES, "b": YES}}
    assert sent.call.request() == ("tasks/update", answers)
    looked: Any = flow.tell(Replied({"resultType": "complete"}))
    assert looked.call.request()[0] == "tasks/get", "the look was due long ago"
    assert isinstance(flow.tell(Replied(asking("a", "b"))), WatchTask), "not asked again"
    asked = flow.look(asking("a", "c"))
    assert isinstance(asked, GetAnswers)
    assert [ask.key for ask in asked.call.asks] == ["c"]


def test_a_saved_task_with_some_answers_leaves_the_others_open():
    first = Driven(SAVED)
    asked = first.look(asking("a", "b"))
    assert isinstance(asked, GetAnswers)
    flow = Driven(replace(asked.call, answers={"b": YES}))
    assert flow.at.call.request()[1]["inputResponses"] == {"b": YES}
    rest = flow.tell(Replied({}))
    assert isinstance(rest, GetAnswers)
    assert [ask.key for ask in rest.call.asks] == ["a"]
    assert rest.call.answered == {"b"}


def test_a_lost_reply_is_asked_for_again_after_longer_and_longer_waits():
    flow = Driven(replace(SAVED, task=Task(id="t-1", poll=0.1)), lost_replies=3)
    waits: list[float] = []
    for outcome in (Lost(True), Failure(-32603, "away"), Lost(False)):
        paused = flow.tell(outcome)
        assert isinstance(paused, Wait)
        waits.append(paused.seconds)
        assert isinstance(flow.tell(Waited(), after=paused.seconds), SendRequest)
    assert waits == [0.25, 0.5, 1.0]
    assert isinstance(flow.tell(Lost(True, "away")), Stopped)
    assert flow.at.reason == "lost"


def test_a_reply_between_two_losses_starts_the_count_anew():
    flow = Driven(SAVED, lost_replies=1)
    for _ in range(3):
        flow.tell(Lost(True))
        flow.tell(Waited())
        assert isinstance(flow.tell(Replied(shown())), WatchTask)
        flow.wait()


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Failure(-32602, "unknown"), "gone"),
        (Failure(-32021, "tasks"), "error"),
        (TimedOut(), "reply"),
        (Replied(shown("cancelled")), "cancelled"),
        (Replied(shown("failed", error={"code": -1, "message": "x"})), "failed"),
        (Replied(None), "violation"),
    ],
)
def test_every_end_of_a_task_has_its_reason_and_keeps_the_call(outcome: ActionOutcome, reason: str):
    ended = Driven(SAVED).tell(outcome)
    assert isinstance(ended, Stopped)
    assert ended.reason == reason
    assert ended.call.task is not None
    assert ended.call.params == CALL.params


def test_the_time_to_live_counts_from_the_handle_even_for_a_saved_call():
    fresh = Driven(SAVED, age=58.0)
    assert isinstance(fresh.tell(Replied(shown())), WatchTask)
    old = Driven(SAVED, age=60.5)
    ended = old.tell(Replied(shown()))
    assert isinstance(ended, Stopped)
    assert ended.reason == "expired"
    moving = Driven(SAVED, age=60.5)
    assert isinstance(moving.tell(Replied(shown(statusMessage="half"))), WatchTask)
    assert moving.look(shown(statusMessage="half")).reason == "expired"
    asked = Driven(SAVED, age=60.5, answer=10.0).tell(Replied(asking("a")))
    assert isinstance(asked, GetAnswers)
    assert asked.within == 10.0
    done = Driven(SAVED, age=60.5).tell(Replied(shown("completed", result={})))
    assert isinstance(done, Succeeded), "a result that is there is taken, however late"


def test_thinking_ends_with_the_task_or_with_the_timeout_whichever_is_first():
    slow = Driven(SAVED, answer=10.0)
    asked = slow.look(asking("a"))
    assert asked.within == 10.0
    assert slow.tell(TimedOut(), after=10.0).reason == "answer"  # pyright: ignore[reportAttributeAccessIssue]
    dying = Driven(SAVED, age=55.0, answer=10.0)
    assert dying.look(asking("a")).within == 5.0
    assert dying.tell(TimedOut(), after=5.0).reason == "expired"  # pyright: ignore[reportAttributeAccessIssue]
    late = Driven(SAVED, total=3.0)
    assert late.look(asking("a")).within == 3.0
    assert late.tell(TimedOut(), after=3.0).reason == "total"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_task_is_worth_a_subscription_only_after_a_while():
    flow = Driven()
    assert flow.handle(pollIntervalMs=500).subscribed is None
    while flow.now < 100.0 + SUBSCRIBE_AFTER:
        flow.look(shown(pollIntervalMs=500))
    least, most = SUBSCRIBED_POLL
    assert least <= flow.at.subscribed <= most
    assert flow.at.subscribed > flow.at.seconds


def test_what_the_server_tells_by_itself_counts_as_a_look():
    flow = Driven()
    flow.handle()
    watch: Any = flow.tell(TaskNotified(shown(statusMessage="half")), after=1.0)
    assert isinstance(watch, WatchTask)
    assert watch.call.task is not None
    assert watch.call.task.message == "half"
    assert watch.seconds >= 2.0
    assert isinstance(flow.tell(TaskNotified(asking("a"))), GetAnswers)
    flow.tell(Answered({"a": YES}))
    flow.tell(Replied({}))
    ended = flow.tell(TaskNotified(shown("completed", result={"content": []})))
    assert ended == Succeeded({"content": []}, retried=True)


def test_a_wait_that_ends_early_does_not_bring_a_look_forward():
    flow = Driven()
    flow.handle()
    again: Any = flow.tell(Waited(), after=0.5)
    assert isinstance(again, WatchTask)
    assert again.seconds >= 1.5


def test_the_number_of_asks_in_a_life_is_bounded():
    call = replace(SAVED, keys={f"k{number}": "d" for number in range(MAX_KEYS)})
    ended = Driven(call).tell(Replied(asking("one more")))
    assert isinstance(ended, Stopped)
    assert ended.reason == "violation"


def test_asks_of_a_kind_that_was_not_declared_are_shown_all_the_same():
    """Another client of the same caller may have declared it; this one leaves it unanswered."""
    asked = Driven(SAVED).tell(Replied(asking("a")))
    assert isinstance(asked, GetAnswers)


@pytest.mark.parametrize("outcome", [Answered({}), TaskNotified({})])
def test_a_driver_that_answers_the_wrong_effect_is_told(outcome: ActionOutcome):
    with pytest.raises(TypeError):
        Driven(SAVED).tell(outcome)
