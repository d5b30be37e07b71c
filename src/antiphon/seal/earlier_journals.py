"""Journals that an earlier release wrote: their values are decoded, where ours are encoded JSON.

Whoever decodes a journal (a token, a segment, the row of a task) passes it through `upgrade`.
"""

import msgspec

from antiphon.core.journal import Entry, Journal, encode_value


def upgrade(journal: Journal) -> Journal:
    """Return a journal with encoded values. An earlier release has encoded all of them, or none."""
    entries, state = journal.entries, journal.state
    if entries and type(entries[0].payload) is not bytes:
        entries = [_encoded(entry) for entry in entries]
    elif state is None or type(state) is bytes:
        return journal
    if state is not None and type(state) is not bytes:
        state = encode_value(state)
    return msgspec.structs.replace(journal, entries=entries, state=state)


def _encoded(entry: Entry) -> Entry:
    value, outcome, reused = entry.payload, "ok", False
    if type(value) is bytes:
        return entry
    if entry.kind == "effect":
        reused = bool(value.get("reused"))
        outcome = "failed" if "error" in value else "ok"
        value = value["error"] if "error" in value else value["ok"]
    return msgspec.structs.replace(
        entry, payload=encode_value(value), outcome=outcome, reused=reused
    )
