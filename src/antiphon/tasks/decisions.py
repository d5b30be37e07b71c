"""What people have said in the inbox, as the next run of a task takes it."""

import logging
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from antiphon.engine.approvals import approval_of, decided_payload
from antiphon.engine.environment import Environment
from antiphon.errors import TokenRefused
from antiphon.protocol.asks import Approval
from antiphon.protocol.inbox import (
    DecisionRecord,
    Item,
    NewNotice,
    decision_place,
    decode_face,
    outcome_by,
    recorded_digest,
)
from antiphon.protocol.journal import Entry
from antiphon.tasks.service import TaskService
from antiphon.tasks.state import TaskState

_log = logging.getLogger("antiphon")


async def decided(service: TaskService, call: str) -> dict[tuple[str, bytes], Approval]:
    """Return what people have decided about the items of a call, by key and digest."""
    found: dict[tuple[str, bytes], Approval] = {}
    for item, records in await service.inbox.items_of(call):
        outcome, said = await _counted(service.environment, item, records)
        note = b""
        if said and said[-1].note:
            note = await service.environment.reveal(said[-1].note, f"note {item.id}")
        if item.status == "expired":
            await _notify_expired(service, item.id)
        approval = approval_of(item, outcome, said, note.decode())
        if approval is not None:
            found[item.key, item.digest] = approval
    return found


async def _counted(
    environment: Environment, item: Item, records: Sequence[DecisionRecord]
) -> tuple[Literal["approved", "declined"] | None, list[DecisionRecord]]:
    """Return what was decided by the records that verify, and those records.

    Terms and records are authenticated with the keys of the server. What only stands in the
    database decides nothing.
    """
    try:
        terms = decode_face(await environment.reveal(item.face, f"item {item.id}")).terms
    except (TokenRefused, msgspec.DecodeError):
        terms = None
    place = decision_place(item.id)
    said = [
        one
        for one in records
        if (one.server, one.item, one.call, one.key)
        == (environment.sealer.audience, item.id, item.call, item.key)
        and await environment.is_authentic(one.mac, recorded_digest(one), place)
    ]
    outcome = None if terms is None or terms.digest != item.digest else outcome_by(terms, said)
    if len(said) < len(records) or (outcome is None and item.status in ("approved", "declined")):
        _log.error(
            "inbox item %s of %s is %s in the store, and its decisions do not show that: what does "
            "not verify does not count. Was the database changed, or is a key missing?",
            item.id,
            item.tool,
            item.status,
        )
    return outcome, said


async def _notify_expired(service: TaskService, item: str) -> None:
    """Send word of a question that nobody answered; the same one if it is sent again."""
    place = service.environment.inbox
    targets = () if place is None else place.targets
    notices = [NewNotice(f"{item}-expired-{name}", "expired", name) for name in targets]
    if notices:
        await service.inbox.add_notices(item, notices)


async def take_decisions(service: TaskService, state: TaskState) -> None:
    """Put what people have said since the last run into the state of their task."""
    if state.held:
        known = await decided(service, state.call)
        for key, digest in state.held.items():
            if (key, digest) in known:
                approval = known[key, digest]
                if service.environment.telemetry is not None:
                    service.environment.telemetry.decided(approval.outcome)
                payload = decided_payload(approval)
                state.journal.entries.append(Entry("ask", key, payload, digest))
        state.held = {}
    asks = {ask.wire_key: ask for ask in state.asks}
    if service.environment.inbox is None or not asks:
        return
    for item, records in await service.inbox.items_of(state.call):
        ask = asks.get(item.key)
        if ask is None or ask.pending.digest != item.digest or item.key in state.answers:
            continue
        answer = await inbox_answer(service.environment, item, records)
        if answer is not None:
            state.answers[item.key] = answer


async def inbox_answer(
    environment: Environment, item: Item, records: Sequence[DecisionRecord]
) -> dict[str, Any] | None:
    """Return what was said about an item as a client would have answered; None while it is open."""
    if item.status == "answered":
        # Sealed for this item: only a console with the keys has written it.
        content = await environment.reveal(item.answer, f"answer {item.id}")
        return {"action": "accept", "content": msgspec.json.decode(content)}
    if item.status not in ("open", "approved", "declined"):
        # One that was withdrawn without a decision was answered in the client, or by nobody.
        return None
    outcome, _ = await _counted(environment, item, records)
    if outcome is None:
        return None
    if item.kind == "approval":
        return {"action": "accept", "content": {"approve": outcome == "approved"}}
    return {"action": "decline"} if outcome == "declined" else None
