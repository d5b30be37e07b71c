"""What a handler reads that must be the same in every round: time, randomness, what the client can.

Each is kept in the journal, or derived from the seed of the call, when it is first read.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from antiphon.core.asks import Ask
from antiphon.core.capabilities import allows, missing
from antiphon.core.journal import PATCHED, encode_value
from antiphon.core.request import Era, Principal
from antiphon.engine.execution import Execution
from antiphon.engine.handler import needs_of
from antiphon.engine.questions import check_key
from antiphon.errors import KeyReused

_YES = encode_value(True)


class StableValues:
    """The part of a context whose values do not change between rounds."""

    __slots__ = ("_execution",)

    _execution: Execution

    @property
    def call_id(self) -> str:
        """The call's own id: the same in every round."""
        return self._execution.call.id

    @property
    def round(self) -> int:
        """The number of this round; the first is 1."""
        return self._execution.call.round

    @property
    def principal(self) -> Principal:
        """Who is calling, as the transport authenticated it."""
        return self._execution.request.principal

    # --- time and randomness ---------------------------------------------------------------------

    def now(self, *, key: str | None = None) -> datetime:
        """The time, in UTC, as it was when this line was first reached."""
        execution = self._execution
        execution.enter("now")
        key = "now:" + execution.key_for("now", key)
        entry = execution.replay.seen("memo", key)
        if entry is None:
            execution.check_new("memo", key, "ctx.now")
            entry = execution.record("memo", key, encode_value(execution.environment.clock()))
        return datetime.fromtimestamp(entry.value(), UTC)

    def uuid(self, *, key: str | None = None) -> uuid.UUID:
        """A random UUID that is the same in every re-run."""
        return uuid.UUID(bytes=self._random("uuid", key)[:16], version=4)

    def random(self, *, key: str | None = None) -> float:
        """A random number in [0, 1) that is the same in every re-run."""
        return (int.from_bytes(self._random("random", key)[:7], "big") >> 3) / 2**53

    def _random(self, what: str, key: str | None) -> bytes:
        execution = self._execution
        execution.enter(what)
        name = f"{what} {execution.key_for(what, key)}"
        if name in execution.first_reads:
            raise execution.fault(KeyReused(f"ctx.{what}", name.removeprefix(f"{what} ")))
        execution.first_reads = {**execution.first_reads, name: True}
        return blake2b(name.encode(), key=execution.call.seed, digest_size=32).digest()

    # --- what the client can, and what the code is -----------------------------------------------

    def can(self, ask: type[Ask] | Ask) -> bool:
        """Return whether this client can be asked; the same in every round."""
        needs = needs_of(ask)
        capabilities = self._execution.request.capabilities
        what = "can:" + "+".join(needs)
        return bool(self._first_read(what, lambda: not missing(capabilities, needs)))

    @property
    def can_ask(self) -> bool:
        """Whether this client can be asked for anything at all."""
        has = self._execution.request.capabilities
        kinds: tuple[Any, ...] = ("form", "url", "sampling", "roots")
        return bool(self._first_read("can_ask", lambda: any(allows(has, n) for n in kinds)))

    @property
    def era(self) -> Era:
        """`modern` or `legacy`."""
        return self._first_read("era", lambda: self._execution.request.era)

    @property
    def protocol_version(self) -> str:
        """The revision that the client speaks."""
        return self._first_read("version", lambda: self._execution.request.version)

    def _first_read(self, what: str, read: Callable[[], Any]) -> Any:
        """Keep what may differ between rounds as it was first read."""
        execution = self._execution
        execution.enter(what)
        known = execution.first_reads.get(what)
        if known is None:
            entry = execution.replay.seen("memo", f"ctx.{what}")
            if entry is None:
                entry = execution.record("memo", f"ctx.{what}", encode_value(read()))
            known = entry.value()
            execution.first_reads = {**execution.first_reads, what: known}
        return known

    def patched(self, id: str) -> bool:
        """Let code change under running calls: False in a call that came past here before."""
        execution = self._execution
        execution.enter("patched")
        key = PATCHED + check_key(id)
        known = execution.first_reads.get(key)
        if known is None:
            # The first answer holds for the whole execution: a loop must not change sides.
            marked = execution.replay.seen("patch", key) is not None
            known = marked or not _behind(execution)
            execution.first_reads = {**execution.first_reads, key: known}
            if known and not marked:
                execution.record("patch", key, _YES)
        return known


def _behind(execution: Execution) -> bool:
    """Return whether the handler has not come yet to where an earlier round had come."""
    if execution.replay.unread:
        return True
    used, asked = execution.replay.used, execution.asked
    return any(key not in asked and not used("ask", key) for key in execution.call.pending)
