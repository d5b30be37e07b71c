"""The story of one call in the order of time, from the audit and what the store keeps besides."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from antiphon.ports import AuditStore, EffectRow, Inbox, Overview, Settlement, Store
from antiphon.protocol.audit import AuditRecord
from antiphon.protocol.inbox import DecisionRecord, Item

_MOST = 1_000


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened in a call."""

    at: float
    what: str
    """One line, without the time."""

    kind: str
    details: dict[str, Any]
    """What a program reads."""


class Found(msgspec.Struct, frozen=True):
    """What a store knows of one call."""

    effects: list[EffectRow]
    asked: list[tuple[Item, list[DecisionRecord]]]
    records: list[AuditRecord]
    settlements: list[Settlement]


async def find(store: Store, call: str) -> Found:
    """Read everything that a store keeps of a call."""
    asked = await store.items_of(call) if isinstance(store, Inbox) else ()
    records = await store.audit_of(call, limit=_MOST) if isinstance(store, AuditStore) else ()
    said: list[Settlement] = []
    if isinstance(store, Overview):
        said = [one for one in await store.settlements(limit=_MOST) if one.call == call]
    return Found(
        list(await store.effects(call)),
        [(item, list(decisions)) for item, decisions in asked],
        list(records),
        said,
    )


def story(found: Found) -> list[Happening]:
    """Return what happened, in order; what two sources know is told once."""
    audited = {record.key for record in found.records if record.kind == "effect"}
    told = [_of_record(record) for record in found.records if record.kind != "decision"]
    for effect in found.effects:
        if effect.key not in audited:
            told += _of_effect(effect)
        if effect.open:
            known = (record.at for record in found.records if record.key == effect.key)
            last = max(known, default=effect.settled or effect.started)
            told.append(_settleable(effect, max(last, effect.started)))
    decided: set[tuple[str, str, str]] = set()
    for item, decisions in found.asked:
        told.append(_of_item(item))
        for decision in decisions:
            decided.add((decision.key, decision.issuer, decision.subject))
            told.append(_of_decision(decision))
    told += [
        _of_record(record)
        for record in found.records
        if record.kind == "decision" and (record.key, record.issuer, record.subject) not in decided
    ]
    told += [_of_settlement(one) for one in found.settlements]
    return sorted(told, key=lambda one: one.at)


def _of_record(record: AuditRecord) -> Happening:
    return Happening(record.at, _words(record), record.kind, _details(record))


def _details(record: AuditRecord) -> dict[str, Any]:
    plain = msgspec.to_builtins(record, builtin_types=(bytes,))
    for name in ("previous", "hash", "server", "call", "at", "kind"):
        plain.pop(name, None)
    return _hex(plain)


def _hex(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _hex(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_hex(one) for one in cast("list[Any]", value)]
    return value


def _words(record: AuditRecord) -> str:
    match record.kind:
        case "call":
            return f"call {record.outcome}: {record.method} {record.target} by {_who(record)}"
        case "round":
            return f"round {record.round}: {_outcome(record)}"
        case "run":
            return f"run {record.round} of task {record.task}: {_outcome(record)}"
        case "effect":
            took = "" if record.outcome == "begun" else f", {record.seconds:.3f} s"
            return f"effect {record.key} ({record.function}): {record.outcome}{took}"
        case "refusal":
            return f"refused: {record.reason}, {record.method} {record.target} by {_who(record)}"
        case _:
            return f"{record.kind} {record.key}: {record.outcome} by {_who(record)}"


def _outcome(record: AuditRecord) -> str:
    words = record.outcome
    if record.reason:
        words += f" ({record.reason})"
    if record.duplicate:
        words += ", a duplicate: nothing ran"
    if record.answered:
        words += f", answered {', '.join(record.answered)}"
    if record.asked:
        words += f", asked {', '.join(f'{ask.key} ({ask.kind})' for ask in record.asked)}"
    return f"{words}, {record.seconds:.3f} s"


def _who(record: AuditRecord) -> str:
    who = " ".join(part for part in (record.issuer, record.subject, record.client_id) if part)
    who = who or f"anonymous {record.transport}".strip()
    if record.actor:
        who += f", {record.actor} acting"
    return f"{who} with {record.client}" if record.client else who


def _of_effect(effect: EffectRow) -> list[Happening]:
    details = {"key": effect.key, "function": effect.function, "state": effect.state}
    name = f"effect {effect.key} ({effect.function})"
    found = [Happening(effect.started, f"{name}: begun", "effect", details)]
    if effect.settled is not None:
        found.append(Happening(effect.settled, f"{name}: {effect.state}", "effect", details))
    return found


def _settleable(effect: EffectRow, at: float) -> Happening:
    details = {"key": effect.key, "function": effect.function, "outcome": effect.state}
    state = "failed and blocks equal calls" if effect.blocks else "uncertain"
    words = (
        f"effect {effect.key} ({effect.function}): {state}, until somebody settles it; "
        f"idempotency key {effect.idempotency_key}"
    )
    return Happening(at, words, "effect", details)


def _of_item(item: Item) -> Happening:
    who = item.role or "its caller"
    details = {"key": item.key, "role": item.role, "status": item.status, "item": item.id}
    return Happening(
        item.created, f"asked {item.key} of {who}; by now {item.status}", "asked", details
    )


def _of_decision(record: DecisionRecord) -> Happening:
    who = f"{record.name or record.subject} ({record.issuer} {record.subject})"
    details = {
        "key": record.key,
        "decision": record.decision,
        "issuer": record.issuer,
        "subject": record.subject,
        "how": record.how,
    }
    words = f"decision {record.key}  {record.decision}  by {who}, {record.how}"
    return Happening(record.at, words, "decision", details)


def _of_settlement(said: Settlement) -> Happening:
    ended = "done" if said.happened else "not done"
    who = said.name or said.subject
    details = {"key": said.key, "happened": said.happened, "subject": said.subject}
    words = f"effect {said.key}: settled as {ended} by {who}: {said.reason}"
    return Happening(said.at, words, "settlement", details)


def plain(told: Sequence[Happening]) -> list[dict[str, Any]]:
    """Return a story for a program."""
    return [{"at": one.at, "kind": one.kind, "what": one.what, **one.details} for one in told]
