"""One round of a call: open, bind, redeem, execute, conclude.

The order matters: a token is opened and every claim checked before anything else is believed;
answers are checked for their shape before the ledger is asked; what fails before the claim spends
nothing.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.capabilities import Capability, allows, require
from antiphon.core.journal import Entry, Journal
from antiphon.core.request import Request, owner_of
from antiphon.engine.call import Call, check_map, restart
from antiphon.engine.child_tasks import UserCodeExit
from antiphon.engine.context import Context
from antiphon.engine.delivery import END_ROUND, MAX_DELAY, run_in_session
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.outcome import (
    Asked,
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    NeedsInput,
    Paused,
)
from antiphon.engine.parked import ParkedHandler, ParkedHandlers
from antiphon.engine.redemption import Redemptions, RunningRound
from antiphon.engine.reply import Reply, ending
from antiphon.engine.restarts import RepeatWatch, take_over
from antiphon.engine.tokens import Tokens
from antiphon.errors import (
    ArgumentsInvalid,
    CapabilityMissing,
    ConfigError,
    Diverged,
    InvalidRequest,
    StoreError,
    TokenRefused,
)
from antiphon.ports import ROUNDS_PER_START, About, NewTask, Telemetry
from antiphon.seal.claims import Binding
from antiphon.wire import results

log = logging.getLogger("antiphon")

_NO_ASKS: Mapping[str, Asked] = {}

_EMPTY = Journal(b"")
"""What a new call knows. Nobody changes a journal; each round makes the next one."""


class Handlers(Protocol):
    """Where the engine finds handlers."""

    def find(self, request: Request, /) -> tuple[Handler, Mapping[str, Any] | None]:
        """Return the handler of a call and its raw arguments, or raise `InvalidRequest`."""
        ...


class TaskMaker(Protocol):
    """What makes tasks of calls."""

    @property
    def available(self) -> bool:
        """Whether tasks can be kept."""
        ...

    async def make(self, execution: Execution, journal: Journal, message: str = "") -> Reply:
        """Return the reply that names a new task, which goes on where this round ended."""
        ...

    async def keep(self, task: NewTask) -> None:
        """Keep a task that no redeemed round commits."""
        ...


class Engine:
    """Runs calls, one round at a time."""

    def __init__(self, environment: Environment, handlers: Handlers, tasks: TaskMaker) -> None:
        self.environment = environment
        self.redemptions = Redemptions(environment)
        self.parked = ParkedHandlers(
            environment.limits.parked, environment.limits.parked_per_principal
        )
        self._find = handlers.find
        self._tasks = tasks
        self._tokens = Tokens(environment)
        self._repeats = RepeatWatch(environment.clock)
        self._lifetime = environment.limits.call.total_seconds()

    def call(self, request: Request) -> Coroutine[Any, Any, bytes]:
        """Run one round; returns the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        telemetry = self.environment.telemetry
        return self._call(request) if telemetry is None else self._traced(request, telemetry)

    async def _traced(self, request: Request, telemetry: Telemetry) -> bytes:
        with telemetry.round(request):
            return await self._call(request)

    async def _call(self, request: Request) -> bytes:
        handler, arguments = self._find(request)
        environment = self.environment
        try:
            if request.era == "legacy":
                reply = await self._in_session(request, handler, arguments)
            elif request.token is None:
                reply = await self._first(request, handler, arguments)
            else:
                reply = await self._again(request, handler, arguments)
        except (ArgumentsInvalid, UserCodeExit) as error:
            reply = ending(error, handler, environment)
        except TokenRefused as refusal:
            log.warning("token refused (%s): %s", handler.identity, refusal.detail)
            if environment.telemetry is not None:
                environment.telemetry.refused(refusal.reason)
            raise
        if reply.code:
            raise InvalidRequest(reply.message, code=reply.code, data=reply.data)
        if environment.telemetry is not None:
            request.outcome = reply.kind
        return reply.result

    # --- the three kinds of requests -------------------------------------------------------------

    async def _first(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        call = self._begin(handler)
        if request.answers is not None:
            check_map(request.answers)
            if handler.options.unasked == "accept":
                call.take_unasked(request.answers)
        bound = self._bind(request, handler, arguments)
        if handler.options.restarts is not None:
            return await self._first_or_restart(request, handler, call, bound)
        if self._repeats.calls:
            self._repeats.begin(handler, request)
        execution = Execution(self.environment, handler, request, call, END_ROUND)
        if handler.options.task and self._tasks.available and allows(request.capabilities, "tasks"):
            reply = await self._tasks.make(execution, Journal(call.seed))
        else:
            reply = await self._execute(execution, bound)
        if reply.task is not None:
            await self._tasks.keep(reply.task)
        elif call.began_effect and reply.kind != "input_required":
            await self.redemptions.end_first(call)
        return reply

    async def _first_or_restart(
        self, request: Request, handler: Handler, call: Call, bound: dict[str, Any]
    ) -> Reply:
        """Begin a call, or take over the one that the same caller has left unfinished."""
        options = handler.options
        as_task = options.task and self._tasks.available
        if as_task and allows(request.capabilities, "tasks"):
            execution = Execution(self.environment, handler, request, call, END_ROUND)
            reply = await self._tasks.make(execution, Journal(call.seed))
        else:
            try:
                again = await take_over(self.environment, handler, request, call)
            except (ConfigError, StoreError) as error:
                return ending(error, handler, self.environment, request)
            if again is not None:
                request.call = again.id
                binding = self._tokens.binding(request, handler)
                version = options.version
                work = partial(self._redeemed, request, handler, again, binding, version, bound)
                about = About(handler.name, owner_of(request.principal))
                key = (again.id, again.number)
                return await self.redemptions.redeem(
                    RunningRound(again, key, b"", again.deadline, request, work, about)
                )
            execution = Execution(self.environment, handler, request, call, END_ROUND)
            reply = await self._execute(execution, bound)
        if reply.task is not None:
            await self._tasks.keep(reply.task)
        elif call.began_effect and reply.kind != "input_required" and reply.keep:
            # A round that failed by chance has not ended its call: it can be started over.
            await self.redemptions.end_first(call, round=call.number)
        return reply

    async def _again(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        binding = self._tokens.binding(request, handler)
        claims, call = await self._tokens.open(request.token, binding)
        request.call, request.first_trace = claims.call, call.trace
        request.number = claims.round % ROUNDS_PER_START
        answers = call.accept(request.answers, self.environment.clock())
        bound = self._bind(request, handler, arguments)
        work = partial(self._redeemed, request, handler, call, binding, claims.version, bound)
        about = About(handler.name, owner_of(request.principal))
        running = RunningRound(
            call, (claims.call, call.number), answers, claims.expires, request, work, about
        )
        reply = await self.redemptions.redeem(running)
        if self._repeats.calls and reply.kind != "input_required":
            self._repeats.end(claims.call)
        return reply

    async def _redeemed(
        self,
        request: Request,
        handler: Handler,
        call: Call,
        binding: Binding,
        version: str,
        bound: dict[str, Any],
        fence: int,
        learned: list[Entry],
    ) -> Reply:
        """Run the round of a redeemed token, after what an earlier attempt had learned."""
        if learned:
            call.entries = [*call.entries, *learned]
        if version != handler.options.version:
            # Not before the claim: a duplicate still gets what the other version recorded.
            try:
                await restart(self.environment.store, version, call, handler)
            except (Diverged, StoreError) as error:
                # Another server may still have the version of the call: no failed try.
                reply = ending(error, handler, self.environment, request)
                return msgspec.structs.replace(reply, counts=False)
        parked = None
        if request.token is not None and handler.options.park is not None:
            parked = self.parked.take(request.token)
        if parked is not None:
            if parked.fits(call):
                parked.wake(request, call, fence)
                return await self._conclude(parked.execution, await parked.next(), parked)
            parked.drop()
        execution = Execution(
            self.environment, handler, request, call, END_ROUND, fence=fence, binding=binding
        )
        return await self._execute(execution, bound)

    async def _in_session(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        try:
            self._bind(request, handler, arguments)
        except CapabilityMissing as error:
            return ending(error, handler, self.environment, request)
        call, restarts = self._begin(handler), handler.options.restarts is not None
        if restarts:
            try:
                call = await take_over(self.environment, handler, request, call) or call
            except (ConfigError, StoreError) as error:
                return ending(error, handler, self.environment, request)
        first = call.number
        outcome, call = await run_in_session(self.environment, handler, request, call, arguments)
        if isinstance(outcome, Completed):
            reply = Reply(outcome.result)
        else:
            reply = ending(outcome.error, handler, self.environment, request)
        if call.began_effect and not restarts:
            await self.redemptions.end_first(call)
        elif (call.began_effect or call.generation) and reply.keep:
            await self.redemptions.end_first(call, round=first)
        return reply

    def _begin(self, handler: Handler) -> Call:
        """Begin a call; its deadline starts now."""
        environment = self.environment
        span = handler.options.deadline
        lifetime = self._lifetime if span is None else seconds(span)
        return Call(
            number=1,
            deadline=environment.clock() + lifetime,
            journal=_EMPTY,
            entropy=environment.entropy,
        )

    def _bind(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Check what declared asks need and bind the arguments, before the first line runs.

        Raises:
            CapabilityMissing: The client cannot be asked what the handler declares to ask.
            ArgumentsInvalid: The arguments do not fit.
        """
        options = handler.options
        if (options.task or options.detach) and handler.needs_tasks:
            require(request.capabilities, ("tasks",), f"{handler.kind} {handler.name!r}")
        if handler.options.asks:
            what = f"{handler.kind} {handler.name!r}"
            require(request.capabilities, handler.options.needs, what)
        if handler.check is not None:
            wrong = handler.check(arguments or {})
            if wrong:
                raise ArgumentsInvalid(wrong)
        return handler.bind(arguments)

    # --- the end of a round ----------------------------------------------------------------------

    async def _execute(self, execution: Execution, arguments: dict[str, Any]) -> Reply:
        """Run the handler to the end of the round."""
        if execution.handler.options.park is not None and execution.handler.is_async:
            parked = ParkedHandler(execution, arguments)
            return await self._conclude(execution, await parked.next(), parked)
        outcome = await execution.run(Context(execution), arguments)
        if type(outcome) is Completed:
            return Reply(outcome.result)
        return await self._conclude(execution, outcome)

    async def _conclude(
        self, execution: Execution, outcome: ExecutionOutcome, parked: ParkedHandler | None = None
    ) -> Reply:
        """Turn the outcome of a request's execution into its reply."""
        try:
            match outcome:
                case NeedsInput(asks):
                    return await self._ask(execution, asks, parked)
                case Completed(result):
                    return Reply(result)
                case Paused(delay):
                    if delay:
                        await asyncio.sleep(min(delay, MAX_DELAY))
                    return await self._ask(execution, _NO_ASKS, parked)
                case Detached(message):
                    return await self._tasks.make(execution, execution.journal(), message)
                case Failed(error):
                    return ending(error, execution.handler, self.environment, execution.request)
        except BaseException as error:
            if parked is not None:
                await parked.end()
            if not isinstance(error, Exception):
                raise  # the client went away: nobody will ever bring the token being made
            # Such as a journal that is too large.
            return ending(error, execution.handler, self.environment, execution.request)

    async def _ask(
        self, execution: Execution, asks: Mapping[str, Asked], parked: ParkedHandler | None
    ) -> Reply:
        """Seal the journal, park a handler that waits, and write the asks."""
        now, call, native = self.environment.clock(), execution.call, execution.native
        pending = tuple(
            [
                asked.pending(key, now, before=call.pending.get(key), native=native)
                for key, asked in asks.items()
            ]
        )
        token = await self._tokens.seal(execution, execution.journal(), pending)
        if call.began_effect and execution.handler.options.restarts is None:
            self._repeats.wait(execution.handler, execution.request, call)
        if parked is not None:
            park = seconds(execution.handler.options.park or 0.0)
            self.parked.park(parked, token, min(park, call.deadline - now))
        bodies = [(key, asked.question.body(asked.reason)) for key, asked in asks.items()]
        needs: dict[Capability, None] = {
            need: None for asked in asks.values() for need in asked.question.needs
        }
        result = results.input_required(bodies, token, self.environment.meta)
        return Reply(result, needs=tuple(needs), kind="input_required")
