"""Doing to a round of the modern era on purpose what networks, hosts and attackers do.

Tokens are changed as somebody could who has seen one, or, for time and caller, resealed with the
keys that this process holds: a server must refuse them all with the same words. The promises are
those of docs/guarantees.md.
"""

import asyncio
from dataclasses import replace as with_changes
from typing import Any, cast

import msgspec

from antiphon.apps.dev.call import DevCall
from antiphon.apps.dev.promises import (
    HELD,
    KILLED,
    LATE,
    MISSING,
    NEW,
    ONCE,
    REFUSED,
    TITLES,
    Disturbance,
)
from antiphon.apps.dev.raw_requests import RawReply, answers_for, raw_request
from antiphon.apps.dev.timeline import Round
from antiphon.apps.dev.workbench import Workbench
from antiphon.client.asks import Step, view
from antiphon.client.read_asks import read_input_required
from antiphon.errors import INVALID_PARAMS
from antiphon.protocol.request import Principal
from antiphon.seal.claims import encode

LOGGED_WITHIN = 1.0
"""Seconds within which the reason of a refusal is in the server's log."""


class TokenDisturbances:
    """What can be done to a round of the modern era."""

    def __init__(
        self, bench: Workbench, call: DevCall, rounds: list[Round], held: str = ""
    ) -> None:
        """Take the call and its rounds; the last one is meant. `held` is its id in the store."""
        self._held = held
        self._bench = bench
        self._call = call
        self._round = rounds[-1]
        self._waiting = call.state == "waiting" and bool(self._round.token)
        self._printed = bench.process.lines
        self._was_refused = False

    async def do(self, what: str) -> Disturbance:
        """Do one of `DISTURBANCES`."""
        match what:
            case "again":
                return await self._again()
            case "other":
                return await self._other()
            case "tamper":
                return await self._refused(what, _tampered(self._token))
            case "expire" | "somebody":
                return await self._refused(what, await self._resealed(what))
            case "kill":
                return await self._kill()
            case _:
                return await self._forget()

    @property
    def _token(self) -> str:
        """The token that is played with: the one that waits, else the one that was redeemed."""
        return self._round.token if self._waiting else self._round.redeemed

    def _params(self, token: str) -> dict[str, Any]:
        params = {**self._round.params, "requestState": token}
        if self._waiting:
            params["inputResponses"] = answers_for(self._round.exchange.reply)
        return params

    async def _send(self, params: dict[str, Any], *, seen: bool = False) -> RawReply:
        ready = self._bench.process.ready
        exchanges = self._call.wire if seen else []
        reply = await raw_request(ready.url if ready else "", self._round, params, exchanges)
        self._was_refused = reply.code == INVALID_PARAMS
        return reply

    async def _again(self) -> Disturbance:
        before = await self._effects()
        waited = await self._bench.open_items()
        reply = await self._send(self._round.params)
        if not self._round.redeemed and any(item.call == self._held for item in waited):
            same = await self._bench.open_items() == waited
            words = "The call that waits was found" if same else "A new call"
            return await self._attempt("again", f"{words}: {reply.words}", HELD, reply.ok)
        if not self._round.redeemed:
            fresh = await self._bench.timeline.claims(reply.token) if reply.token else None
            old = self._round.claims
            kept = reply.ok and (fresh is None or old is None or fresh.call != old.call)
            return await self._attempt("again", f"A new call: {reply.words}", NEW, kept)
        same = _same(reply, self._round)
        repeated = await self._effects() != before
        words = "the recorded outcome" if same else "another outcome"
        effects = "an effect was repeated" if repeated else "no effect was repeated"
        came = f"{words}, and {effects}: {reply.words}"
        return await self._attempt("again", came, ONCE, same and not repeated)

    async def _other(self) -> Disturbance:
        params = dict(self._round.params)
        answers = cast("dict[str, Any]", params.get("inputResponses") or {})
        if not answers:
            return await self._nothing("other", "this round carried no answers yet")
        params["inputResponses"] = {key: _another(answer) for key, answer in answers.items()}
        before = await self._effects()
        reply = await self._send(params)
        kept = reply.code == INVALID_PARAMS and await self._effects() == before
        return await self._attempt("other", reply.words, ONCE, kept)

    async def _refused(self, what: str, token: str) -> Disturbance:
        if not token:
            return await self._nothing(what, "this round has no token")
        before = await self._effects()
        reply = await self._send(self._params(token))
        if what == "expire" and not self._waiting:
            kept = _same(reply, self._round) and await self._effects() == before
            return await self._attempt(what, reply.words, LATE, kept)
        return await self._attempt(what, reply.words, REFUSED, reply.code == INVALID_PARAMS)

    async def _resealed(self, what: str) -> str:
        """Return the token as an old one, or as one of another caller."""
        claims = await self._bench.timeline.claims(self._token) if self._token else None
        if claims is None:
            return ""
        sealer, now = self._bench.environment.sealer, self._bench.environment.clock()
        if what == "expire":
            changed = msgspec.structs.replace(claims, issued=now - 7_200, expires=now - 3_600)
        else:
            somebody = Principal("https://id.example", "somebody-else", claims.principal.transport)
            changed = msgspec.structs.replace(claims, principal=somebody)
        text = sealer.seal(encode(changed))
        return text if isinstance(text, str) else await text

    async def _kill(self) -> Disturbance:
        away, back = await self._bench.process.kill()
        if not back:
            return await self._attempt(
                "kill", "The server did not start again.", KILLED, kept=False
            )
        came = f"Killed, and back after {away:.1f} s. "
        if self._waiting or not self._round.redeemed:
            goes_on = "The call waits on: answer it." if self._waiting else "No token to send."
            return await self._attempt("kill", came + goes_on, KILLED, kept=True)
        reply = await self._send(self._round.params)
        kept = _same(reply, self._round)
        return await self._attempt(
            "kill", f"{came}The round, sent again: {reply.words}", KILLED, kept
        )

    async def _forget(self) -> Disturbance:
        if not self._token:
            return await self._nothing("forget", "this round carried no answers")
        params = {**self._params(self._token)}
        params.pop("inputResponses", None)
        reply = await self._send(params, seen=self._waiting)
        if not self._waiting:
            kept = reply.code == INVALID_PARAMS
            return await self._attempt("forget", reply.words, ONCE, kept)
        kept = sorted(reply.asks) == sorted(self._round.asked)
        if kept:
            self._go_on(reply)
        return await self._attempt("forget", reply.words, MISSING, kept)

    def _go_on(self, reply: RawReply) -> None:
        """Let the call go on from the token that was just issued."""
        step = self._call.step
        assert step is not None
        declared = self._round.params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        read = read_input_required(reply.result, step.call.method, declared)
        if isinstance(read, str):
            return
        token, asks = read
        call = with_changes(step.call, token=token, asks=asks, answers=None)
        saved = step.saved.with_call(call, received=self._bench.environment.clock())
        shown = {ask.key: view(ask) for ask in asks}
        self._call.replace_step(Step(saved=saved, asks=shown))

    async def _effects(self) -> list[tuple[str, str, float]]:
        claims = await self._bench.timeline.claims(self._round.redeemed or self._round.token)
        rows = await self._bench.timeline.effects(claims.call if claims is not None else "")
        return sorted((row.key, row.state, row.started) for row in rows)

    async def _attempt(self, what: str, came: str, promise: str, kept: bool) -> Disturbance:
        if (reason := await self._logged()) and self._was_refused:
            came += f"\nIn the log: {reason}"
        return Disturbance(what, TITLES[what], came, promise, kept)

    async def _logged(self) -> str:
        """Return the reason of a refusal, which comes by another pipe than the reply."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (LOGGED_WITHIN if self._was_refused else 0.0)
        while True:
            printed = self._bench.process.printed_since(self._printed)
            reasons = [line.text for line in printed if "refused" in line.text]
            if reasons or loop.time() >= end:
                return reasons[-1] if reasons else ""
            await self._bench.change(end - loop.time())

    async def _nothing(self, what: str, why: str) -> Disturbance:
        return await self._attempt(what, f"Nothing was sent: {why}.", ONCE, kept=True)


def _tampered(token: str) -> str:
    """Return a token of which one character in the middle is another one."""
    if not token:
        return ""
    at = len(token) // 2
    other = "A" if token[at] != "A" else "B"
    return token[:at] + other + token[at + 1 :]


def _another(answer: Any) -> Any:
    """Return an answer that says something else."""
    if not isinstance(answer, dict):
        return answer
    said = cast("dict[str, Any]", answer)
    if "action" in said:
        return {"action": "cancel" if said["action"] == "decline" else "decline"}
    if "roots" in said:
        return {"roots": [{"uri": "file:///somewhere/else"}]}
    return {**said, "content": {"type": "text", "text": "something else"}}


def _same(reply: RawReply, recorded: Round) -> bool:
    """Whether a reply has the outcome that was recorded; after a lost reply any one will do."""
    before = recorded.exchange.reply
    if before is None:
        return bool(reply.message)
    return reply.result == before.get("result") and reply.error == before.get("error")
