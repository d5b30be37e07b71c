"""Calls of modern servers: each round of theirs is one effect of ours.

What a round returned (its token and its asks, or its result) is the result of the effect, so that
it is in our journal, sealed in our token: another process can go on, and no round is sent twice.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from antiphon.apps.gateway.forwarding import EFFECT, Forwarding, raised
from antiphon.apps.gateway.upstream import Turn, answered
from antiphon.client.drivers import Waiting
from antiphon.client.flow_types import Failure, PendingCall, Stopped, Succeeded
from antiphon.client.read_asks import PendingAsk
from antiphon.client.saved import SavedCall, load
from antiphon.engine.effects.names import Once
from antiphon.engine.effects.once import memo, once
from antiphon.errors import INTERNAL_ERROR, NotDone, OutcomeUnknown, ToolError
from antiphon.protocol.asks import RawAsk
from antiphon.protocol.journal import decode_value
from antiphon.protocol.text import safe

_HOLD = 20.0
"""Seconds for which a reply is held back while a task of the other server runs."""

_REFUSED = "The client refused {what}, which the upstream server needs. Nothing was repeated."


async def forward_rounds(forwarding: Forwarding) -> Mapping[str, Any]:
    """Pass on a call in rounds: each is an effect, and what it returned is in our journal."""
    params, number = forwarding.params, 1
    # Answers that came without being asked are for the other server to judge, as they would be.
    unasked = forwarding.execution.call.unasked
    sent = {key: decode_value(raw) for key, raw in unasked.items()} or None
    call = PendingCall(method=forwarding.method, params=params, answers=sent)
    turn = await _round(forwarding, EFFECT, call)
    while (result := turn.get("result")) is None:
        if "error" in turn:
            raise raised(forwarding.method, turn["error"])
        number += 1
        call = load(turn["saved"]).call
        if call.asks:
            said = await forwarding.ask([(ask.key, raw_ask(ask)) for ask in call.asks])
            answers = {ask.key: one for ask, one in zip(call.asks, said, strict=True)}
            _check_answered(answers, call)
            call = answered(call, params, answers)
            turn = await _round(forwarding, f"{EFFECT}.r{number}", call)
        else:
            turn = await _follow(forwarding, replace(call, params=params), number)
    return result


async def _round(forwarding: Forwarding, key: str, call: PendingCall) -> dict[str, Any]:
    """Send one round as an effect; returns what the journal keeps of it."""
    upstream = forwarding.upstream

    async def send() -> dict[str, Any]:
        sending = upstream.send(call, forwarding.can, forwarding.progress, forwarding.log)
        return _kept(await forwarding.apart(sending))

    spec = Once(key=key, fn=send, args=(), returns=dict[str, Any], on_cancel=forwarding.stop)
    return await once(forwarding.execution, spec)


def _kept(turn: Turn) -> dict[str, Any]:
    """Return what the journal keeps of a round of the other server.

    Raises:
        NotDone: Nothing was sent.
        OutcomeUnknown: It may have acted.
    """
    match turn:
        case Succeeded(result):
            return {"result": result}
        case Waiting(call):
            # The params are ours, and come with every request.
            return {"saved": SavedCall(call=replace(call, params={})).dump()}
        case Stopped(failure=Failure() as failure):
            return {
                "error": {"code": failure.code, "message": failure.message, "data": failure.data}
            }
        case Stopped("lost", sent=False, detail=why):
            raise NotDone(
                f"The upstream server cannot be reached. Nothing was sent. ({safe(why, 200)})"
            )
        case Stopped("lost" | "reply" | "total" | "violation"):
            # What cannot be read is not an answer: the server may have acted before it.
            raise OutcomeUnknown("the reply of the upstream server was lost")
        case Stopped(reason, detail=why):
            text = f"the upstream server ended the call ({reason}) {safe(why, 200)}".rstrip()
            return {"error": {"code": INTERNAL_ERROR, "message": text, "data": None}}


def _check_answered(answers: Mapping[str, Mapping[str, Any]], call: PendingCall) -> None:
    """End a call whose completion or roots were refused: the protocol has no such answer."""
    for ask in call.asks:
        if ask.method != "elicitation/create" and "action" in answers[ask.key]:
            raise ToolError(_REFUSED.format(what=ask.method))


async def _follow(forwarding: Forwarding, call: PendingCall, number: int) -> dict[str, Any]:
    """Wait until a task of the other server asks or ends; our call becomes a task, if it can."""
    ctx, execution = forwarding.ctx, forwarding.execution
    await ctx.detach()
    in_place = execution.delivery.background or execution.request.era == "legacy"
    wait = None if in_place else _HOLD

    async def look() -> dict[str, Any]:
        sending = forwarding.upstream.send(
            call, forwarding.can, forwarding.progress, forwarding.log, wait=wait
        )
        return _kept(await forwarding.apart(sending))

    try:
        turn = await memo(execution, f"{EFFECT}.look{number}", look, (), returns=dict[str, Any])
    except asyncio.CancelledError:
        if call.task is not None and await execution.delivery.cancel_wanted(execution):
            await asyncio.shield(forwarding.upstream.cancel_task(call.task.id))
        raise
    if not in_place and "saved" in turn and not load(turn["saved"]).call.asks:
        await ctx.pause(key=f"{EFFECT}.wait{number}")
    return turn


def raw_ask(ask: PendingAsk) -> RawAsk:
    """Return an ask of the other server as ours."""
    return RawAsk(method=cast("Any", ask.method), params=ask.params)
