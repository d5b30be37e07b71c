"""One round of a call: open its token, bind the arguments, redeem, execute, conclude.

The order matters: a token is opened and everything it claims is checked before anything else is
believed; answers are checked for their shape before the ledger is asked; what fails before the
round is claimed in the ledger spends nothing.

A request without a token goes through `_first`, one with a token through `_again`, `redemption.py`
and `_redeemed`, one of a legacy session through `_in_session`. `_conclude` turns how the execution
ended into a `Reply`.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.capabilities import Capability, allows
from antiphon.core.journal import Entry, Journal
from antiphon.core.request import Request
from antiphon.engine.call import Call, restart
from antiphon.engine.child_tasks import UserCodeExit
from antiphon.engine.context import Context
from antiphon.engine.delivery import END_ROUND, MAX_DELAY, run_in_session
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler, Handlers
from antiphon.engine.outcome import (
    Completed,
    Detached,
    ExecutionOutcome,
    Failed,
    Held,
    NeedsInput,
    Paused,
)
from antiphon.engine.parked import ParkedHandler, ParkedHandlers
from antiphon.engine.questions import Asked
from antiphon.engine.redemption import Redemptions, RunningRound
from antiphon.engine.reply import HeldCallMaker, Reply, TaskMaker, ending
from antiphon.engine.restarts import RepeatWatch, take_over
from antiphon.engine.tokens import Tokens
from antiphon.environment import Environment
from antiphon.errors import (
    ArgumentsInvalid,
    CapabilityMissing,
    ConfigError,
    Diverged,
    InvalidRequest,
    StoreError,
    TokenRefused,
    Unavailable,
)
from antiphon.ports import ROUNDS_PER_START
from antiphon.wire import results

log = logging.getLogger("antiphon")

_NO_ASKS: Mapping[str, Asked] = {}

_EMPTY = Journal(b"")
"""What a new call knows. Nobody changes a journal; each round makes the next one."""

_ANSWERED = (ArgumentsInvalid, CapabilityMissing, UserCodeExit, ConfigError, StoreError)
"""Errors before the first line that are told to the client as the end of its call."""

_RUNS_AGAIN = (
    "%s runs again from its first line in every round: what it does above its last question "
    "happens again, except in ctx.once and ctx.memo"
)


class Engine:
    """Runs calls, one round at a time."""

    def __init__(
        self, environment: Environment, handlers: Handlers, tasks: TaskMaker, held: HeldCallMaker
    ) -> None:
        self.environment = environment
        self.redemptions = Redemptions(environment, self._redeemed)
        self.parked = ParkedHandlers(environment.holdings.parked)
        self._find = handlers.find
        self._tasks = tasks
        self._held = held
        self._tokens = Tokens(environment)
        self._repeats = RepeatWatch(environment.clock)
        self._lifetime = environment.limits.call.total_seconds()
        self._seen_again: set[str] = set()

    async def call(self, request: Request) -> bytes:
        """Run one round; returns the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        handler, arguments = self._find(request)
        try:
            if request.era == "legacy":
                reply = await self._in_session(request, handler, arguments)
            elif request.token is None:
                reply = await self._first(request, handler, arguments)
            else:
                reply = await self._again(request, handler, arguments)
        except _ANSWERED as error:
            reply = ending(error, handler, self.environment, request)
        except TokenRefused as refusal:
            log.warning("token refused (%s): %s", handler.identity, refusal.detail)
            if self.environment.telemetry is not None:
                self.environment.telemetry.refused(refusal.reason)
            raise
        if reply.code:
            raise InvalidRequest(reply.message, code=reply.code, data=reply.data)
        request.outcome = reply.kind
        return reply.result

    # --- the three kinds of requests -------------------------------------------------------------

    async def _first(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Begin a call, or go on with the one that the same caller has left unfinished."""
        call, options = self._begin(handler), handler.options
        if request.answers is not None:
            call.take_unasked(request.answers, keep=options.unasked == "accept")
        if handler.guarded:
            handler.check_request(request, arguments)
        bound = handler.bind(arguments)
        tasks = options.task and self._tasks.available and allows(request.capabilities, "tasks")
        if options.holds:
            found = await self._held.find(request, handler)
            if found is not None:
                return found
        elif options.restarts is not None and not tasks:
            again = await take_over(self.environment, handler, request, call)
            if again is not None:
                return await self._start_over(request, handler, again, bound)
        elif self._repeats.calls:
            self._repeats.begin(handler, request)
        execution = Execution(self.environment, handler, request, call, END_ROUND)
        if tasks:
            reply = await self._tasks.make(execution, Journal(call.seed))
        else:
            reply = await self._execute(execution, bound)
        if reply.task is None and not call.began_effect:
            return reply
        return await self._kept_first(execution, reply)

    async def _kept_first(self, execution: Execution, reply: Reply) -> Reply:
        """Keep the task that a first round has made, or free what its effects leave behind.

        A later round needs none of this: `Redemptions` records reply and task in one step.
        """
        if reply.task is None:
            if reply.kind != "input_required":
                await self.redemptions.end_first(execution.call, execution.handler, reply)
        elif reply.task.held is not None:
            return await self._held.settle_first(execution, reply, execution.held)
        else:
            await self._tasks.keep(reply.task)
        return reply

    async def _start_over(
        self, request: Request, handler: Handler, call: Call, bound: dict[str, Any]
    ) -> Reply:
        """Run the first round of a call that its caller has started over."""
        request.call = call.id
        key, version = (call.id, call.number), handler.options.version
        binding = self._tokens.binding(request, handler)
        own = RunningRound(key, request, handler, call, binding, version, bound, b"", call.deadline)
        try:
            return await self.redemptions.redeem(own)
        except TokenRefused as refusal:
            # There was no token to refuse.
            raise Unavailable(
                "the same call was begun again at the same time, and that one goes on"
            ) from refusal

    async def _again(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Go on with the call of a token."""
        binding = self._tokens.binding(request, handler)
        claims, call = await self._tokens.open(request.token, binding)
        key, version, expires = (claims.call, claims.round), claims.version, claims.expires
        request.call, request.first_trace = claims.call, call.trace
        request.number = claims.round % ROUNDS_PER_START
        answers = call.accept(request.answers, self.environment.clock())
        if handler.guarded:
            handler.check_request(request, arguments)
        bound = handler.bind(arguments)
        reply = await self.redemptions.redeem(
            RunningRound(key, request, handler, call, binding, version, bound, answers, expires)
        )
        if self._repeats.calls and reply.kind != "input_required":
            self._repeats.end(claims.call)
        return reply

    async def _redeemed(self, running: RunningRound, learned: list[Entry]) -> Reply:
        """Run the round of a redeemed token, after what an earlier attempt had learned."""
        request, handler, call = running.request, running.handler, running.call
        if learned:
            call.entries = [*call.entries, *learned]
        if handler.options.holds or handler.kind != "tool":
            observed = await self._held.observed(running)
            if observed is not None:
                return observed
        if running.version != handler.options.version:
            # Not before the claim: a duplicate still gets what the other version recorded.
            try:
                await restart(self.environment.store, running.version, call, handler)
            except (Diverged, StoreError) as error:
                # Another server may still have the version of the call: no failed try.
                reply = ending(error, handler, self.environment, request)
                return msgspec.structs.replace(reply, counts=False)
        if handler.parks and request.token is not None:
            parked = self.parked.take(request.token)
            if parked is not None and parked.fits(call):
                parked.wake(request, call, running.fence)
                return await self._conclude(parked.execution, await parked.next(), parked)
            if parked is not None:
                parked.drop()
        if self.environment.expose_errors and handler.identity not in self._seen_again:
            self._seen_again.add(handler.identity)
            log.info(_RUNS_AGAIN, handler.identity)
        execution = Execution(
            self.environment, handler, request, call, END_ROUND, running.fence, running.binding
        )
        return await self._execute(execution, running.bound)

    async def _in_session(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Run a whole call of a legacy session: its asks are answered in place."""
        if handler.guarded:
            handler.check_request(request, arguments)
        handler.bind(arguments)
        call = self._begin(handler)
        if handler.options.restarts is not None:
            call = await take_over(self.environment, handler, request, call) or call
        if handler.options.holds:
            found = await self._held.find(request, handler)
            if found is not None:
                return found
        execution, outcome = await run_in_session(
            self.environment, handler, request, call, arguments
        )
        if isinstance(outcome, Held):
            return await self._held.in_session(execution, outcome.asks)
        reply = await self._conclude(execution, outcome)
        if execution.call.began_effect or execution.call.generation:
            await self.redemptions.end_first(execution.call, handler, reply)
        return reply

    def _begin(self, handler: Handler) -> Call:
        """Begin a call; its deadline starts now."""
        environment, span = self.environment, handler.options.deadline
        lifetime = self._lifetime if span is None else seconds(span)
        return Call(1, environment.clock() + lifetime, _EMPTY, environment.entropy)

    # --- the end of a round ----------------------------------------------------------------------

    async def _execute(self, execution: Execution, arguments: dict[str, Any]) -> Reply:
        """Run the handler to the end of the round."""
        if execution.handler.parks:
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
                case Held() | Detached():
                    return await self._go_on_later(execution, outcome)
                case Failed(error):
                    return ending(error, execution.handler, self.environment, execution.request)
        except BaseException as error:
            if parked is not None:
                await parked.end()
            if not isinstance(error, Exception):
                raise  # the client went away: nobody will ever bring the token being made
            # Such as a journal that is too large.
            return ending(error, execution.handler, self.environment, execution.request)

    async def _go_on_later(self, execution: Execution, outcome: Held | Detached) -> Reply:
        """The rest of the call runs as a task: at once, or when somebody has decided."""
        if isinstance(outcome, Held):
            return await self._held.hold(execution, outcome.asks)
        return await self._tasks.make(execution, execution.journal(), outcome.message)

    async def _ask(
        self, execution: Execution, asks: Mapping[str, Asked], parked: ParkedHandler | None
    ) -> Reply:
        """Seal the journal, park a handler that waits, and write the asks."""
        token = await self._tokens.seal(execution, asks)
        call, options = execution.call, execution.handler.options
        if call.began_effect and options.restarts is None:
            self._repeats.wait(execution.handler, execution.request, call)
        if parked is not None:
            left = call.deadline - self.environment.clock()
            self.parked.park(parked, token, min(seconds(options.park or 0.0), left))
        bodies: list[tuple[str, bytes]] = []
        needs: tuple[Capability, ...] = ()
        for key, asked in asks.items():
            bodies.append((key, asked.question.body(asked.reason)))
            needs = (*needs, *asked.question.needs)
        result = results.input_required(bodies, token, self.environment.meta)
        return Reply(result, needs=needs, kind="input_required")
