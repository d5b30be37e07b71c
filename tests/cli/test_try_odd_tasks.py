"""`antiphon try` on tasks of servers that misbehave, or whose tasks cannot be followed."""

from itertools import count
from typing import Any

import pytest

from tests.cli.running import Ran, antiphon
from tests.client.scripted_server import ScriptedServer

FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Sure?",
        "requestedSchema": {
            "type": "object",
            "properties": {"approve": {"type": "boolean"}},
            "required": ["approve"],
        },
    },
}
TEXT = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
REFUSED = {"resultType": "complete", "isError": True, "content": [{"type": "text", "text": "no"}]}
TOOLS = {
    "resultType": "complete",
    "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
    "ttlMs": 0,
    "cacheScope": "private",
}


class TaskServer:
    """A server whose tool becomes a task that asks once; subclasses get something wrong."""

    def __init__(self, **row: Any) -> None:
        self._row = row
        """What every row of a task says besides."""

        self._numbers = count(1)
        self.tasks: dict[str, Any] = {}
        self.cancelled: list[str] = []

    def __call__(self, message: dict[str, Any]) -> Any:
        method, params = message["method"], message["params"]
        if method == "tools/list":
            return TOOLS
        if method == "tools/call":
            return self.called(params)
        task = params["taskId"]
        if method == "tasks/update":
            self.tasks[task] = self.tasks[task] or params["inputResponses"]
            return {"resultType": "complete"}
        if method == "tasks/cancel":
            self.cancelled.append(task)
            return {"resultType": "complete"}
        return {**self.shown(task), **self._row}

    def called(self, params: dict[str, Any]) -> Any:
        return self.begun(None)

    def begun(self, answers: Any) -> dict[str, Any]:
        task = f"t-{next(self._numbers)}"
        self.tasks[task] = answers
        times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
        return {"resultType": "task", "taskId": task, "status": "working", "ttlMs": None, **times}

    def shown(self, task: str) -> dict[str, Any]:
        row: dict[str, Any] = {"resultType": "complete", "taskId": task, "ttlMs": None}
        answers = self.tasks[task]
        if answers is None:
            return {**row, "status": "input_required", "inputRequests": {"sure": FORM}}
        answer = next(iter(answers.values()))
        yes = answer.get("content", {}).get("approve") is True
        return {**row, "status": "completed", "result": TEXT if yes else REFUSED}


class TakesEarlyAnswers(TaskServer):
    def called(self, params: dict[str, Any]) -> Any:
        return self.begun(params.get("inputResponses"))


class TwoTasksForOneRound(TaskServer):
    """Asks in a round first; the round makes a task however often it comes."""

    def called(self, params: dict[str, Any]) -> Any:
        if "requestState" in params:
            return self.begun(params["inputResponses"])
        return {
            "resultType": "input_required",
            "inputRequests": {"sure": FORM},
            "requestState": "a-token-of-the-server",
        }


class AsksAgain(TaskServer):
    """After a no it asks again under another key, and takes any answer then."""

    def shown(self, task: str) -> dict[str, Any]:
        shown = super().shown(task)
        answers = self.tasks[task]
        if answers and next(iter(answers)) == "sure" and shown["result"] is REFUSED:
            self.tasks[task] = None
            again = {name: value for name, value in shown.items() if name != "result"}
            return {**again, "status": "input_required", "inputRequests": {"sure.r1": FORM}}
        return shown


class NeverEndsAfterNo(TaskServer):
    def shown(self, task: str) -> dict[str, Any]:
        shown = super().shown(task)
        if shown.get("result") is REFUSED:
            shown.pop("result")
            return {**shown, "status": "working", "statusMessage": "still at it"}
        return shown


def tried(server: TaskServer, *words: str) -> Ran:
    with ScriptedServer(server) as running:
        return antiphon("try", running.url, "t", "-a", "sure.approve=yes", *words, "--json")


def found(ran: Ran) -> set[str]:
    return {problem["id"] for problem in ran.json["problems"]}


def test_a_task_that_keeps_the_rules_passes() -> None:
    ran = tried(TaskServer())
    assert (ran.code, found(ran)) == (0, set())
    assert not [run for run in ran.json["runs"] if "somebody else" in run or "again" in run]


def test_a_poll_interval_of_null_is_none() -> None:
    assert tried(TaskServer(pollIntervalMs=None)).code == 0


def test_a_task_that_takes_answers_before_it_asks_is_found() -> None:
    ran = tried(TakesEarlyAnswers())
    assert (ran.code, found(ran)) == (1, {"unasked-accepted"})


def test_two_tasks_for_one_round_are_found() -> None:
    ran = tried(TwoTasksForOneRound())
    assert ran.code == 1
    details = [one["detail"] for one in ran.json["problems"] if one["id"] == "duplicate-differs"]
    assert "becomes a task; becomes a task" in details


def test_a_no_is_also_given_to_what_a_task_asks_again() -> None:
    ran = tried(AsksAgain())
    assert (ran.code, found(ran), ran.json["left_out"][1:]) == (0, set(), [])


def test_what_cannot_be_tried_to_its_end_is_told_and_the_rest_is_tried() -> None:
    server = NeverEndsAfterNo()
    ran = tried(server, "--timeout", "0.5")
    assert ran.code == 0
    assert len(ran.json["left_out"]) == 4  # declined, cancelled, answered with no; and nobody else
    assert "neither asked nor ended within 0.5 s; it says: still at it" in ran.json["left_out"][1]
    assert ran.json["runs"][-1] == "answers before they are asked for"
    assert len(server.cancelled) == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"status": "lost"}, "its status is not one of a task"),
        ({"status": "completed"}, "the completed task has no result"),
        ({"taskId": "t-other"}, "another task"),
    ],
)
def test_a_task_that_cannot_be_read_is_said_to(row: dict[str, Any], reason: str) -> None:
    ran = tried(TaskServer(**row))
    assert ran.code == 2
    assert "the server's task cannot be read: " in ran.err
    assert reason in ran.err


def test_an_answer_that_does_not_fit_is_said_without_a_traceback() -> None:
    with ScriptedServer(TaskServer()) as running:
        ran = antiphon("try", running.url, "t", "-a", "sure.approve=maybe")
    assert ran.code == 2
    assert "approve" in ran.err
    assert "Traceback" not in ran.err
