"""One round of a call: open, gate, redeem, run, seal. Straight through; knows no transport.

The order of S2-7 and S3-4: a token is opened and every claim checked before anything else is
believed; answers are checked for their shape before the ledger is asked; what fails before the
claim spends nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.capabilities import Capability, allows, require
from antiphon.core.journal import Entry, Journal
from antiphon.core.outcome import InputRequired
from antiphon.core.request import Request
from antiphon.engine import effects
from antiphon.engine.call import Call, check_map
from antiphon.engine.checks import check_secret, check_tries
from antiphon.engine.context import Context
from antiphon.engine.delivery import EndRound
from antiphon.engine.endings import ending
from antiphon.engine.environment import Environment
from antiphon.engine.execution import ENDED, Execution
from antiphon.engine.handler import Handler
from antiphon.engine.keys import check_key
from antiphon.engine.parked import Asking, ParkedHandler, ParkedHandlers
from antiphon.engine.push import BackChannelDelivery
from antiphon.engine.questions import question
from antiphon.engine.redemption import Redemptions
from antiphon.engine.reply import Reply, deliver
from antiphon.engine.serialization import codec_for
from antiphon.engine.signals import Suspended
from antiphon.engine.tokens import Tokens, load_journal, pending_of
from antiphon.engine.versions import carried_over, version_changed
from antiphon.errors import (
    AntiphonError,
    ArgumentsInvalid,
    CapabilityMissing,
    Diverged,
    StoreError,
    TokenRefused,
    TooManyRounds,
)
from antiphon.ports import About, Telemetry
from antiphon.tasks.service import Leg, TaskService
from antiphon.wire import results

log = logging.getLogger("antiphon")

_MAX_HOLD = 30.0
"""Seconds for which the end of a round may be held back."""

_NO_ENTRIES: list[Entry] = []


class Handlers(Protocol):
    """Where the engine finds handlers."""

    def find(self, round: Request) -> tuple[Handler, Mapping[str, Any] | None]:
        """Give the handler of a call and its raw arguments, or raise `InvalidRequest`."""
        ...


class Engine:
    """Runs calls, one round at a time."""

    def __init__(self, services: Environment, handlers: Handlers, tasks: TaskService) -> None:
        self.services = services
        self.redeemer = Redemptions(services)
        self.handler = handlers.find
        self.tasks = tasks
        self.tokens = Tokens(services)
        self.lot = ParkedHandlers(services.limits.parked, services.limits.parked_per_principal)
        self._suspend = EndRound()
        self._life = services.limits.call.total_seconds()

    def call(self, round: Request) -> Coroutine[Any, Any, bytes]:
        """Run one round; give the bytes of its result.

        Raises:
            CallerError: What the client is told as a JSON-RPC error.
        """
        telemetry = self.services.telemetry
        return self._call(round) if telemetry is None else self._traced(round, telemetry)

    async def _traced(self, round: Request, telemetry: Telemetry) -> bytes:
        with telemetry.round(round):
            return await self._call(round)

    async def _call(self, round: Request) -> bytes:
        handler, arguments = self.handler(round)
        try:
            if round.era == "legacy":
                way = BackChannelDelivery(round, self.services, arguments)
                reply = await self._pushed(round, handler, self.born(handler), way)
            elif round.token is None:
                reply = await self._first(round, handler, arguments)
            else:
                reply = await self._again(round, handler, arguments)
        except TokenRefused as refusal:
            log.warning(
                "token refused: %s",
                refusal.detail,
                extra={"reason": refusal.reason, "method": round.method},
            )
            if self.services.telemetry is not None:
                self.services.telemetry.refused(refusal.reason)
            raise
        result = deliver(reply, round.capabilities)
        if self.services.telemetry is not None:
            round.outcome = reply.kind
        return result

    # --- the two ways into a round ---------------------------------------------------------------

    async def _first(
        self, round: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        call = self.born(handler)
        if round.answers is not None:
            check_map(round.answers)
            if handler.options.unasked == "accept":
                call.take_unasked(round.answers)
        bound = self._bind(round, handler, arguments)
        if isinstance(bound, Reply):
            return bound
        run = Execution(self.services, handler, round, call, self._suspend)
        if handler.task_at_once and self._takes_task(round):
            reply, _ = await self.tasks.make(run, Journal(call.seed))
        else:
            reply = await self.play(run, bound)
        if reply.task is not None:
            await self.tasks.keep(reply.task)
        elif run.replay.fresh and reply.kind != "input_required":
            await self.redeemer.end_first(call, run.replay.fresh)
        return reply

    async def _again(
        self, round: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> Reply:
        binding = self.tokens.binding(round, handler)
        claims, call = await self.tokens.open(round.token, binding)
        round.call, round.number, round.first_trace = call.id, call.number, call.trace
        answers = call.accept(round.answers, self.services.clock())
        bound = self._bind(round, handler, arguments)
        if isinstance(bound, Reply):
            return bound

        async def work(fence: int, learned: list[Entry]) -> Reply:
            call.entries = [*call.entries, *learned] if learned else call.entries
            if claims.version != handler.options.version:
                # Not before the claim: a duplicate still gets what the other version recorded.
                try:
                    await self._restart(claims.version, call, handler)
                except (Diverged, StoreError) as error:
                    # Another server may still have the version of the call: no failed try.
                    reply = ending(error, handler, self.services, round)
                    return msgspec.structs.replace(reply, counts=False)
            frame = self.lot.take(round.token) if round.token is not None else None
            if frame is not None:
                if frame.fits(call):
                    frame.wake(round, call, fence)
                    return await self._parked(frame)
                frame.drop()
            run = Execution(self.services, handler, round, call, self._suspend)
            run.fence = fence
            run.binding = binding
            return await self.play(run, bound)

        if self.services.redeem == "off":
            if call.handle is not None:
                await load_journal(self.services, call)
            reply = await work(0, _NO_ENTRIES)
            if reply.task is not None:
                await self.tasks.keep(reply.task)
            return reply
        about = About(handler.name, round.principal.owner)
        return await self.redeemer.redeem(call, answers, claims.expires, round.channel, work, about)

    async def _pushed(
        self, round: Request, handler: Handler, call: Call, way: BackChannelDelivery
    ) -> Reply:
        """Run a handler whose asks are answered while it waits (P7)."""
        try:
            bound = self._bind(round, handler, way.arguments)
        except CapabilityMissing as error:
            return ending(error, handler, self.services, round)
        if isinstance(bound, Reply):
            return bound
        run = Execution(self.services, handler, round, call, way)
        reply = await self.play(run, bound)
        if run.replay.fresh:
            await self.redeemer.end_first(call, run.replay.fresh)
        return reply

    async def _push_on(self, run: Execution, way: BackChannelDelivery, journal: Journal) -> Reply:
        """Put what a native handler returned, and enter it again with the answers (GUIDE-01)."""
        way.enter_again()
        run.close()
        if run.effects:
            await run.effects_settled()
        pending = pending_of(run, self.services.clock(), native=True)
        raws: dict[str, Any] = {}
        if run.asked:
            batch = [(key, asked.question) for key, asked in run.asked.items()]
            raws = dict(zip(run.asked, await way.ask(run, batch), strict=True))
        else:
            await way.pause(run)
        call = run.call.next(journal, pending)
        call.accept_pushed(raws, self.services.clock())
        return await self._pushed(run.round, run.handler, call, way)

    def born(self, handler: Handler) -> Call:
        """Begin a call; its deadline starts now (S2-1)."""
        services = self.services
        span = handler.options.deadline
        life = self._life if span is None else seconds(span)
        return Call(
            number=1,
            deadline=services.clock() + life,
            journal=Journal(b""),
            entropy=services.entropy,
        )

    def _takes_task(self, round: Request) -> bool:
        return self.tasks.available and allows(round.capabilities, "tasks")

    def _bind(
        self, round: Request, handler: Handler, arguments: Mapping[str, Any] | None
    ) -> dict[str, Any] | Reply:
        """Gate declared asks and bind the arguments, before the first line runs (S4-11)."""
        if handler.needs_tasks:
            require(round.capabilities, ("tasks",), f"{handler.kind} {handler.name!r}")
        if handler.options.asks:
            require(round.capabilities, handler.options.needs, f"{handler.kind} {handler.name!r}")
        try:
            if handler.check is not None:
                wrong = handler.check(arguments or {})
                if wrong:
                    raise ArgumentsInvalid(wrong)
            return handler.signature.bind(arguments)
        except ArgumentsInvalid as error:
            return ending(error, handler, self.services)

    async def _restart(self, recorded: str, call: Call, handler: Handler) -> None:
        """Begin a running call again with another version of its handler.

        What an attempt did that failed before its end is in the ledger only.

        Raises:
            Diverged: It may not be.
        """
        journal = carried_over(recorded, call, handler)
        known = {entry.key for entry in journal.entries}
        if any(row.key not in known for row in await self.services.store.effects(call.id)):
            raise version_changed(recorded, handler)
        call.restart(journal)

    # --- legs of tasks ----------------------------------------------------------------------------

    async def leg(self, round: Request, call: Call, leg: Leg, version: str) -> Reply:
        """Run one leg of a task: the same handler, journal and effects; asks go to the row."""
        handler, arguments = self.handler(round)
        try:
            if version != handler.options.version:
                await self._restart(version, call, handler)
            bound = handler.signature.bind(arguments)
        except (Diverged, ArgumentsInvalid) as error:
            return ending(error, handler, self.services, round)
        run = Execution(self.services, handler, round, call, self._suspend)
        run.leg = leg
        return await self.play(run, bound)

    async def cancel_effect(self, round: Request, call_id: str, handler: Handler, leg: Leg) -> None:
        """Run the author's `on_cancel` as an effect of the call."""
        call = Call(
            id=call_id,
            number=1,
            deadline=self.services.clock() + self.services.limits.task.total_seconds(),
            journal=Journal(b""),
            entropy=self.services.entropy,
        )
        run = Execution(self.services, handler, round, call, self._suspend)
        run.leg = leg
        run.task = asyncio.current_task()
        if handler.on_cancel is not None:
            arguments = handler.signature.bind(round.arguments)
            spec = effects.Once(
                key="cancel:task", fn=partial(handler.on_cancel, **arguments), args=()
            )
            await effects.once(run, spec)

    # --- running ---------------------------------------------------------------------------------

    async def play(self, run: Execution, arguments: dict[str, Any]) -> Reply:
        """Run the handler and turn whatever came of it into the end of the round."""
        run.context = Context(run)
        options, way = run.handler.options, run.way
        parks = options.park is not None and run.handler.is_async and run.leg is None
        if parks and way is self._suspend:
            return await self._parked(ParkedHandler(run, arguments))
        return await self._finish(run, run.play(arguments))

    async def _finish(self, run: Execution, running: Awaitable[Any]) -> Reply:
        try:
            value = await running
            if value is ENDED:
                return await self._ended(run)
            if isinstance(value, InputRequired):
                return await self._native(run, value)
            if run.commits or run.early is not None:
                await self._commit(run)
            return self._complete(run, value)
        except Suspended:
            return await self._commit_later(run)
        except Asking:
            raise  # the frame lives on
        except Exception as error:  # noqa: BLE001 - a stranger's code: every failure has an ending
            if run.leg is not None:
                run.leg.pass_on(error)
            return ending(error, run.handler, self.services, run.round)
        finally:
            if not isinstance(run.way, ParkedHandler) or run.task is None or run.task.done():
                run.close()
            if run.effects:
                await run.effects_settled()

    async def _parked(self, frame: ParkedHandler) -> Reply:
        """Run one round of a frame; keep it when it has asked."""
        run = frame.run
        try:
            return await self._finish(run, frame.round())
        except Asking:
            pass
        try:
            if run.trouble is not None:
                raise run.trouble  # also when the handler has swallowed it
            journal = self._journal(run, state=run.call.journal.state, native=run.native)
            reply, token = await self._ask(run, journal)
        except Exception as error:  # noqa: BLE001 - whatever it is, the frame cannot go on
            await frame.end()
            return ending(error, run.handler, self.services, run.round)
        except BaseException:
            # The client went away: nobody will ever bring the token that was being made.
            await frame.end()
            raise
        left = run.call.deadline - self.services.clock()
        self.lot.park(frame, token, min(seconds(run.handler.options.park or 0.0), left))
        if run.hold:
            await asyncio.sleep(min(run.hold, _MAX_HOLD))
        return reply

    async def _commit(self, run: Execution) -> None:
        """Judge what branches did anew, and do what was noted for the end of the call."""
        run.check_end()
        if isinstance(run.way, ParkedHandler):
            # Its own task has ended with the handler: the rest is this request's.
            run.task, run.way = asyncio.current_task(), self._suspend
        await effects.commit(run)

    async def _commit_later(self, run: Execution) -> Reply:
        """An anchored call whose first effect is one for its end: that is the next round's."""
        try:
            return await self._ended(run)
        except Exception as error:  # noqa: BLE001 - as in every other round
            return ending(error, run.handler, self.services, run.round)

    def _complete(self, run: Execution, value: Any) -> Reply:
        handler, meta = run.handler, self.services.meta
        if handler.kind == "resource":
            return Reply(handler.write(value, meta, run.round.target))
        return Reply(handler.write(value, meta))

    async def _ended(self, run: Execution) -> Reply:
        """The round ended inside the handler."""
        run.close()
        if run.effects:
            await run.effects_settled()
        run.check_end()
        if run.hold and run.leg is None:
            await asyncio.sleep(min(run.hold, _MAX_HOLD))
        journal = self._journal(run, state=run.call.journal.state, native=run.native)
        if run.detached is not None:
            return (await self.tasks.make(run, journal, run.detached))[0]
        return (await self._ask(run, journal))[0]

    async def _native(self, run: Execution, value: InputRequired) -> Reply:
        """The handler returned `InputRequired`."""
        limits = self.services.limits
        for key, ask in value.asks.items():
            check_key(key)
            ready = question(ask)
            require(run.round.capabilities, ready.needs, f"asking for {key!r}")
            check_secret(run, "ask", key, secret=ask.secret)
            rejected = run.call.rejected.get(key)
            if rejected is not None:
                check_tries(key, rejected, limits.reasks)
            run.replay.forget("ask", key)
            run.remember_asked(((key, ready),))
        if len(value.asks) > limits.asks_per_round:
            raise Diverged(
                recorded=f"at most {limits.asks_per_round} asks in one round",
                now=f"{len(value.asks)} asks",
                cure="Ask for less at a time, or raise Limits(asks_per_round=...).",
            )
        state = codec_for(Any).dump(value.state, "InputRequired(state=...)")
        journal = self._journal(run, state=state, native=True)
        if isinstance(run.way, BackChannelDelivery):
            return await self._push_on(run, run.way, journal)
        return (await self._ask(run, journal))[0]

    def _journal(self, run: Execution, *, state: Any, native: bool) -> Journal:
        old = run.call.journal
        return Journal(
            seed=run.call.seed,
            entries=run.replay.entries(),
            state=state,
            asked=old.asked + bool(run.asked),
            pauses=old.pauses + (not run.asked),
            native=native,
        )

    async def _ask(self, run: Execution, journal: Journal) -> tuple[Reply, str]:
        """Seal the journal and write the asks; gives the token beside the reply."""
        limits = self.services.limits
        if journal.asked > limits.rounds or journal.pauses > limits.pauses:
            raise _too_many(journal, limits.rounds, limits.pauses)
        now = self.services.clock()
        pending = pending_of(run, now, native=journal.native)
        if run.leg is not None:
            run.leg.asked(run, journal, pending)
            return Reply(), ""
        token = await self.tokens.seal(run, journal, pending)
        bodies = [(key, a.question.body(a.reason)) for key, a in run.asked.items()]
        needs: list[Capability] = [n for a in run.asked.values() for n in a.question.needs]
        result = results.input_required(bodies, token, self.services.meta)
        return Reply(result, needs=tuple(dict.fromkeys(needs))), token


def _too_many(journal: Journal, rounds: int, pauses: int) -> AntiphonError:
    if journal.asked > rounds:
        return TooManyRounds(rounds)
    return TooManyRounds(pauses, "state-only rounds")
