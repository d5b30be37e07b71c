"""What an audit keeps of calls: one record for each event, in a chain. Values only.

A record says who did what, when, and what came of it. It holds digests of arguments and questions;
their texts, and answers, only where the operator allows that. `verify_audit` finds a record that
was changed, taken out, put in or moved, and what was cut off at either end.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from antiphon.protocol.chain import NO_HEAD, BrokenChain, ChainHead, linked, verify_link

AuditKind: TypeAlias = Literal[
    "call", "round", "run", "effect", "decision", "settlement", "refusal", "checkpoint"
]
"""`run`: of a task; `settlement`: an operator's word about an uncertain effect; `checkpoint`: older
records were removed because their time was over."""


class AuditedAsk(msgspec.Struct, frozen=True):
    """A question that a round or a run has put."""

    key: str
    kind: str
    digest: bytes
    """Of everything that was put to the person, under the key that seals."""

    text: str = ""
    """The message; only where texts are allowed."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. Members are only ever added, each with a default.

    What has its default is not written, so that the hashes of earlier records hold.
    """

    kind: AuditKind
    at: float
    """When it ended, in seconds since the epoch by the clock of the process."""

    server: str
    process: str = ""
    """Names the process; random, made when it starts."""

    call: str = ""
    round: int = 0
    """Of the call, or of a task's runs."""

    method: str = ""
    target: str = ""
    """The tool or prompt, or the URI of the resource."""

    issuer: str = ""
    subject: str = ""
    client_id: str = ""
    transport: str = ""
    """Who called, as the transport authenticated it; who decided, for a decision."""

    actor: str = ""
    """Who acted for the subject, such as an agent."""

    client: str = ""
    """Name and version that the client claims."""

    task: str = ""
    key: str = ""
    """Of the effect or the decided question."""

    function: str = ""
    """Of the effect."""

    outcome: str = ""
    reason: str = ""
    digest: bytes = b""
    """Of the arguments, or of the question that was decided; under the key that seals."""

    seconds: float = 0.0
    """How long it took."""

    duplicate: bool = False
    """Whether it got what was recorded before, and nothing ran."""

    asked: tuple[AuditedAsk, ...] = ()
    answered: tuple[str, ...] = ()
    """The keys of the answers that it brought."""

    text: str = ""
    """The arguments as JSON; only where texts are allowed."""

    answers: str = ""
    """The answers as JSON; only where answers are allowed."""

    lost: int = 0
    """Events before this one that could not be written, where that is allowed, or refusals beyond
    the rate at which refusals are written."""

    through: int = 0
    through_hash: bytes = b""
    """Of a checkpoint: the last record that was removed."""


class AuditRecord(AuditEvent, frozen=True, kw_only=True, omit_defaults=True):
    """An event in its place in a chain."""

    sequence: int
    previous: bytes
    hash: bytes


def record_event(event: AuditEvent, head: ChainHead) -> AuditRecord:
    """Return the record of an event, after the head of a chain."""
    members = msgspec.structs.asdict(event)
    return linked(AuditRecord(**members, sequence=0, previous=b"", hash=b""), head)


def record_events(events: Sequence[AuditEvent], head: ChainHead) -> list[AuditRecord]:
    """Return the records of several events in a row."""
    records: list[AuditRecord] = []
    for event in events:
        record = record_event(event, head)
        head = ChainHead(record.sequence, record.hash)
        records.append(record)
    return records


def count_removable(times: Sequence[float], total: int, *, before: float, most: int) -> int:
    """Return how many records from the oldest on may be removed; the last one never is.

    Args:
        times: Of the oldest records, in their order.
        total: How many records the chain has.
        before: Records of before this time may go, as far as they stand in a row.
        most: Beyond this number a tenth goes too, so that not every record brings a checkpoint.
    """
    excess = 0 if total <= most else total - (most - most // 10)
    for count, at in enumerate(times):
        if count >= total - 1 or (at >= before and count >= excess):
            return count
    return len(times)


_decode = msgspec.json.Decoder(AuditRecord).decode


def write_record(record: AuditRecord) -> bytes:
    """Write a record as one line of JSON, without the line's end; hashes and digests as base64."""
    return msgspec.json.encode(record)


def read_record(line: bytes) -> AuditRecord:
    """Read a record, written exactly as `write_record` does.

    Its hash is made of what is read here. A member that is not known, or that stands there twice,
    would be seen by whoever reads the line and not by who checks the hash.

    Raises:
        ValueError: It is none, or written in another way.
    """
    record = _decode(line)
    if write_record(record) != line:
        raise ValueError("it is not written as a record is: something was added or changed")
    return record


class VerifiedAudit(msgspec.Struct, frozen=True):
    """What a check of an audit has found."""

    count: int
    head: ChainHead
    broken: BrokenChain | None = None
    compared: bool = True
    """Whether the known head could be compared: False when its record is no longer kept."""


class AuditCheck:
    """Checks the chain of an audit, one record after the other."""

    def __init__(self, known: ChainHead | None = None) -> None:
        """Begin a check.

        Args:
            known: A head of some earlier day; its record must still be there, or removed by its
                time.
        """
        self._known = known
        self._seen = known is None or known.sequence == 0
        self._start = NO_HEAD
        self._confirmed = True
        self.count: int = 0
        self.head: ChainHead = NO_HEAD
        self.broken: BrokenChain | None = None

    def take(self, record: AuditRecord) -> None:
        """Check the next record, from the oldest that is kept; after a break nothing more."""
        if self.broken is not None:
            return
        if self.count == 0 and record.sequence > 1:
            # Older ones were removed, if a later record of the chain says so.
            self.head = self._start = ChainHead(record.sequence - 1, record.previous)
            self._confirmed = False
        self.broken = verify_link(record, self.head)
        if self.broken is not None:
            return
        self.count += 1
        self.head = ChainHead(record.sequence, record.hash)
        if (record.through, record.through_hash) == (self._start.sequence, self._start.hash):
            self._confirmed = self._confirmed or record.kind == "checkpoint"
        self._seen = self._seen or self.head == self._known

    def end(self, head: ChainHead | None = None) -> VerifiedAudit:
        """Return what was found.

        Args:
            head: The end that was kept apart; what was cut off behind it is found by it.
        """
        known = self._known
        removed = known is not None and not self._seen and known.sequence < self._start.sequence
        if self.broken is None:
            if not self._confirmed:
                self.broken = BrokenChain(self._start.sequence + 1, "start")
            elif head is not None and head != self.head:
                self.broken = BrokenChain(self.head.sequence, "end")
            elif known is not None and not (self._seen or removed or known == self._start):
                self.broken = BrokenChain(known.sequence, "known")
        return VerifiedAudit(self.count, self.head, self.broken, compared=not removed)


def verify_audit(
    records: Iterable[AuditRecord],
    *,
    head: ChainHead | None = None,
    known: ChainHead | None = None,
) -> VerifiedAudit:
    """Check the chain of an audit as `AuditCheck` does."""
    check = AuditCheck(known)
    for record in records:
        check.take(record)
    return check.end(head)


class RoundAudit(Protocol):
    """Where one round, or one run of a task, is noted while it goes on.

    What is awaited is written when it returns: no call begins, no effect begins and no reply leaves
    without its record. Each raises `StoreError` where that cannot be, unless gaps are allowed.
    """

    async def begin(self, call: str, *, restarted: bool = False) -> None:
        """Write that a call begins."""
        ...

    async def begin_effect(self, key: str, function: str) -> None:
        """Write that an effect begins."""
        ...

    async def end_effect(self, key: str, function: str, outcome: str, seconds: float) -> None:
        """Write how an effect ended."""
        ...

    def note_ask(self, key: str, kind: str, digest: bytes, text: str) -> None:
        """Note a question of the round."""
        ...

    async def serve(self, serve: Callable[[Any], Coroutine[Any, Any, bytes]]) -> bytes:
        """Serve the request of the round; its record is written before its reply leaves."""
        ...

    async def end_run(self, call: str, number: int, outcome: str) -> None:
        """Write how a run of a task ended."""
        ...
