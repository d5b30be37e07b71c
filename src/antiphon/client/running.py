"""One call on one connection, prepared for a driver: its flow, its effects, what its end means.

Both drivers run the same thing. Knows no transport beyond a link and no person beyond an answerer.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeGuard

import mcp_types as types
from pydantic import BaseModel, ValidationError

from antiphon.client.answers import Answerer, capabilities
from antiphon.client.asking import answer_all
from antiphon.client.endings import error_for
from antiphon.client.errors import (
    AnswerUnfit,
    CannotConnect,
    ClientError,
    InvalidResponse,
    NotOpen,
    StateRefused,
)
from antiphon.client.flow import converse
from antiphon.client.flow_types import (
    Call,
    Done,
    Ending,
    Failure,
    Flow,
    Lost,
    Outcome,
    Patience,
    Watch,
)
from antiphon.client.following import Following, Heard
from antiphon.client.legacy import URL_REQUIRED, visited
from antiphon.client.link import Link, Progress
from antiphon.client.loop import Waiting
from antiphon.client.saved import SavedCall
from antiphon.client.task_values import Task
from antiphon.client.values import AnyAsk, Step, view
from antiphon.core.capabilities import Capability
from antiphon.errors import AnswerInvalid
from antiphon.ports import Clock

OnTask: TypeAlias = Callable[[Task], Awaitable[None] | None]
"""Takes a task whenever it is seen in another state; sync or async."""

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
        same = call.token == kept.call.token and bool(call.task) == bool(kept.call.task)
        received = kept.received if same else self.clock()
        saved = kept.with_call(call, received=received or self.clock())
        return Step(saved=saved, asks={ask.key: ask for ask in self.views(call)})

    async def answer(
        self, kept: SavedCall, call: Call, keys: frozenset[str] | None = None
    ) -> dict[str, Any]:
        """Answer the asks of a round, or only some of a task.

        An error carries the step, so that nothing is lost.
        """
        asks = [ask for ask in self.views(call) if keys is None or ask.key in keys]
        try:
            return await answer_all(asks, self.answerer)
        except AnswerInvalid as invalid:
            error: ClientError = AnswerUnfit(invalid.reasons)
        except ClientError as refused:
            error = refused
        error.step = self.waiting(kept, call)
        raise error from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A call ready to be driven: what a driver's `Performer` is."""

    kept: SavedCall
    flow: Flow
    wire: "_Wire"
    asking: Asking
    patience: Patience
    age: float
    server_changed: bool
    following: Following
    on_task: OnTask | None
    noticed: list[Task]
    """The task as it was last told, so that the same is not told twice."""

    async def send(self, call: Call) -> Outcome:
        """Send a round, or a request about the task."""
        return await self.wire.send(call)

    async def ask(self, call: Call) -> dict[str, Any]:
        """Answer a round for the driver."""
        return await self.asking.answer(self.kept, call)

    async def watch(self, effect: Watch) -> Outcome:
        """Wait for news of the task."""
        return await self.following.watch(effect)

    async def cancel(self, call: Call) -> None:
        """Cancel the task; the server says nothing but that it has heard."""
        if call.task is not None:
            await self.wire.cancel(call.task.id)

    async def notice(self, call: Call) -> None:
        """Tell whoever wants to know, when the task is in another state than before."""
        task = call.task
        if task is None or self.on_task is None or _told(task) in map(_told, self.noticed):
            return
        self.noticed[:] = [task]
        said = self.on_task(task)
        if said is not None:
            await said

    async def close(self) -> None:
        """End the subscription to the task."""
        await self.following.close()

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
            case _:
                error = error_for(
                    ending, self.patience, age=self.age, server_changed=self.server_changed
                )
                error.step = self.asking.waiting(self.kept, ending.call)
                raise error


def _told(task: Task) -> tuple[str, str]:
    return task.status, task.message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wire:
    """How the requests of one call reach the server, on whichever connection is open."""

    relink: Callable[[], Awaitable[Link]]
    declared: Mapping[str, Any]
    on_progress: Progress | None
    asking: Asking
    visits: int
    """How often a call of an old session may be repeated after visits."""

    async def send(self, call: Call) -> Outcome:
        try:
            return await self._send(call)
        except NotOpen:
            raise
        except CannotConnect as error:
            # The connection had died, and there is no other: the call is not lost with it.
            return Lost(sent=False, why=str(error))

    async def _send(self, call: Call) -> Outcome:
        outcome = await (await self.relink()).call(call, self.declared, self.on_progress)
        for _ in range(self.visits):
            if not _needs_visits(outcome):
                break
            if not await visited(outcome, self.asking.answerer, self.asking.who()):
                break
            outcome = await (await self.relink()).call(call, self.declared, self.on_progress)
        return outcome

    async def cancel(self, id: str) -> Outcome:
        return await (await self.relink()).cancel_task(id, self.declared)

    async def listen(self, id: str, heard: Heard) -> None:
        await (await self.relink()).listen_to_task(id, self.declared, heard)


def prepare(
    kept: SavedCall,
    *,
    link: Link,
    relink: Callable[[], Awaitable[Link]],
    needs: frozenset[Capability],
    asking: Asking,
    patience: Patience,
    target: str | list[str] | None,
    on_progress: Progress | None,
    on_task: OnTask | None,
) -> Run:
    """Make a call ready on a link.

    Raises:
        StateRefused: A saved call of the modern era meets a legacy server.
    """
    age = max(0.0, asking.clock() - kept.received) if kept.received else 0.0
    changed = bool(kept.server and link.server and kept.server != link.server)
    if link.era == "legacy":
        if kept.call.token is not None or kept.call.asks or kept.call.task is not None:
            raise _refused(kept, asking, age)
        needs -= {"tasks"}
        # The server waits inside its one reply while a person thinks.
        patience = replace(patience, reply=patience.total)
    declared = capabilities(needs)
    version = link.session.protocol_version or ""
    kept = replace(kept, target=target, server=link.server, protocol=version)

    wire = _Wire(
        relink=relink,
        declared=declared,
        on_progress=on_progress,
        asking=asking,
        visits=patience.rounds if link.era == "legacy" else 0,
    )
    now = time.monotonic()
    return Run(
        kept=kept,
        flow=converse(kept.call, patience=patience, declared=declared, now=now, age=age),
        wire=wire,
        asking=asking,
        patience=patience,
        age=age,
        server_changed=changed,
        following=Following(wire.listen),
        on_task=on_task,
        noticed=[],
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
