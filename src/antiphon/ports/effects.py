"""Effects: each happens once, under a claim with a lease and a fencing token."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from antiphon.ports.ledger import NOTHING_KNOWN, About
from antiphon.protocol.digest import idempotency_key

ROUNDS_PER_START = 2**18
"""Rounds of a call that was started over are numbered from the next multiple of this."""


STANDS = 600.0
"""Seconds for which an effect whose end was in doubt stands for equal calls after it is known: the
client may have given up meanwhile, and calls again."""


class Restartable(msgspec.Struct, frozen=True, gc=False):
    """What lets a caller who starts a call over find it again."""

    name: str
    """The same for every call of one caller with one tool and the same arguments."""

    seed: bytes
    """The seed of the call and its memos so far, sealed; a store does not look inside."""

    generation: int = 0
    """How often the call was started over."""


class TakenOver(msgspec.Struct, frozen=True):
    """An unfinished call that was taken over."""

    call: str
    seed: bytes
    generation: int
    """The number of its next round is above `generation * ROUNDS_PER_START`."""


class EqualCalls(msgspec.Struct, frozen=True):
    """What calls have in common that one caller makes with one tool and the same arguments."""

    names: tuple[str, ...]
    """The name of the effect in all of them: by the key in use, then by those before it."""

    answers: bytes
    """A digest of what people have answered before the effect."""

    inputs: bytes
    """A digest of the function and of its arguments."""


class Effect(msgspec.Struct, frozen=True):
    """The name of one effect and what it must agree with."""

    id: str
    """Unique for its scope: call and key, or a digest of what several calls share."""

    call: str
    key: str
    function: str
    arguments: bytes
    restart: Restartable | None = None
    """Set when the call can be started over."""

    equal: EqualCalls | None = None
    """Set when the caller is known: what an equal call of theirs must not do again."""

    shown: bytes = b""
    """What its function is called with, for operators; sealed. It is kept while the end may be in
    doubt: a store forgets it when nobody can have to settle the effect any more."""


class Started(msgspec.Struct, frozen=True):
    """Run it now; settle under this fence."""

    fence: int


class Finished(msgspec.Struct, frozen=True):
    """It has run; this is its result."""

    result: bytes
    call: str = ""
    """The call in which it ran."""


class FailedEffect(msgspec.Struct, frozen=True):
    """It has run and raised."""

    error: str


class Uncertain(msgspec.Struct, frozen=True):
    """Its holder's lease ended without a result."""

    call: str = ""
    """The call in which it was begun; with this and its key an operator names it."""


class Busy(msgspec.Struct, frozen=True):
    """Another holder runs it and its lease is good."""


class Mismatch(msgspec.Struct, frozen=True):
    """The effect was claimed for another function or other arguments."""

    function: str


class LeaseLost(msgspec.Struct, frozen=True):
    """The round that wants the effect has lost its own claim."""


class InEqualCall(msgspec.Struct, frozen=True):
    """An equal call of the same caller has begun the effect, and its end is not told yet."""

    call: str
    id: str
    """Of the effect in that call."""

    state: str
    """`running`, `uncertain`, `done` or `failed`."""

    arguments: bytes
    inputs: bytes
    result: bytes | None = None
    error: str | None = None


Begin: TypeAlias = (
    Started | Finished | FailedEffect | Uncertain | Busy | Mismatch | LeaseLost | InEqualCall
)


class LeasedRound(msgspec.Struct, frozen=True):
    """The claimed round an effect belongs to, and the journal prefix to commit with it."""

    call: str
    round: int
    fence: int
    prefix: bytes | None = None
    """Sealed; replaces what an earlier effect of the round committed. None leaves that."""


class LeasedTaskRun(msgspec.Struct, frozen=True):
    """The run of a task that an effect belongs to, and what it has learned before it."""

    task: str
    epoch: int
    state: bytes
    """Sealed; becomes the task's state with the claim."""


class EffectRow(msgspec.Struct, frozen=True):
    """An effect as an operator sees it."""

    call: str
    key: str
    function: str
    state: str
    """`started`, `uncertain`, `done` or `failed`."""

    started: float
    settled: float | None
    tool: str = ""
    caller: str = ""
    blocks: bool = False
    """Whether it has failed and may have happened all the same, so that equal calls of the same
    caller do not do it: an operator settles it like one of unknown end."""

    shown: bytes = b""
    """What its function was called with, sealed; nothing where nobody has to settle it."""

    @property
    def open(self) -> bool:
        """Whether an operator can settle it."""
        return self.blocks or self.state == "uncertain"

    @property
    def idempotency_key(self) -> str:
        """The key that its function is given if it takes one."""
        return idempotency_key(self.call, self.key)


class CallRow(msgspec.Struct, frozen=True):
    """A call as an operator sees it."""

    call: str
    mark: int
    state: str
    """`running`, `recorded`, `released`, `spent` or `superseded`: of the round at the mark.
    `unredeemed` when it has effects and no token of it was redeemed; its mark is 1 then."""

    expires: float
    started: float = 0.0
    """When the call was first seen by the store; 0 when it is not known any more."""

    tool: str = ""
    caller: str = ""
    uncertain: int = 0
    """How many of its effects have an unknown end."""

    blocking: int = 0
    """How many have failed and keep equal calls of the same caller from doing them."""


class Effects(Protocol):
    """Effects that happen once."""

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        ttl: float,
        under: LeasedRound | LeasedTaskRun | None,
        retry: bool,
        window: float | None = None,
        nonce: bytes = b"",
        about: About = NOTHING_KNOWN,
    ) -> Begin:
        """Claim an effect before it runs.

        With `under`, the fence of the round or the epoch of the task run is checked, and what it
        has learned is kept, in the same step; only a store that keeps tasks is given a task run.
        `retry` takes over an effect whose holder's lease ended, instead of `Uncertain`. With
        `window`, a settled effect counts for that many seconds from its settling and is then begun
        anew.

        `nonce` names this attempt to claim. The same effect with the same nonce, while it is
        started, is the same claim: it gives the same `Started` again and renews its lease. So a
        caller who has not heard the reply asks again and knows.

        With `effect.equal`, it is begun only if no equal call has it: in no other call it runs, is
        uncertain or has failed without being free; nor has it been done, after the same answers or
        with the same inputs, by a call that has not told its caller, or that has another effect of
        unknown end. `InEqualCall`
        says which call has it. It says `running` also of what was done within the lease of its
        claim: that call may be about to tell.

        An effect that an earlier generation of a restarted call has settled with another function
        or other arguments is begun anew; one that it has not settled is `Busy` or `Uncertain`.

        Raises:
            StoreFull: A bounded store has no space for another effect.
        """
        ...

    async def take_over(
        self, name: str, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> TakenOver | None:
        """Take over the unfinished call of this name that has effects; the latest of several.

        In the same step every token of the call is spent, its running rounds lose their claim, its
        segments are freed, and its effects live for `ttl` seconds at least. A call that has ended
        or has become a task is never taken over. None if there is no such call.
        """
        ...

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        ...

    async def settle(
        self,
        effect: str,
        fence: int,
        *,
        result: bytes | None,
        error: str | None,
        told: bool = False,
        lost: bool = False,
        doubted: bool = False,
    ) -> bool:
        """Record the result or the failure; False if the fence is lost.

        With `told`, equal calls may do theirs from now on: a failure is over, and the caller will
        learn of a result. Otherwise that is said by `tell`, or by the end of the call. With `lost`,
        nobody waits for this call any more: an equal call need not wait for it either. With
        `doubted`, the result stands for equal calls for `STANDS` seconds, whatever they are told.
        """
        ...

    async def tell(self, call: str, *, lost: bool = False) -> None:
        """Note that the caller of a call knows what its effects did: equal calls may do theirs.

        A call with an effect of unknown end, or of a failure that is not free, stays as it is. With
        `lost` the caller will never know: an equal call need not wait for this one.
        """
        ...

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        ...

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        ...

    async def calls(self, *, limit: int = 100, uncertain: bool = False) -> Sequence[CallRow]:
        """List calls, the latest to expire first.

        With `uncertain` only those with an effect that an operator can settle, of unknown end or
        failed, the longest waiting first.
        """
        ...

    async def count_calls(self, *, uncertain: bool = False) -> int:
        """Count what `calls` would list without a limit."""
        ...

    async def settle_uncertain(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word: a result, or None for not done.

        So is a failure that is not free settled: it may have happened all the same. A result
        stands for equal calls for `STANDS` seconds at least.

        In the same step the unfinished rounds of the call can be tried again as if none had
        failed, for as long as the effect lives, and a task of the call becomes ready. False if
        there is no such uncertain effect.
        """
        ...

    async def unsettle(self, call: str, key: str, *, result: bytes) -> bool:
        """Take back a result that an operator gave and that is of no use: uncertain again.

        False if the effect has no such result, or has it from whoever ran it.
        """
        ...
