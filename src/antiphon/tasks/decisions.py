"""What people have said in the inbox, as the next run of a task takes it."""

from typing import Any

import msgspec

from antiphon.core.asks import Approval
from antiphon.core.inbox import Item, NewNotice
from antiphon.core.journal import Entry
from antiphon.engine.approvals import approval_of, decided_payload
from antiphon.environment import Environment
from antiphon.tasks.service import TaskService
from antiphon.tasks.state import TaskState


async def decided(service: TaskService, call: str) -> dict[tuple[str, bytes], Approval]:
    """Return what people have decided about the items of a call, by key and digest."""
    found: dict[tuple[str, bytes], Approval] = {}
    for item, said in await service.inbox.items_of(call):
        note = b""
        if said and said[-1].note:
            note = await service.environment.reveal(said[-1].note, f"note {item.id}")
        if item.status == "expired":
            await _notify_expired(service, item.id)
        approval = approval_of(item, said, note.decode())
        if approval is not None:
            found[item.key, item.digest] = approval
    return found


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
    for item, _ in await service.inbox.items_of(state.call):
        ask = asks.get(item.key)
        if ask is None or ask.pending.digest != item.digest or item.key in state.answers:
            continue
        answer = await inbox_answer(service.environment, item)
        if answer is not None:
            state.answers[item.key] = answer


async def inbox_answer(environment: Environment, item: Item) -> dict[str, Any] | None:
    """Return what was said about an item as a client would have answered; None while it is open."""
    if item.status == "answered":
        content = await environment.reveal(item.answer, f"answer {item.id}")
        return {"action": "accept", "content": msgspec.json.decode(content)}
    if item.status in ("approved", "declined") and item.kind == "approval":
        return {"action": "accept", "content": {"approve": item.status == "approved"}}
    if item.status == "declined":
        return {"action": "decline"}
    # One that was withdrawn without a decision was answered in the client, or by nobody.
    return None
