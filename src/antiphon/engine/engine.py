"""One round of a call: open its token, bind the arguments, redeem, execute, conclude.

The order matters: a token is opened and everything it claims is checked before anything else is
believed; answers are checked for their shape before the ledger is asked; what fails before the
round is claimed in the ledger spends nothing.

There are four kinds of requests. One that begins a call goes through `_first`; if its client has
named the call with an idempotency key, through `_named`, which claims the round as if it had a
token. One with a token goes through `_again`. The last two are claimed by `redemption.py`, which
calls `_redeemed`. One of a legacy session goes through `_in_session`. `_conclude` turns how the
execution ended into a `Reply`.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.engine.call import Call, restart
from antiphon.engine.child_tasks import UserCodeExit
from antiphon.engine.context import Context
from antiphon.engine.delivery import END_ROUND, HOLD, run_in_session
from antiphon.engine.effects.skipped import report_skipped
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler, Handlers
from antiphon.engine.mistakes import RerunNotice
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
from antiphon.engine.reply import HeldCallMaker, Reply, TaskMaker, ending, tell_end
from antiphon.engine.restarts import RepeatWatch, named_call, take_over
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
from antiphon.ports import ROUNDS_PER_START
from antiphon.protocol import results
from antiphon.protocol.asks import seconds
from antiphon.protocol.capabilities import Capability, allows
from antiphon.protocol.journal import Entry, Journal
from antiphon.protocol.request import Request

log: logging.Logger = logging.getLogger("antiphon")

_EMPTY = Journal(b"")
"""What a new call knows. Nobody changes a journal; each round makes the next one."""

_ANSWERED = (ArgumentsInvalid, CapabilityMissing, UserCodeExit, ConfigError, StoreError)
"""Errors before the first line that are told to the client as the end of its call."""


class Engine:
    """Runs calls, one round at a time."""

    def __init__(
        self, environment: Environment, handlers: Handlers, tasks: TaskMaker, held: HeldCallMaker
    ) -> None:
        self.environment = environment
        self.redemptions: Redemptions = Redemptions(environment, self._redeemed)
        self.parked: ParkedHandlers = ParkedHandlers(environment.holdings.parked)
        self._find = handlers.find
        self._listeners = environment.ends.listeners
        self._tasks = tasks
        self._held = held
        self._tokens = Tokens(environment)
        self._repeats = RepeatWatch(environment.clock)
        self._lifetime = environment.limits.call.total_seconds()
        self._notice = RerunNotice()

    async def call(self, request: Request) -> bytes:
        """Run one round; returns the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        handler, arguments = self._find(request)
        try:
            if request.token is not None:
                reply = await self._again(request, handler, arguments)
            elif request.era == "legacy":
                reply = await self._in_session(request, handler, arguments)
            elif request.idempotency_key is None or handler.options.holds:
                reply = await self._first(request, handler, arguments)
            else:
                reply = await self._named(request, handler, arguments)
        except _ANSWERED as error:
            reply = ending(error, handler, self.environment, request)
        except TokenRefused as refusal:
            log.warning("token refused (%s): %s", handler.identity, refusal.detail)
            if self.environment.telemetry is not None:
                self.environment.telemetry.refused(refusal.reason)
            raise
        except asyncio.CancelledError:
            tell_end(self.environment, handler, request, None)
            raise
        if self._listeners:
            tell_end(self.environment, handler, request, reply)
        if reply.code:
            raise InvalidRequest(reply.message, code=reply.code, data=reply.data)
        request.outcome = reply.kind
        return reply.result

    # --- the four kinds of requests --------------------------------------------------------------

    async def _first(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Begin a call, or go on with the one that the same caller has left unfinished."""
        options = handler.options
        call = self._begin(request, handler)
        if request.answers is not None:
            call.take_unasked(request.answers, keep=options.unasked == "accept")
        if handler.guarded:
            await handler.check_request(request, arguments)
        bound = handler.bind(arguments)
        tasks = options.task and self._makes_task(request)
        if options.holds:
            found = await self._held.find(request, handler)
            if found is not None:
                return found
        elif options.restarts is not None and not tasks:
            again = await take_over(self.environment, handler, request, call)
            if again is not None:
                binding = self._tokens.binding(request, handler)
                return await self.redemptions.start_over(request, handler, again, binding, bound)
        elif self._repeats.calls:
            self._repeats.begin(handler, request)
        delivery = ParkedHandler() if handler.parks else END_ROUND
        execution = Execution.of(self.environment, handler, request, call, delivery)
        if request.audit is not None:
            await request.audit.begin(call.id)
        if tasks:
            return await self._tasks.make(execution, Journal(call.seed))
        return await self._execute(execution, bound)

    def _makes_task(self, request: Request) -> bool:
        """Return whether a tool with `task=` begins as a task for this client."""
        return self._tasks.available and allows(request.capabilities, "tasks")

    async def _named(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Run the first round of a call that has an idempotency key: once, as with a token."""
        call = named_call(self.environment, handler, request, self._begin(request, handler))
        if handler.guarded:
            await handler.check_request(request, arguments)
        binding, bound = self._tokens.binding(request, handler), handler.bind(arguments)
        return await self.redemptions.start_over(request, handler, call, binding, bound)

    async def _again(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Go on with the call of a token."""
        binding = self._tokens.binding(request, handler)
        opened = self._tokens.open(request.token, binding)
        claims, call = opened if isinstance(opened, tuple) else await opened
        key, version, expires = (claims.call, claims.round), claims.version, claims.expires
        request.call, request.first_trace = claims.call, call.trace
        request.number = claims.round % ROUNDS_PER_START
        if self.environment.telemetry is not None:
            self.environment.telemetry.resumed(request, claims.issued, expires)
        answers = call.accept(request.answers, self.environment.clock())
        if handler.guarded:
            await handler.check_request(request, arguments)
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
                # Another server may still run the version of the call: this try does not count.
                reply = ending(error, handler, self.environment, request)
                return msgspec.structs.replace(reply, counts=False)
        if handler.parks and request.token is not None:
            parked = self.parked.wake(request.token, request, call, running.fence)
            if parked is not None:
                return await self._conclude(parked.execution, await parked.next())
        if self.environment.expose_errors:
            self._notice.tell(handler.identity)
        delivery = ParkedHandler() if handler.parks else END_ROUND
        execution = Execution.of(
            self.environment, handler, request, call, delivery, running.fence, running.binding
        )
        if request.token is None and handler.options.task and self._makes_task(request):
            return await self._tasks.make(execution, Journal(call.seed))
        return await self._execute(execution, running.bound)

    async def _in_session(
        self, request: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        """Run a whole call of a legacy session: its asks are answered in place."""
        if handler.guarded:
            await handler.check_request(request, arguments)
        handler.bind(arguments)
        call = self._begin(request, handler)
        if handler.options.restarts is not None:
            call = await take_over(self.environment, handler, request, call) or call
        if handler.options.holds:
            found = await self._held.find(request, handler)
            if found is not None:
                return found
        ended = await run_in_session(self.environment, handler, request, call, arguments)
        return await self._conclude(*ended)

    def _begin(self, request: Request, handler: Handler) -> Call:
        """Begin a call; its deadline starts now."""
        environment = self.environment
        span = handler.options.deadline
        deadline = environment.clock() + (self._lifetime if span is None else seconds(span))
        call = Call(1, deadline, _EMPTY, environment.entropy, _EMPTY.entries, _EMPTY.seed)
        if self._listeners:
            request.call = call.id
        return call

    # --- the end of a round ----------------------------------------------------------------------

    async def _execute(self, execution: Execution, arguments: dict[str, Any]) -> Reply:
        """Run the handler to the end of the round."""
        if isinstance(execution.delivery, ParkedHandler):
            outcome = await execution.delivery.start(execution, arguments)
        else:
            outcome = await execution.run(Context(execution), arguments)
            if execution.doubts:
                execution, outcome = await self._run_settled(execution, outcome)
            if execution.fence > 1 or execution.call.generation:
                outcome = await report_skipped(execution, outcome)
        if type(outcome) is Completed and not execution.call.began_effect:
            return Reply(outcome.result)
        return await self._conclude(execution, outcome)

    async def _run_settled(
        self, execution: Execution, outcome: ExecutionOutcome
    ) -> tuple[Execution, ExecutionOutcome]:
        """Run a handler again that failed by an effect whose end has become known meanwhile."""
        while (again := execution.once_more(outcome)) is not None:
            execution = again
            bound = execution.handler.bind(execution.request.arguments)
            outcome = await execution.run(Context(execution), bound)
        return execution, outcome

    async def _conclude(self, execution: Execution, outcome: ExecutionOutcome) -> Reply:
        """Turn the outcome of a request's execution into its reply."""
        try:
            if not isinstance(outcome, Completed | Failed):
                reply = await self._wait(execution, outcome)
                await execution.call.tell(self.environment.store)
                return reply
            if isinstance(outcome, Completed):
                reply = Reply(outcome.result)
            else:
                reply = self._failed(execution, outcome.error)
        except BaseException as error:
            await execution.delivery.end()
            if not isinstance(error, Exception):
                raise  # the client went away: nobody will ever bring the token being made
            # Such as a journal that is too large.
            reply = self._failed(execution, error)
            if isinstance(outcome, Held | Detached):
                return reply  # its task may have been kept all the same
        call = execution.call
        if not reply.keep:
            await call.tell(self.environment.store, lost=True)
        if not execution.fence and (call.began_effect or call.generation or call.shares):
            await self.redemptions.end_first(call, execution.handler, reply)
        return reply

    async def _wait(
        self, execution: Execution, outcome: NeedsInput | Paused | Held | Detached
    ) -> Reply:
        """Return the reply of a round after which the call goes on."""
        if isinstance(outcome, NeedsInput):
            return await self._ask(execution, outcome.asks)
        if isinstance(outcome, Paused):
            return await self._ask(execution, {}, outcome.delay)
        if isinstance(outcome, Held):
            return await self._held.hold(execution, outcome.asks)
        journal = execution.journal()
        return await self._tasks.make(execution, journal, outcome.message)

    def _failed(self, execution: Execution, error: Exception) -> Reply:
        """Return the reply to a round whose execution an error ended."""
        handler, request = execution.handler, execution.request
        return ending(error, handler, self.environment, request, execution.private_values)

    async def _ask(
        self, execution: Execution, asks: Mapping[str, Asked], delay: float = 0.0
    ) -> Reply:
        """Seal the journal, park a handler that waits, and write the asks."""
        if delay:
            await asyncio.sleep(min(delay, HOLD))
        token = self._tokens.seal(execution, asks)
        if not isinstance(token, str):
            token = await token
        call, options = execution.call, execution.handler.options
        if call.began_effect and options.restarts is None:
            self._repeats.wait(execution.handler, execution.request, call)
        if isinstance(execution.delivery, ParkedHandler):
            self.parked.park(execution.delivery, token)
        bodies: list[tuple[str, bytes]] = []
        needs: tuple[Capability, ...] = ()
        for key, asked in asks.items():
            bodies.append((key, asked.question.body(asked.reason)))
            needs = (*needs, *asked.question.needs)
        result = results.input_required(bodies, token, self.environment.meta)
        return Reply(result, needs=needs, kind="input_required")
