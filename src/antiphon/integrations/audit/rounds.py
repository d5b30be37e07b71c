"""Notes one round, or one run of a task, and writes its records."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

import msgspec

from antiphon.errors import CallerError, StoreError, TokenRefused, Unavailable
from antiphon.ports import AuditTrail
from antiphon.protocol.audit import AuditedAsk, AuditEvent
from antiphon.protocol.digest import canonical
from antiphon.protocol.request import Request

if TYPE_CHECKING:
    from antiphon.integrations.audit.log import AuditLog

MOST_TEXT = 65_536
"""Characters of arguments, answers or a question that a record keeps."""

_MOST_KEYS = 64

Serve = Callable[[Request], Coroutine[Any, Any, bytes]]


def audited(serve: Serve, trail: AuditTrail) -> Serve:
    """Write the records of every request that is served."""

    async def serve_audited(request: Request) -> bytes:
        notes = trail.round(request)
        request.audit = notes
        return await notes.serve(serve)

    return serve_audited


def refusals_audited(serve: Serve, trail: AuditTrail) -> Serve:
    """Write the refusals of requests that belong to no call: lists, completions, tasks."""

    async def serve_noting_refusals(request: Request) -> bytes:
        try:
            return await serve(request)
        except CallerError as error:
            await trail.note_refusal(request.principal, type(error).__name__, request.method)
            raise

    return serve_noting_refusals


class AuditedRound:
    """One round, or one run of a task, while it goes on."""

    __slots__ = ("_asked", "_began", "_log", "_request", "_task", "started")

    def __init__(self, log: "AuditLog", request: Request, *, task: str = "") -> None:
        self._log = log
        self._request = request
        self._task = task
        self._asked: list[AuditedAsk] = []
        self._began = time.perf_counter()
        self.started: bool = False
        """Whether the round belongs to a call: it began one, or its token was good."""

    # --- while it goes on ------------------------------------------------------------------------

    async def begin(self, call: str, *, restarted: bool = False) -> None:
        """Write that a call begins."""
        self._request.call = call
        self.started = True
        await self._log.write(
            self._event(
                "call",
                outcome="restarted" if restarted else "begun",
                digest=self._digest(),
                text=self._arguments(),
            )
        )

    async def begin_effect(self, key: str, function: str) -> None:
        """Write that an effect begins."""
        await self._log.write(self._event("effect", key=key, function=function, outcome="begun"))

    async def end_effect(self, key: str, function: str, outcome: str, seconds: float) -> None:
        """Write how an effect ended."""
        await self._log.write(
            self._event("effect", key=key, function=function, outcome=outcome, seconds=seconds)
        )

    def note_ask(self, key: str, kind: str, digest: bytes, text: str) -> None:
        """Note a question of the round."""
        allowed = text[:MOST_TEXT] if self._log.settings.texts else ""
        self._asked.append(AuditedAsk(key, kind, self._log.digest(digest), allowed))

    # --- its end ---------------------------------------------------------------------------------

    async def serve(self, serve: Serve) -> bytes:
        """Serve the request; its record is written before its reply leaves."""
        request = self._request
        try:
            result = await serve(request)
        except TokenRefused as error:
            await self._log.refuse(self._event("refusal", reason=error.reason, outcome="refused"))
            raise
        except Exception as error:
            await self._refused_or_failed(error)
            raise
        except asyncio.CancelledError:
            # The client has gone: nobody waits, and the record is written all the same.
            self._log.write_later(self._round("cancelled"))
            raise
        outcome = request.outcome
        if outcome == "complete" and self._log.is_failure(result):
            outcome = "failed"
        try:
            await self._log.write(self._round(outcome))
        except StoreError as error:
            raise self._log.refused(error) from error
        return result

    async def _refused_or_failed(self, error: Exception) -> None:
        reason = type(error).__name__
        if not (self.started or self._request.call):
            await self._log.refuse(self._event("refusal", reason=reason, outcome="refused"))
            return
        away = isinstance(error, Unavailable | StoreError)
        event = self._round("unavailable" if away else "error", reason)
        try:
            await self._log.write(event)
        except StoreError as failure:
            # That the round cannot be served is what the client is told in any case.
            if not away:
                raise self._log.refused(failure) from failure

    async def end_run(self, call: str, number: int, outcome: str) -> None:
        """Write how a run of a task ended."""
        self._request.call, self._request.number = call, number
        await self._log.write(
            self._event("run", outcome=outcome, seconds=self._seconds(), asked=tuple(self._asked))
        )

    def _round(self, outcome: str, reason: str = "") -> AuditEvent:
        answers = self._request.answers
        answered = _keys(answers)
        return self._event(
            "round",
            outcome=outcome,
            reason=reason,
            digest=self._digest(),
            seconds=self._seconds(),
            duplicate=self._request.repeated,
            asked=() if self._request.repeated else tuple(self._asked),
            answered=answered,
            answers=_json(answers) if answers and self._log.settings.answers else "",
        )

    def _event(self, kind: str, **members: Any) -> AuditEvent:
        request = self._request
        return self._log.event(
            request,
            kind=kind,
            call=request.call,
            round=request.number,
            task=self._task,
            **members,
        )

    def _seconds(self) -> float:
        return round(time.perf_counter() - self._began, 6)

    def _digest(self) -> bytes:
        return self._log.digest(canonical(self._request.arguments or {}))

    def _arguments(self) -> str:
        return _json(self._request.arguments or {}) if self._log.settings.texts else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")[:MOST_TEXT]


def _keys(answers: object) -> tuple[str, ...]:
    """Return which answers a request brings; a client may send anything."""
    if not isinstance(answers, dict):
        return ()
    return tuple(str(key)[:200] for key in list(cast("dict[object, Any]", answers))[:_MOST_KEYS])
