"""Redeeming a token once: claim, run, record; duplicates wait or get what was recorded.

Owns the rounds that run in this process and their leases. What a claimed round does is given as a
coroutine.

A store that is elsewhere answers after a while, and a client may go away meanwhile. The operation
goes on by itself then, and a claim that nobody needs any more is given back: otherwise the round
would stay claimed until its lease ends.

A request whose lease was lost while it ran the round cannot record its reply. It looks up what has
become of the round: it returns the reply of whoever claimed it, or takes a free round over again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import msgspec

from antiphon.engine.call import Call
from antiphon.engine.environment import Environment
from antiphon.engine.handler import Handler
from antiphon.engine.reply import Reply, encode_reply, from_bytes, to_bytes
from antiphon.engine.restarts import begun_before
from antiphon.engine.suspension import Abandoned
from antiphon.engine.tokens import load_journal
from antiphon.errors import CallerError, StoreError, TokenRefused, Unavailable
from antiphon.ports import ROUNDS_PER_START, About, Claim, Claimed, Recorded, Running, Spent
from antiphon.protocol.capabilities import require
from antiphon.protocol.journal import Entry
from antiphon.protocol.request import Principal, Request
from antiphon.protocol.retry import back_off
from antiphon.protocol.text import span
from antiphon.seal.claims import Binding, decode_journal

_T = TypeVar("_T")

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 2.0
"""Seconds between tries of giving back a claim to a store that is out of reach."""

_RUNS = 3
"""How often one request runs its round: again only when its lease was lost meanwhile."""

Run = Callable[["RunningRound", list[Entry]], Awaitable[Reply]]
"""Run a claimed round, after what an earlier attempt had learned."""


class RunningRound(msgspec.Struct, eq=False):
    """A round that a request of this process wants to run, or is running."""

    key: tuple[str, int]
    """Id of the call and number of the round (`Call.number`)."""

    request: Request
    """The one that brought the token."""

    handler: Handler
    call: Call
    binding: Binding
    """What the request says of itself."""

    version: str
    """Of the handler that asked."""

    bound: dict[str, Any]
    """The arguments of the handler."""

    answers: bytes
    """The digest of the answers."""

    expires: float
    """When the token expires."""

    fence: int = 0
    """The fencing token of the claim; 0 before it is claimed."""

    runs: int = 0
    waiters: int = 0
    """Duplicates of the request in this process that wait for the same end."""

    done: "asyncio.Future[None] | None" = None

    def wanted(self) -> bool:
        """Return whether a duplicate waits, so that the round goes on without its own client."""
        return self.waiters > 0

    def leave(self) -> None:
        """Count a waiter out; the last one ends a round whose own client is gone (CANCEL-01)."""
        self.waiters -= 1
        running = self.done is not None and not self.done.done()
        if running and not self.waiters:
            self.request.channel.abort()

    def end(self) -> None:
        """Let those who wait look at what became of the round."""
        if self.done is not None:
            # It refers to the round, and the channel would keep it: a cycle.
            self.request.channel.on_disconnect(None)
            self.done.set_result(None)
            self.done = None


class LoopState:
    """What redeeming keeps for one event loop: futures, timers and tasks belong to one."""

    __slots__ = ("background", "renewal", "renewing", "rounds")

    def __init__(self) -> None:
        self.rounds: dict[tuple[str, int], RunningRound] = {}
        self.background: set[asyncio.Task[Any]] = set()
        """What the store does for rounds whose client has gone."""

        self.renewal: asyncio.TimerHandle | None = None
        self.renewing: asyncio.Task[None] | None = None


class Redemptions:
    """Claims rounds before they run and records what came of them, so that each happens once."""

    def __init__(self, environment: Environment, run: Run) -> None:
        self._environment = environment
        self._run_round = run
        self._lease = environment.limits.lease.total_seconds()
        self._kept = max(environment.sealer.ttl, self._lease)
        """Seconds that an outcome is kept at least: a round may end later than its token, and a
        client whose reply was lost must have time to send it again."""

        self._remote = environment.store.durable or environment.store.shared
        """Whether the store is elsewhere. Memory answers at once, and nothing can come between."""

        self._states: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopState] = WeakKeyDictionary()
        self._last_state = LoopState()
        self._last_loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None

    def _state(self) -> LoopState:
        loop = asyncio.get_running_loop()
        if self._last_loop() is loop:  # a look into a weak mapping costs more
            return self._last_state
        state = self._states.get(loop)
        if state is None:
            state = self._states[loop] = LoopState()
        self._last_loop, self._last_state = ref(loop), state
        return state

    @property
    def running(self) -> int:
        """How many redeemed rounds are running now."""
        return sum(len(state.rounds) for state in list(self._states.values()))

    async def close(self) -> None:
        """Let the store end what it does for rounds that are over; one out of reach is left."""
        background = self._state().background
        if background:
            _, late = await asyncio.wait(background, timeout=_MOST_PAUSE)
            for task in late:
                task.cancel()

    async def redeem(self, own: RunningRound) -> Reply:
        """Run a round once; every duplicate gets the same end.

        Raises:
            TokenRefused: Spent, expired, or redeemed with other answers.
            Unavailable: The store cannot be reached, or too many duplicates wait.
        """
        state = self._state()
        while own.runs < _RUNS:
            running = state.rounds.get(own.key)
            if running is not None:
                await self._wait(running, own.answers)
                continue
            state.rounds[own.key] = own
            try:
                reply = await self._try(state, own)
            finally:
                del state.rounds[own.key]
                if own.done is not None:
                    own.end()
            if reply is not None:
                return reply
        raise Unavailable("other processes take this round over again and again; try again later")

    async def start_over(
        self,
        request: Request,
        handler: Handler,
        call: Call,
        binding: Binding,
        bound: dict[str, Any],
    ) -> Reply:
        """Run the first round of a call as if it had a token: one that was started over, or named.

        Raises:
            CallerError: It was run before, and not for this request.
        """
        request.call = call.id
        if request.audit is not None:
            await request.audit.begin(call.id, restarted=True)
        key, version = (call.id, call.number), handler.options.version
        digest, until = binding.arguments, call.deadline
        own = RunningRound(key, request, handler, call, binding, version, bound, digest, until)
        try:
            return await self.redeem(own)
        except TokenRefused as refusal:
            raise begun_before(request) from refusal  # there was no token to refuse

    async def _try(self, state: LoopState, own: RunningRound) -> Reply | None:
        """Claim and run the round; None when another request had it: look it up again.

        A request that has run the round and lost its lease claims with `ttl=0`: it may take over a
        row that is still there, but does not begin a round that has been removed meanwhile.
        """
        environment, (call, number) = self._environment, own.key
        claiming = environment.store.claim(
            call,
            number,
            own.answers,
            lease=self._lease,
            ttl=0.0 if own.runs else own.expires - environment.clock(),
            tries=environment.limits.releases,
            about=_about(own.handler.name, own.request.principal),
        )
        try:
            if self._remote:
                claiming = self._claim_elsewhere(own.key, claiming)
            claim = await claiming
        except StoreError as error:
            raise environment.trouble.refused(error) from error
        if type(claim) is not Claimed:
            return await self._other(own, cast("Recorded | Running | Spent", claim))
        own.fence = claim.fence
        own.runs += 1
        if state.renewal is None:
            self._keep_renewing(state)
        return await self._run(own, claim.prefix)

    async def _claim_elsewhere(
        self, key: tuple[str, int], claiming: Coroutine[Any, Any, Claim]
    ) -> Claim:
        task = self._in_background(claiming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._in_background(self._undo(key, task))
            raise

    async def _undo(self, key: tuple[str, int], claiming: "asyncio.Task[Claim]") -> None:
        """Give back what was claimed for a client that has gone."""
        with contextlib.suppress(StoreError):
            claim = await claiming
            if isinstance(claim, Claimed):
                await self._release(key, claim.fence, counts=False)

    async def _other(
        self, running: RunningRound, claim: Recorded | Running | Spent
    ) -> Reply | None:
        """Another request has the round: return its reply, wait for it, or refuse."""
        environment = self._environment
        if isinstance(claim, Recorded):
            reply = from_bytes(await environment.reveal(claim.outcome, _place(running.key)))
            if reply.needs:  # another client may have been asked
                require(running.request.capabilities, reply.needs, "this round", begun=True)
            running.request.repeated = True
            return reply
        if isinstance(claim, Spent):
            raise self._refusal(running, claim.reason)
        try:
            await environment.store.settled(*running.key, timeout=self._lease)
        except StoreError as error:
            raise environment.trouble.refused(error) from error
        return None

    def _refusal(self, running: RunningRound, reason: str) -> TokenRefused:
        if reason != "expired":
            return TokenRefused(reason, _REASONS.get(reason, ""))
        late = self._environment.clock() - running.expires
        if late < 0:
            return TokenRefused(reason, "the round was lost to another process and is gone")
        return TokenRefused(reason, f"expired {span(late)} ago (is a clock wrong?)")

    async def _run(self, running: RunningRound, prefix: bytes | None) -> Reply | None:
        call = running.call
        try:
            if call.handle is not None:
                await load_journal(self._environment, call)
            learned: list[Entry] = []
            if prefix is not None:
                learned = await self._learned(running.key, prefix)
                # Another try must see them again, whatever this one adds.
                call.timed = [*call.timed, *learned]
            reply = await self._run_round(running, learned)
        except Abandoned:
            return None  # the new holder's outcome is the truth
        except BaseException as error:
            # Whatever this was, the round has not ended: it may be tried again.
            await self._give_back(running, counts=_is_failure(error))
            raise
        if not reply.keep:
            await self._give_back(running, counts=reply.counts)
            return reply
        recorded = await self._record(running, reply)
        if recorded is not None and call.shares:
            await call.tell(self._environment.store)
        return recorded

    async def _record(self, running: RunningRound, reply: Reply) -> Reply | None:
        """Record the outcome; None when the round is no longer ours."""
        if self._remote or reply.task is not None:
            recording = self._shielded(self._record_elsewhere(running, reply))
        else:
            call, number = running.key
            recording = self._environment.store.record(
                call,
                number,
                running.fence,
                encode_reply(reply),
                ttl=self._kept_for(running),
                final=reply.kind in _FINAL,
            )
        try:
            recorded = await recording
        except StoreError as error:
            if not self._remote:
                await self._release(running.key, running.fence, counts=False)
            raise self._environment.trouble.refused(error) from error
        return reply if recorded else None

    async def _record_elsewhere(self, running: RunningRound, reply: Reply) -> bool:
        environment = self._environment
        call, number = running.key
        made: Any = {"task": reply.task} if reply.task is not None else {}
        try:
            outcome = await environment.protect(to_bytes(reply), _place(running.key))
            return await environment.store.record(
                call,
                number,
                running.fence,
                outcome,
                ttl=self._kept_for(running),
                final=reply.kind in _FINAL,
                **made,
            )
        except BaseException:
            # It may have been recorded after all; then there is nothing to give back.
            await self._release(running.key, running.fence, counts=False)
            raise

    def _kept_for(self, running: RunningRound) -> float:
        """Return how long an outcome is kept: for the token's life, and for those who lost it."""
        return max(running.expires - self._environment.clock(), self._kept)

    async def _learned(self, key: tuple[str, int], prefix: bytes) -> list[Entry]:
        data = await self._environment.reveal(prefix, f"prefix {key[0]} {key[1]}")
        return decode_journal(data).entries

    async def _wait(self, running: RunningRound, answers: bytes) -> None:
        if running.answers != answers:
            raise TokenRefused("other-answers")
        if running.waiters >= self._environment.limits.waiters:
            raise Unavailable("too many requests wait for this round; try again later")
        if running.done is None:
            running.request.channel.on_disconnect(running.wanted)
            running.done = asyncio.get_running_loop().create_future()
        running.waiters += 1
        try:
            await asyncio.shield(running.done)
        finally:
            running.leave()

    async def end_first(self, call: Call, handler: Handler, reply: Reply) -> None:
        """Free what a call leaves behind that ended in its first round: nobody can name it again.

        The end of a later round is recorded, which does the same. A call is left alone after a
        round that failed by chance: what it did counts for an equal call, or for the same one
        started over. So is one that was taken over meanwhile. What the store cannot free now
        expires by itself.
        """
        round = None
        if not reply.keep and (handler.options.restarts is not None or call.began_effect):
            return  # its caller does not know what it did: an equal call gets that
        if handler.options.restarts is not None:
            round = call.generation * ROUNDS_PER_START + 1
        ending = self._environment.store.end_call(call.id, ttl=0.0, round=round)
        with contextlib.suppress(StoreError):
            await (self._shielded(ending) if self._remote else ending)
        await call.tell(self._environment.store)

    # --- giving back ---------------------------------------------------------------------------

    async def _give_back(self, running: RunningRound, *, counts: bool) -> None:
        """Give the round back before the client hears of it, so that it may come again at once."""
        releasing = self._release(running.key, running.fence, counts=counts)
        await (self._shielded(releasing) if self._remote else releasing)

    async def _release(self, key: tuple[str, int], fence: int, *, counts: bool) -> None:
        """Free the claim or spend it; a store out of reach is tried again in the background."""
        spend = self._environment.redeem == "strict"
        try:
            await self._environment.store.release(*key, fence, spend=spend, counts=counts)
        except StoreError:
            self._in_background(self._release_later(key, fence, spend=spend, counts=counts))

    async def _release_later(
        self, key: tuple[str, int], fence: int, *, spend: bool, counts: bool
    ) -> None:
        """Try for as long as the lease could still be good; after it, others may claim anyway."""
        for pause in back_off(_FIRST_PAUSE, _MOST_PAUSE, within=self._lease):
            await asyncio.sleep(pause)
            with contextlib.suppress(StoreError):
                return await self._environment.store.release(
                    *key, fence, spend=spend, counts=counts
                )
        return None

    # --- in the background ---------------------------------------------------------------------

    async def _shielded(self, operation: Coroutine[Any, Any, _T]) -> _T:
        """Await an operation that goes on to its end also when nobody waits for it any more."""
        return await asyncio.shield(self._in_background(operation))

    def _in_background(self, operation: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Start an operation that nobody need wait for."""
        task = asyncio.ensure_future(operation)
        background = self._state().background
        background.add(task)

        def ended(task: "asyncio.Task[Any]") -> None:
            background.discard(task)
            if not task.cancelled():
                task.exception()  # seen: whoever waited was told, and nobody else needs to be

        task.add_done_callback(ended)
        return task

    # --- leases --------------------------------------------------------------------------------

    def _keep_renewing(self, state: LoopState) -> None:
        """Start the one timer that renews all rounds of this loop at a third of the lease."""
        loop = asyncio.get_running_loop()
        state.renewal = loop.call_later(self._lease / 3, self._renew, state)

    def _renew(self, state: LoopState) -> None:
        state.renewal = None
        if state.rounds:
            if state.renewing is None or state.renewing.done():
                state.renewing = asyncio.ensure_future(self._renew_all(state))
            self._keep_renewing(state)

    async def _renew_all(self, state: LoopState) -> None:
        """Renew all at once: with a store that is slow, the last must not wait for the first."""
        rounds = [running for running in state.rounds.values() if running.fence]
        await asyncio.gather(*map(self._renew_one, rounds))

    async def _renew_one(self, running: RunningRound) -> None:
        with contextlib.suppress(StoreError):
            # A fence that is lost shows when the round is recorded.
            await self._environment.store.renew(*running.key, running.fence, lease=self._lease)


@lru_cache(maxsize=1_024)
def _about(tool: str, caller: Principal) -> About:
    return About(tool, caller.owner)


_FINAL = frozenset({"complete", "error"})
"""Ends of a round that are ends of its call."""

_REASONS = {
    "other-answers": "it was redeemed before with other answers",
    "evicted": "its outcome is no longer kept",
    "superseded": "its call was started over by the same caller",
    "tries": "its round has failed too often",
    "released": "it was spent by a try that failed (redeem='strict')",
}


def _is_failure(error: BaseException) -> bool:
    """Return whether a run has failed by itself: not by its client, the store or a shutdown."""
    return isinstance(error, Exception) and not isinstance(error, CallerError | StoreError)


def _place(key: tuple[str, int]) -> str:
    return f"outcome {key[0]} {key[1]}"
