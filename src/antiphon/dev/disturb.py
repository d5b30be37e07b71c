"""Chooses how something is done on purpose to the last round of a call; and does it to a task."""

from typing import Any

from antiphon.dev.call import DevCall
from antiphon.dev.disturb_session import SessionDisturbances
from antiphon.dev.disturb_token import TokenDisturbances
from antiphon.dev.promises import KILLED, TITLES, Disturbance
from antiphon.dev.raw_requests import RawReply, post
from antiphon.dev.timeline import Round
from antiphon.dev.wire import Exchange
from antiphon.dev.workbench import Workbench
from antiphon.errors import INVALID_PARAMS

_TASK = (
    "A task is shown to the caller that made it, under a name that cannot be guessed, and to "
    "nobody else. The first answer to a question counts; a later one is ignored."
)
_NOT_YET = "Nothing was sent: the task was not asked for yet."


async def disturb(bench: Workbench, call: DevCall, what: str) -> Disturbance:
    """Do something to the last round of a call."""
    rounds, _ = await bench.rounds(call)
    if not rounds:
        return Disturbance(what, TITLES[what], "The call has sent nothing yet.", "", kept=True)
    if call.wanted.era == "legacy":
        return await SessionDisturbances(bench, call, rounds).do(what)
    if call.task is not None:
        return await TaskDisturbances(bench, call, rounds).do(what)
    return await TokenDisturbances(bench, call, rounds).do(what)


class TaskDisturbances:
    """What can be done to a call that has become a task: its id stands for the token."""

    def __init__(self, bench: Workbench, call: DevCall, rounds: list[Round]) -> None:
        """Take the call; its last request about the task is meant."""
        self._bench = bench
        self._call = call
        self._tokens = TokenDisturbances(bench, call, rounds)
        ready = bench.process.ready
        self._url = ready.url if ready is not None else ""

    async def do(self, what: str) -> Disturbance:
        """Do one of `DISTURBANCES`."""
        match what:
            case "again":
                return await self._seen("again")
            case "tamper" | "somebody":
                return await self._unknown(what)
            case "other":
                return await self._other()
            case "kill":
                return await self._kill()
            case _:
                came = "Nothing was sent: a task has no token that could expire or lack an answer."
                return Disturbance(what, TITLES[what], came, _TASK, kept=True)

    def _last(self, method: str) -> Exchange | None:
        found = [one for one in self._call.wire if one.method == method]
        return found[-1] if found else None

    async def _send(self, exchange: Exchange, **changes: Any) -> RawReply:
        params = {**exchange.message["params"], **changes}
        headers = dict(exchange.headers)
        if "taskId" in changes:
            headers["mcp-name"] = changes["taskId"]
        message = {**exchange.message, "id": "disturbed", "params": params}
        reply, _ = await post(self._url, message, headers)
        return reply

    async def _seen(self, what: str) -> Disturbance:
        asked = self._last("tasks/get")
        if asked is None:
            return Disturbance(
                what, TITLES[what], "The task was not asked for yet.", _TASK, kept=True
            )
        reply = await self._send(asked)
        came = f"The same task: {reply.members.get('status')}." if reply.ok else reply.words
        return Disturbance(what, TITLES[what], came, _TASK, reply.ok)

    async def _unknown(self, what: str) -> Disturbance:
        asked, task = self._last("tasks/get"), self._call.task
        if asked is None or task is None:
            return Disturbance(
                what, TITLES[what], "The task was not asked for yet.", _TASK, kept=True
            )
        other = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
        reply = await self._send(asked, taskId=other)
        return Disturbance(what, TITLES[what], reply.words, _TASK, reply.code == INVALID_PARAMS)

    async def _other(self) -> Disturbance:
        told = self._last("tasks/update")
        if told is None:
            came = "Nothing was sent: no question of the task was answered yet."
            return Disturbance("other", TITLES["other"], came, _TASK, kept=True)
        answers = {key: {"action": "decline"} for key in told.message["params"]["inputResponses"]}
        reply = await self._send(told, inputResponses=answers)
        came = "Taken and ignored: the first answer counts." if reply.ok else reply.words
        return Disturbance("other", TITLES["other"], came, _TASK, reply.ok)

    async def _kill(self) -> Disturbance:
        away, back = await self._bench.process.kill()
        came = f"Killed, and back after {away:.1f} s. The task goes on when its lease is over."
        return Disturbance("kill", TITLES["kill"], came, KILLED, back)
