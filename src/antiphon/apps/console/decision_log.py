"""The decisions of a server as a log: read from a store, written and read as JSON lines."""

from collections.abc import AsyncGenerator

import msgspec

from antiphon.ports import Inbox
from antiphon.protocol.inbox import DecisionRecord

_AT_ONCE = 1_000
_record = msgspec.json.Decoder(DecisionRecord)


async def all_decisions(store: Inbox, server: str) -> AsyncGenerator[DecisionRecord]:
    """Yield the decisions of a server, the first one first."""
    after = 0
    while records := await store.decisions(server, after=after, limit=_AT_ONCE):
        for record in records:
            yield record
        after = records[-1].sequence


def write_record(record: DecisionRecord) -> bytes:
    """Write a record as one line of JSON, without the line's end."""
    return msgspec.json.encode(record)


def read_record(line: bytes) -> DecisionRecord:
    """Read a line, written exactly as `write_record` does.

    What the hash was not made of would be seen by whoever reads the line and by no check.

    Raises:
        ValueError: It is no record, or written in another way.
    """
    record = _record.decode(line)
    if write_record(record) != line.rstrip(b"\r\n"):
        raise ValueError("it is not written as a decision is: something was added or changed")
    return record
