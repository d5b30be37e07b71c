"""One call on one connection, prepared for a driver: its flow, its effects, what its end means.

Both drivers run the same thing. Knows no transport beyond a link and no person beyond an answerer.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import mcp_types as types
from pydantic import BaseModel, ValidationError

from antiphon.client.answers import Answerer, capabilities
from antiphon.client.asking import answer_all
from antiphon.client.endings import error_for
from antiphon.client.errors import AnswerUnfit, ClientError, InvalidResponse, StateRefused
from antiphon.client.legacy import URL_REQUIRED, visited
from antiphon.client.link import Link, Progress
from antiphon.client.loop import Waiting
from antiphon.client.saved import SavedCall
from antiphon.client.values import AnyAsk, Step, view
from antiphon.core.flow import (
    Call,
    Detached,
    Done,
    Ending,
    Failure,
    Flow,
    Outcome,
    Patience,
    converse,
)
from antiphon.core.gate import Need
from antiphon.errors import AnswerInvalid
from antiphon.ports import Clock

_RESULTS: Mapping[str, type[BaseModel]] = {
    "tools/call": types.CallToolResult,
    "prompts/get": types.GetPromptResult,
    "resources/read": types.ReadResourceResult,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Who is asked, who asks, and what time it is."""

    answerer: Answerer | None
    who: Callable[[], tuple[str, str]]
    clock: Clock

    def views(self, call: Call) -> list[AnyAsk]:
        """Show the asks of a call."""
        server, origin = self.who()
        return [view(ask, server=server, origin=origin) for ask in call.asks]

    def waiting(self, kept: SavedCall, call: Call) -> Step:
        """Give the step that waits for these asks."""
        received = kept.received if call.token == kept.call.token else self.clock()
        saved = kept.with_call(call, received=received or self.clock())
        return Step(saved=saved, asks={ask.key: ask for ask in self.views(call)})

    async def answer(self, kept: SavedCall, call: Call) -> dict[str, Any]:
        """Answer the asks of a round; an error carries the step, so that nothing is lost."""
        try:
            return await answer_all(self.views(call), self.answerer)
        except AnswerInvalid as invalid:
            error: ClientError = AnswerUnfit(invalid.reasons)
        except ClientError as refused:
            error = refused
        error.step = self.waiting(kept, call)
        raise error from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A call ready to be driven."""

    kept: SavedCall
    flow: Flow
    send: Callable[[Call], Awaitable[Outcome]]
    asking: Asking
    patience: Patience
    age: float
    server_changed: bool

    async def ask(self, call: Call) -> dict[str, Any]:
        """Answer a round for the driver."""
        return await self.asking.answer(self.kept, call)

    def conclude(self, ending: Ending | Waiting) -> Step:
        """Turn the end of the flow into a step.

        Raises:
            ClientError: The call stopped; the error carries the step.
        """
        match ending:
            case Done(result, retried):
                parsed = _parsed(self.kept.call.method, result)
                return Step(saved=self.kept, result=parsed, done=True, retried=retried)
            case Waiting(call):
                return self.asking.waiting(self.kept, call)
            case Detached():
                raise InvalidResponse("it started a task, which this client did not ask for")
            case _:
                error = error_for(
                    ending, self.patience, age=self.age, server_changed=self.server_changed
                )
                error.step = self.asking.waiting(self.kept, ending.call)
                raise error


def prepare(
    kept: SavedCall,
    *,
    link: Link,
    relink: Callable[[], Awaitable[Link]],
    needs: frozenset[Need],
    asking: Asking,
    patience: Patience,
    target: str | list[str] | None,
    on_progress: Progress | None,
) -> Run:
    """Make a call ready on a link.

    Raises:
        StateRefused: A saved call of the modern era meets a legacy server.
    """
    age = max(0.0, asking.clock() - kept.received) if kept.received else 0.0
    changed = bool(kept.server and link.server and kept.server != link.server)
    if link.era == "legacy":
        if kept.call.token is not None or kept.call.asks:
            raise _refused(kept, asking, age)
        # The server waits inside its one reply while a person thinks.
        patience = replace(patience, reply=patience.total)
    declared = capabilities(needs)
    version = link.session.protocol_version or ""
    kept = replace(kept, target=target, server=link.server, protocol=version)

    async def send(call: Call) -> Outcome:
        outcome = await (await relink()).call(call, declared, on_progress)
        for _ in range(patience.rounds if link.era == "legacy" else 0):
            if not _needs_visits(outcome):
                break
            if not await visited(outcome, asking.answerer, asking.who()):
                break
            outcome = await (await relink()).call(call, declared, on_progress)
        return outcome

    return Run(
        kept=kept,
        flow=converse(kept.call, patience=patience, declared=declared, now=time.monotonic()),
        send=send,
        asking=asking,
        patience=patience,
        age=age,
        server_changed=changed,
    )


def _needs_visits(outcome: Outcome) -> TypeGuard[Failure]:
    return isinstance(outcome, Failure) and outcome.code == URL_REQUIRED


def _refused(kept: SavedCall, asking: Asking, age: float) -> StateRefused:
    why = "the server speaks an older protocol now"
    error = StateRefused(why, None, age=age, server_changed=True)
    error.step = asking.waiting(kept, kept.call)
    return error


def _parsed(method: str, result: dict[str, Any]) -> BaseModel:
    try:
        return _RESULTS[method].model_validate(result, by_name=False)
    except ValidationError as error:
        raise InvalidResponse(f"{error.error_count()} faults in the result of {method}") from error
