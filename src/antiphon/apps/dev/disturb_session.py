"""Doing things on purpose to a call of a legacy session, which has no token but its session."""

import asyncio
from typing import Any, cast

from antiphon.apps.dev.call import DevCall
from antiphon.apps.dev.promises import TITLES, Disturbance
from antiphon.apps.dev.raw_requests import RawReply, post
from antiphon.apps.dev.timeline import Round
from antiphon.apps.dev.wire import SESSION
from antiphon.apps.dev.workbench import Workbench

_BOUND = (
    "In a legacy session the question waits in the server's process. Only this session can answer "
    "it, and only once; anything else is refused or ignored, and the call is not harmed."
)
_ENDS = "A session ends with its process or its deletion, and its calls end with it."
_NEW = (
    "A legacy session knows no tokens: the same request is always a new call, and what stands "
    "above its first question happens again."
)
_UNFIT = "An answer that does not fit its form is asked for again with the reason."
WITHIN = 5.0


class SessionDisturbances:
    """What can be done to a call of a legacy session."""

    def __init__(self, bench: Workbench, call: DevCall, rounds: list[Round]) -> None:
        """Take the call; its one request is meant."""
        self._bench = bench
        self._call = call
        self._round = rounds[-1]
        ready = bench.process.ready
        self._url = ready.url if ready is not None else ""
        headers = self._round.exchange.headers
        self._session = headers.get(SESSION, "")
        self._headers = headers

    async def do(self, what: str) -> Disturbance:
        """Do one of `DISTURBANCES`."""
        match what:
            case "again":
                return await self._again()
            case "other":
                return await self._other()
            case "tamper":
                return await self._tamper()
            case "expire":
                return await self._expire()
            case "somebody":
                return await self._somebody()
            case "kill":
                return await self._kill()
            case _:
                return await self._forget()

    @property
    def _waiting(self) -> bool:
        return self._call.state == "waiting"

    @property
    def _asked(self) -> list[dict[str, Any]]:
        """The server's questions, the last one last."""
        return [one for one in self._round.exchange.messages if "method" in one and "id" in one]

    def _answer(self, ask: dict[str, Any] | None, **result: Any) -> dict[str, Any]:
        id = ask["id"] if ask is not None else 0
        return {"jsonrpc": "2.0", "id": id, "result": result or {"action": "decline"}}

    async def _post(
        self, message: dict[str, Any], session: str, verb: str = "POST"
    ) -> tuple[RawReply, str]:
        headers = {**self._headers, SESSION: session}
        if not session:
            headers.pop(SESSION)
        return await post(self._url, message, headers, verb=verb)

    async def _new_session(self) -> str:
        first = next(one for one in self._call.wire if one.method == "initialize")
        _, session = await post(self._url, first.message, first.headers)
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._post(note, session)
        return session

    async def _again(self) -> Disturbance:
        session = await self._new_session()
        message = {**self._round.exchange.message, "id": "disturbed"}
        reply, _ = await self._post(message, session)
        await self._post({}, session, "DELETE")
        asked = cast("dict[str, Any]", reply.message.get("params") or {}).get("message", "")
        words = f"it asks: {asked}" if asked else reply.words
        kept = bool(asked) or reply.ok
        return Disturbance("again", TITLES["again"], f"A new call: {words}", _NEW, kept)

    async def _other(self) -> Disturbance:
        answered = [one.message for one in self._call.wire if not one.method and one.sent]
        if not answered:
            return Disturbance(
                "other", TITLES["other"], "Nothing was sent: nothing was answered yet.", _BOUND,
                kept=True,
            )  # fmt: skip
        given, state = len(self._call.given), self._call.state
        reply, _ = await self._post(self._answer(answered[-1]), self._session)
        return await self._unharmed("other", reply, given, state)

    async def _tamper(self) -> Disturbance:
        given, state = len(self._call.given), self._call.state
        other = ("0" if self._session[:1] != "0" else "1") + self._session[1:]
        reply, _ = await self._post(self._answer(self._last), other)
        return await self._unharmed("tamper", reply, given, state)

    @property
    def _last(self) -> dict[str, Any] | None:
        return self._asked[-1] if self._asked else None

    async def _somebody(self) -> Disturbance:
        given, state = len(self._call.given), self._call.state
        session = await self._new_session()
        reply, _ = await self._post(self._answer(self._last), session)
        await self._post({}, session, "DELETE")
        return await self._unharmed("somebody", reply, given, state)

    async def _unharmed(self, what: str, reply: RawReply, given: int, state: str) -> Disturbance:
        """Hold that the call is where it was."""
        await self._bench.change(0.3)
        same = self._call.state == state and len(self._call.given) == given
        words = "refused" if reply.status >= 400 else "taken and ignored"
        goes_on = "the call is where it was" if same else f"the call is {self._call.state}"
        came = f"HTTP {reply.status}, {words}; {goes_on}."
        return Disturbance(what, TITLES[what], came, _BOUND, same)

    async def _expire(self) -> Disturbance:
        waiting = self._waiting
        reply, _ = await self._post({}, self._session, "DELETE")
        await self._ended(waiting)
        late, _ = await self._post(self._answer(self._last), self._session)
        ended = f"the call is {self._call.state}"
        came = f"Session deleted: HTTP {reply.status}; {ended}; a late answer: HTTP {late.status}."
        return Disturbance("expire", TITLES["expire"], came, _ENDS, late.status == 404)

    async def _kill(self) -> Disturbance:
        waiting = self._waiting
        away, back = await self._bench.process.kill()
        await self._ended(waiting)
        came = f"Killed, and back after {away:.1f} s. The call is {self._call.state}."
        kept = back and not self._waiting
        return Disturbance("kill", TITLES["kill"], came, _ENDS, kept)

    async def _ended(self, waiting: bool) -> None:
        if waiting and self._call.running is not None:
            await asyncio.wait({self._call.running}, timeout=WITHIN)

    async def _forget(self) -> Disturbance:
        if self._call.state == "running":
            came = "Nothing was sent: the call asks nothing now."
            return Disturbance("forget", TITLES["forget"], came, _UNFIT, kept=True)
        if not self._waiting:
            reply, _ = await self._post(self._answer(self._last), self._session)
            came = f"HTTP {reply.status}: the session has ended with its call."
            return Disturbance("forget", TITLES["forget"], came, _ENDS, reply.status == 404)
        before = dict(self._call.open)
        await self._post(self._answer(self._last, action="accept", content={}), self._session)
        loop = asyncio.get_running_loop()
        end = loop.time() + WITHIN
        while self._call.open == before and loop.time() < end:
            await self._bench.change(0.2)
        again = self._call.open != before and self._waiting
        came = "The question is asked again." if again else f"The call is {self._call.state}."
        return Disturbance("forget", TITLES["forget"], came, _UNFIT, again)
