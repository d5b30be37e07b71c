"""What a server is given: time, randomness, keys, store and limits, in one value.

Also what is said when the store fails: to clients one sentence, to the log one line now and then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Literal, TypeVar

from antiphon.errors import HandlerError, StoreError, StoreFull, TokenRefused, Unavailable
from antiphon.ports import AuditTrail, Clock, Entropy, Store, Telemetry
from antiphon.ports.call_end import CallEnds
from antiphon.protocol.effect_ends import UnknownTypes
from antiphon.protocol.failures import OccasionalLog
from antiphon.protocol.inbox import InboxPlace
from antiphon.protocol.limits import Limits
from antiphon.protocol.quotas import Holdings
from antiphon.protocol.request import Request
from antiphon.seal.sealer import Sealer, from_text, to_text

Redeem = Literal["once", "strict"]
T = TypeVar("T")


log: logging.Logger = logging.getLogger("antiphon")

_STOPPING = 5.0
"""Seconds that a process which stops goes on writing how effects have ended."""


class NotWrittenYet(StoreError):
    """The store works, but the end of an effect that some process knows is not in it yet."""


class StoreTrouble:
    """Counts requests that were refused because the store failed, and logs it without a flood."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take a clock for the rate of the log."""
        self._log = OccasionalLog(log, clock)
        self.failures: int = 0
        """Requests that were refused since the process began."""

        self.at: float = 0.0
        """When the store failed last, by the clock of the event loop; 0 if it never has."""

    def note(self) -> None:
        """Note that the store has failed just now."""
        self.at = asyncio.get_running_loop().time()

    def refused(self, error: StoreError) -> Unavailable:
        """Return what the client is told; the log is told the cause."""
        self.failures += 1
        if not isinstance(error, NotWrittenYet):
            self.note()
        self._log.error(str(error))
        return Unavailable(sentence(error))


def sentence(error: StoreError) -> str:
    """Say to a client what is wrong with the store, and whether trying again can help."""
    if isinstance(error, StoreFull):
        return "the server's store is full; try again later"
    if error.retryable:
        return "the server's store cannot be reached; try again"
    return "the server's store has failed and must be repaired by its operator"


class LifespanState:
    """What `Server(lifespan=...)` has yielded, while the server runs."""

    __slots__ = ("_yielded",)

    def __init__(self) -> None:
        """Nothing has been yielded yet."""
        self._yielded: tuple[object, ...] = ()

    def set(self, value: object) -> None:
        """Keep what the lifespan yielded."""
        self._yielded = (value,)

    def clear(self) -> None:
        """Forget it: the lifespan is over."""
        self._yielded = ()

    def get(self, type_: type[T]) -> T:
        """Return what was yielded.

        Raises:
            HandlerError: There is none, or it is of another type.
        """
        if not self._yielded:
            raise HandlerError(
                "ctx.lifespan: nothing was yielded. Give Server(lifespan=...) a function that "
                "yields it, and start the server by a transport or by server.running()."
            )
        (value,) = self._yielded
        if not isinstance(value, type_):
            raise HandlerError(
                f"ctx.lifespan({type_.__name__}): the lifespan yields a {type(value).__name__}"
            )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The outside of a server."""

    sealer: Sealer
    store: Store
    limits: Limits
    holdings: Holdings
    """What this process keeps for callers between their requests."""

    clock: Clock
    entropy: Entropy
    meta: bytes
    """The closing `_meta` of every result."""

    redeem: Redeem = "once"
    spill: bool = False
    """Whether journals may go to the store: only when the author configured one."""

    telemetry: Telemetry | None = None
    audit: AuditTrail | None = None
    """Who writes records of calls; None when the server has no audit."""

    unknown_after: UnknownTypes = ()
    """The author's exceptions after which an effect may have happened."""

    expose_errors: bool = False
    """Whether the text of unexpected exceptions reaches the client."""

    trouble: StoreTrouble = field(default_factory=lambda: StoreTrouble(time.monotonic))
    """What is said when the store fails."""

    lifespan: LifespanState = field(default_factory=LifespanState)
    """What the server's lifespan has yielded."""

    inbox: InboxPlace | None = None
    """Where people decide who are not the client; None when the server has no console."""

    background: "set[asyncio.Task[Any]]" = field(default_factory=set["asyncio.Task[Any]"])
    """What goes on after a reply; a task that nobody refers to may be collected."""

    unsettled: "dict[str, asyncio.Task[None]]" = field(
        default_factory=dict[str, "asyncio.Task[None]"]
    )
    """Who writes the ends of effects that the store does not know yet, by their id."""

    ends: CallEnds = field(default_factory=CallEnds)
    """Who is told when a call has ended."""

    @property
    def was_store_away(self) -> bool:
        """Whether the store failed here within the time of a lease.

        Then a lease that has ended says nothing of its holder: it may be about to write what it
        could not write meanwhile.
        """
        if not self.store.shared:
            return False
        now = asyncio.get_running_loop().time()
        lease = self.limits.lease.total_seconds()
        failed = (self.trouble.at, getattr(self.store, "failed_at", 0.0))
        return any(at and 0.0 <= now - at < lease for at in failed)

    async def finish_settling(self) -> None:
        """Give effects whose end is not written yet a moment before the process stops."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self.unsettled.values() if task.get_loop() is loop]
        if not mine:
            return
        _, late = await asyncio.wait(mine, timeout=_STOPPING)
        for task in late:
            log.error(
                "this process stops before the store has recorded what became of %s: it may be "
                "uncertain",
                task.get_name(),
            )
            task.cancel()

    @property
    def keeps_tasks(self) -> bool:
        """Whether the store keeps tasks."""
        return hasattr(self.store, "create_task")

    @property
    def incarnation(self) -> str:
        """Of the store, which begins another when it may have forgotten something."""
        return getattr(self.store, "incarnation", "")

    def first_trace(self, request: Request) -> str:
        """Return the trace context that later parts of a call link to, in its first round."""
        here = "" if self.telemetry is None else self.telemetry.here()
        return here or request.trace

    async def protect(self, data: bytes, place: str) -> bytes:
        """Seal what a durable store keeps; memory needs no seal."""
        if not self.store.durable:
            return data
        sealed = self.sealer.protect(data, place)
        return sealed if isinstance(sealed, bytes) else await sealed

    async def reveal(self, data: bytes, place: str) -> bytes:
        """Open what `protect` sealed."""
        if not self.store.durable:
            return data
        plain = self.sealer.reveal(data, place)
        return plain if isinstance(plain, bytes) else await plain

    async def hand_out(self, data: bytes, place: str) -> str:
        """Seal what somebody else keeps for the server, such as a browser; always sealed."""
        sealed = self.sealer.protect(data, place)
        return to_text(sealed if isinstance(sealed, bytes) else await sealed)

    async def take_back(self, text: str, place: str) -> bytes:
        """Open what `hand_out` sealed for this place.

        Raises:
            TokenRefused: It is something else.
        """
        try:
            sealed = from_text(text)
        except ValueError:
            raise TokenRefused("malformed") from None
        plain = self.sealer.reveal(sealed, place)
        return plain if isinstance(plain, bytes) else await plain

    async def authenticate(self, digest: bytes, place: str) -> bytes:
        """Return what shows that whoever has the keys has seen this digest at this place."""
        return await self.protect(digest, place)

    async def is_authentic(self, mac: bytes, digest: bytes, place: str) -> bool:
        """Tell whether `authenticate` was given this digest for this place."""
        try:
            return compare_digest(await self.reveal(mac, place), digest)
        except TokenRefused:
            return False

    async def protect_text(self, text: str, place: str) -> str:
        """Seal a text that a durable store keeps as text: it may say what nobody should read."""
        if not self.store.durable:
            return text
        return to_text(await self.protect(text.encode(), place))

    async def reveal_text(self, text: str, place: str) -> str:
        """Open what `protect_text` sealed."""
        if not self.store.durable:
            return text
        try:
            sealed = from_text(text)
        except ValueError:
            raise TokenRefused("malformed") from None
        return (await self.reveal(sealed, place)).decode()


def effect_place(call: str, key: str) -> str:
    """Name the place for which the result of an effect is sealed: an operator can name it too."""
    return f"effect {call}/{key}"


def arguments_place(call: str, key: str) -> str:
    """Name the place for which the arguments of an effect are sealed, for its operators."""
    return f"arguments of effect {call}/{key}"
