"""Chooses how something is done on purpose to the last round of a call; and does it to a task."""

import secrets
from typing import Any

from antiphon.apps.dev.call import DevCall
from antiphon.apps.dev.disturb_session import SessionDisturbances
from antiphon.apps.dev.disturb_token import TokenDisturbances
from antiphon.apps.dev.promises import KILLED, MISSING, TITLES, Disturbance
from antiphon.apps.dev.raw_requests import RawReply, post
from antiphon.apps.dev.wire import Exchange
from antiphon.apps.dev.workbench import Workbench
from antiphon.client.read_asks import Task
from antiphon.errors import INVALID_PARAMS
from antiphon.ports import NewTask

_TASK = (
    "A task is shown to the caller that made it, under a name that cannot be guessed, and to "
    "nobody else. The first answer to a question counts; a later one is ignored."
)
_NOT_YET = "Nothing was sent: the task was not asked for yet."
SHORT = 60.0
"""Seconds that a task is kept which is made for one request."""


async def disturb(bench: Workbench, call: DevCall, what: str) -> Disturbance:
    """Do something to the last round of a call."""
    rounds, records = await bench.rounds(call)
    if not rounds:
        return Disturbance(what, TITLES[what], "The call has sent nothing yet.", "", kept=True)
    if call.wanted.era == "legacy":
        return await SessionDisturbances(bench, call, rounds).do(what)
    if call.task is not None:
        return await TaskDisturbances(bench, call).do(what)
    return await TokenDisturbances(bench, call, rounds, records.call).do(what)


class TaskDisturbances:
    """What can be done to a call that has become a task: its id stands for the token."""

    def __init__(self, bench: Workbench, call: DevCall) -> None:
        """Take the call; its last request about the task is meant."""
        self._bench = bench
        self._call = call
        ready = bench.process.ready
        self._url = ready.url if ready is not None else ""

    async def do(self, what: str) -> Disturbance:
        """Do one of `DISTURBANCES`."""
        asked, task = self._last("tasks/get"), self._call.task
        if asked is None or task is None:
            return Disturbance(what, TITLES[what], _NOT_YET, _TASK, kept=True)
        match what:
            case "again":
                return await self._seen(asked)
            case "tamper":
                other = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
                return await self._unknown(what, asked, other, "A name with another letter")
            case "somebody":
                other = await self._task_of_another(task)
                return await self._unknown(what, asked, other, "The task of another caller")
            case "other":
                return await self._other()
            case "kill":
                return await self._kill(asked)
            case "forget":
                return await self._forget(asked)
            case _:
                came = "Nothing was sent: a task has no token that could expire."
                return Disturbance(what, TITLES[what], came, _TASK, kept=True)

    def _last(self, method: str) -> Exchange | None:
        found = [one for one in self._call.wire if one.method == method]
        return found[-1] if found else None

    async def _send(self, exchange: Exchange, method: str = "", **changes: Any) -> RawReply:
        params = {**exchange.message["params"], **changes}
        headers = dict(exchange.headers)
        method = method or exchange.method
        if "mcp-method" in headers:
            headers["mcp-method"] = method
        if "taskId" in changes:
            headers["mcp-name"] = changes["taskId"]
        message = {**exchange.message, "id": "disturbed", "method": method, "params": params}
        reply, _ = await post(self._url, message, headers)
        return reply

    async def _seen(self, asked: Exchange) -> Disturbance:
        reply = await self._send(asked)
        came = f"The same task: {reply.members.get('status')}." if reply.ok else reply.words
        return Disturbance("again", TITLES["again"], came, _TASK, reply.ok)

    async def _unknown(self, what: str, asked: Exchange, id: str, meant: str) -> Disturbance:
        reply = await self._send(asked, taskId=id)
        came = f"{meant}: {reply.words}"
        return Disturbance(what, TITLES[what], came, _TASK, reply.code == INVALID_PARAMS)

    async def _task_of_another(self, task: Task) -> str:
        """Keep an ended task that somebody else owns, in the store that this process holds."""
        environment = self._bench.environment
        id, now = secrets.token_hex(16), environment.clock()
        await self._bench.tasks.create_task(
            NewTask(
                id=id,
                server=environment.sealer.audience,
                owner="https://id.example somebody-else",
                tool=self._call.wanted.name,
                status="completed",
                message="",
                created=now,
                expires=now + SHORT,
                state=b"",
            )
        )
        return id

    async def _forget(self, asked: Exchange) -> Disturbance:
        if self._call.state != "waiting":
            came = "Nothing was sent: the task asks nothing now."
            return Disturbance("forget", TITLES["forget"], came, MISSING, kept=True)
        await self._send(asked, "tasks/update", inputResponses={})
        reply = await self._send(asked)
        kept = reply.members.get("status") == "input_required"
        came = f"An update without answers; the task is {reply.members.get('status')}."
        return Disturbance("forget", TITLES["forget"], came, MISSING, kept)

    async def _other(self) -> Disturbance:
        told = self._last("tasks/update")
        if told is None:
            came = "Nothing was sent: no question of the task was answered yet."
            return Disturbance("other", TITLES["other"], came, _TASK, kept=True)
        answers = {key: {"action": "decline"} for key in told.message["params"]["inputResponses"]}
        reply = await self._send(told, inputResponses=answers)
        came = "Taken and ignored: the first answer counts." if reply.ok else reply.words
        return Disturbance("other", TITLES["other"], came, _TASK, reply.ok)

    async def _kill(self, asked: Exchange) -> Disturbance:
        away, back = await self._bench.process.kill()
        reply = await self._send(asked)
        status = reply.members.get("status")
        came = f"Killed, and back after {away:.1f} s. The task is {status or reply.words}."
        if status == "working":
            came += " It goes on when the lease of its last run is over."
        return Disturbance("kill", TITLES["kill"], came, KILLED, back and reply.ok)
