"""Calls of legacy servers, which ask in the middle of a request that stays open.

Our handler is parked meanwhile. If it is lost (another process, a restart, too late), the call is
lost with it and is not made again: the tool says so.
"""

import asyncio
from collections.abc import Mapping
from contextvars import Context as Surrounding
from dataclasses import dataclass
from typing import Any, cast

from antiphon.apps.gateway.forwarding import EFFECT, Forwarding, kept_error, not_sent, raised
from antiphon.apps.gateway.upstream import CallEndTurn, OneCallSession
from antiphon.client.errors import AnswerFailed, ClientError
from antiphon.client.flow_types import Failure, PendingCall, Stopped, Succeeded
from antiphon.engine.effects.names import Once
from antiphon.engine.effects.once import once
from antiphon.errors import ToolError
from antiphon.protocol.asks import RawAsk

_LOST = (
    "The upstream session that was waiting for this answer is gone. Nothing was repeated: find out "
    "how far it had come, then start over."
)


async def forward_open(forwarding: Forwarding) -> Mapping[str, Any]:
    """Pass on a call whose request stays open while our client answers.

    The effect only remembers which process has opened it: another one, or a later one, must not
    open it again.
    """
    here = forwarding.execution.environment.entropy(16).hex()

    async def opened() -> str:
        return here

    spec = Once(key=EFFECT, fn=opened, args=(), returns=str)
    if await once(forwarding.execution, spec) != here:
        replay = forwarding.execution.replay
        for kind, key in list(replay.unread):
            replay.skip(kind, key)  # answers that nobody waits for any more
        raise ToolError(_LOST)
    caller = forwarding.execution.request.principal
    try:
        session = await forwarding.apart(forwarding.upstream.session(caller, forwarding.can))
    except ClientError as error:
        raise ToolError(not_sent(str(error))) from None
    return await _open_call(forwarding, session)


@dataclass(slots=True)
class _UnansweredAsk:
    key: str
    ask: RawAsk
    answer: "asyncio.Future[dict[str, Any]]"


async def _open_call(forwarding: Forwarding, session: OneCallSession) -> Mapping[str, Any]:
    """Run the call on its session; put what it asks, as it asks it."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Queue[_UnansweredAsk | None] = asyncio.Queue()

    async def on_ask(method: str, params: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        ask = RawAsk(method=cast("Any", method), params=params)
        waiting = _UnansweredAsk(key, ask, loop.create_future())
        asked.put_nowait(waiting)
        return await waiting.answer

    session.on_ask, session.on_log = on_ask, forwarding.log
    call = PendingCall(method=forwarding.method, params=forwarding.params)
    running = loop.create_task(session.call(call, forwarding.progress), context=Surrounding())
    running.add_done_callback(lambda _: asked.put_nowait(None))
    usable = False
    try:
        while (first := await asked.get()) is not None:
            batch = [first]
            while not asked.empty() and (more := asked.get_nowait()) is not None:
                batch.append(more)
            said = await forwarding.ask([(one.key, one.ask) for one in batch])
            for one, answer in zip(batch, said, strict=True):
                _give(one, answer)
            if running.done():
                break
        turn = await running
        usable = isinstance(turn, Succeeded) or turn.failure is not None
        return _ended(forwarding.method, turn)
    finally:
        running.cancel()
        giving = _give_back(forwarding, session, running, usable)
        ending = loop.create_task(giving, context=Surrounding())
        background = forwarding.execution.environment.background
        background.add(ending)
        ending.add_done_callback(background.discard)


async def _give_back(
    forwarding: Forwarding, session: OneCallSession, running: "asyncio.Task[Any]", usable: bool
) -> None:
    await asyncio.wait({running})
    await forwarding.upstream.give_back(session, usable=usable)


def _give(asked: _UnansweredAsk, answer: dict[str, Any]) -> None:
    if asked.answer.done():
        return
    if asked.ask.method != "elicitation/create" and "action" in answer:
        asked.answer.set_exception(AnswerFailed("the client refused it"))
    else:
        asked.answer.set_result(answer)


def _ended(method: str, turn: CallEndTurn) -> Mapping[str, Any]:
    match turn:
        case Succeeded(result):
            return result
        case Stopped(failure=Failure() as failure):
            raise raised(method, kept_error(failure))
        case Stopped("lost", sent=False, detail=why):
            raise ToolError(not_sent(why))
        case _:
            raise ToolError(
                "The reply of the upstream server was lost: whether it has done its work is not "
                "known. Nothing was repeated."
            )
