"""Asks and their outcomes, and approvals by somebody who is not the client.

`ask_all` recalls what was answered before and puts the rest to whoever can answer.
`route_asks` looks at every ask without an answer. A question for the inbox ends the round
(`Execution.hold`), and `tasks/held.py` keeps the call with an item that shows the `face_of` the
question. When people have decided, a run of the task reads the item with `approval_of`, and the
decision is recorded like any other answer. It is in a member of the answer (`DECIDED`) that no
client can send: `check_shape` drops what it does not know.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from antiphon.engine.handler import call_user
from antiphon.engine.mistakes import check_asks
from antiphon.engine.questions import (
    DECIDED,
    Question,
    check_key,
    check_raw_key,
    question,
    reasons,
)
from antiphon.errors import AnswerInvalid, ConfigError, HandlerError
from antiphon.protocol.asks import (
    Approval,
    Approve,
    Ask,
    ElicitUrl,
    Outcome,
    RawAsk,
    Seconds,
    seconds,
)
from antiphon.protocol.capabilities import allows
from antiphon.protocol.identities import caller_identity
from antiphon.protocol.inbox import (
    Approver,
    DecisionRecord,
    Face,
    Item,
    Status,
)
from antiphon.protocol.journal import Entry, decode_value, encode_value
from antiphon.protocol.request import Principal, Request

if TYPE_CHECKING:
    from antiphon.engine.execution import Batch, Execution

_YES = encode_value(True)
_UNAVAILABLE = encode_value({"action": "unavailable"})

Route = Literal["client", "inbox", "refuse"]
"""Whom an approval is put to. `refuse`: to nobody, and its outcome is `unavailable`: no yes."""

_OUTCOMES: Mapping[Status, Literal["expired", "cancelled"]] = {
    "expired": "expired",
    "withdrawn": "cancelled",
}
"""From the status of an item to an outcome that is no decision. A decision is never taken from a
status: whoever writes the database can change that."""


async def route_asks(
    execution: "Execution", batch: "Batch", outcomes: dict[str, Outcome[Any]]
) -> "tuple[Batch, Batch]":
    """Return what the client is asked, and what waits for somebody else to decide.

    What is decided already, or can be asked of nobody, is recorded as answered, and added to
    `outcomes`.
    """
    asked: list[tuple[str, Question]] = []
    held: list[tuple[str, Question]] = []
    for key, ready in batch:
        ask = ready.ask
        if not isinstance(ask, Approve):
            asked.append((key, ready))
            continue
        route, approval = route_of(execution, ask), None
        if ask.uses_inbox:
            approval = await execution.delivery.decision(execution, key, ready)
        if route == "client" and (approval is None or approval.outcome == "cancelled"):
            asked.append((key, ready))
            continue
        payload = _UNAVAILABLE
        if route != "refuse":
            # Also where the client could be asked by now: what people have decided counts.
            if approval is None:
                if execution.replay.may_be_behind():
                    execution.check_new("ask", key, ready.note)
                held.append((key, ready))
                continue
            payload = decided_payload(approval)
        execution.check_new("ask", key, ready.note)
        execution.record(Entry("ask", key, payload, ready.digest, ready.note))
        outcomes[key] = ready.read(decode_value(payload), key)
    return asked, held


def route_of(execution: "Execution", ask: Approve) -> Route:
    """Return where an approval goes that has not been asked yet.

    Raises:
        ConfigError: It needs an inbox, and the server has none.
        HandlerError: It may be held, and the tool does not say so.
    """
    can_form = allows(execution.request.capabilities, "form")
    if ask.by is None and ask.sure == "client" and can_form:
        return "client"
    if not ask.uses_inbox:
        return "refuse"
    check_inbox(execution, ask)
    if ask.by is None and not caller_identity(execution.request.principal):
        return "refuse"  # nobody could ever show that they are the caller
    if execution.handler.kind != "tool" and not can_visit(execution.request, ask):
        return "refuse"  # only the result of a tool can say that it waits for somebody else
    return "inbox"


def can_visit(request: Request, ask: Approve) -> bool:
    """Tell whether the client can lead its own person to the page where they decide."""
    if ask.by is not None or not allows(request.capabilities, "url"):
        return False
    return request.era == "modern" or request.channel.can_ask


def check_inbox(execution: "Execution", ask: Approve) -> None:
    """Refuse an approval that this server cannot put into an inbox.

    Raises:
        ConfigError: There is no console, or the store keeps no tasks.
        HandlerError: Nobody can hold the role, or the tool does not say `holds=True`.
    """
    environment, handler = execution.environment, execution.handler
    if environment.inbox is None:
        raise ConfigError(
            'an approval with by= or fallback="inbox" needs Server(console=Console(...)), where '
            "people decide"
        )
    if not environment.keeps_tasks:
        raise ConfigError(
            "held calls need a store that keeps tasks: sqlite:///, postgresql:// or memory"
        )
    roles = environment.inbox.roles
    if ask.by is not None and roles is not None and ask.by not in roles:
        known = ", ".join(sorted(roles)) or "none"
        raise HandlerError(
            f"no role {ask.by!r} is known to the console: Console(roles=...) has {known}"
        )
    if handler.kind == "tool" and not handler.options.holds:
        raise HandlerError(
            f"tool {handler.name!r} asks for an approval that may be held, so that a repeated call "
            "must find it before the first line runs. Write @server.tool(holds=True)."
        )


def decided_payload(approval: Approval) -> bytes:
    """Write an approval as the answer that the journal keeps."""
    return msgspec.json.encode({DECIDED: approval})


def approval_of(
    item: Item,
    outcome: Literal["approved", "declined"] | None,
    said: Sequence[DecisionRecord],
    note: str,
) -> Approval | None:
    """Return what became of an item; None while it waits.

    Args:
        item: As the store has it.
        outcome: What the authenticated records amount to.
        said: Those records.
        note: Of the last one.
    """
    if outcome is None and item.status == "open":
        return None
    other: Literal["expired", "cancelled", "unavailable"]
    other = _OUTCOMES.get(item.status, "unavailable")
    approvers = tuple(
        Approver(one.issuer, one.subject, one.name, one.roles, one.at, one.how) for one in said
    )
    return Approval(outcome or other, approvers, note, item.role or None, item.id)


def named_by_caller(outcome: Outcome[Any], who: Principal) -> Outcome[Any]:
    """Name the caller as the one who has approved in the client; other outcomes as they are."""
    approval = outcome.value
    if not isinstance(approval, Approval) or approval.approvers or who.anonymous:
        return outcome
    if approval.outcome not in ("approved", "declined"):
        return outcome
    named = msgspec.structs.replace(approval, approvers=(Approver(who.issuer, who.subject),))
    return Outcome(outcome.status, named, outcome.key)


def face_of(question: Question, *, caller: str, client: str, arguments: Any) -> Face:
    """Return what people are shown of an approval or a form."""
    ask: Any = question.ask
    details = cast("Mapping[str, Any]", ask.details or {}).items()
    labels = ask.labels if isinstance(ask, Approve) else ("Approve", "Decline")
    return Face(
        message=ask.message,
        details=tuple((str(label), _plain(value)) for label, value in details),
        why=ask.why if isinstance(ask, Approve) else "",
        approve=labels[0],
        decline=labels[1],
        caller=caller,
        client=client,
        arguments=msgspec.json.encode(arguments or {}),
        schema=b"" if isinstance(ask, Approve) else question.shown,
    )


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# --- asks and their outcomes ---------------------------------------------------------------------


async def ask_named(
    execution: "Execution", wrong: Sequence[Any], asks: Mapping[str, Ask]
) -> list[Outcome[Any]]:
    """Return the outcomes of asks by name, which are put in one round.

    Raises:
        HandlerError: An ask has no name, or is no ask but the result of asking.
    """
    check_asks(wrong, asks)
    await execution.enter_async("ask")
    batch: list[tuple[str, Question]] = []
    for key, ask in asks.items():
        check = check_raw_key if isinstance(ask, RawAsk) else check_key
        batch.append((execution.keys.in_scope(check(key)), question(ask)))
    outcomes = await ask_all(execution, batch)
    return [named(outcome, key) for outcome, key in zip(outcomes, asks, strict=True)]


def named(outcome: Outcome[Any], key: str) -> Outcome[Any]:
    """Return an outcome under the key that its author chose."""
    return outcome if outcome.key == key else msgspec.structs.replace(outcome, key=key)


async def ask_visit(
    execution: "Execution",
    ask: ElicitUrl,
    given: str | None,
    until: Callable[[], Any] | None,
    every: Seconds,
) -> None:
    """Ask for the visit of a URL; with `until`, wait until the visit has done its work."""
    await execution.enter_async("elicit_url")
    key = execution.ask_key_for("url", given)

    async def is_done() -> bool:
        if until is None:
            return True
        with execution.inside(key):
            return bool(await call_user(until))

    if until is not None:
        error = execution.delivery.url_error(execution, key, ask)
        if error is not None:
            if await is_done():
                return  # the visit that an earlier call asked for
            raise error
    (await ask_all(execution, [(key, question(ask))]))[0].unwrap()
    if until is not None and execution.replay.seen("memo", f"{key}:done") is None:
        pause = max(0.0, seconds(every))
        while not await is_done():
            await execution.delivery.wait(execution, pause)
        execution.enter("elicit_url")
        execution.record(Entry("memo", f"{key}:done", _YES))
        await execution.delivery.visited(execution, key)


async def ask_all(execution: "Execution", batch: "Batch") -> list[Outcome[Any]]:
    """Return the outcomes of asks, in their order: recalled, or put to whoever can answer.

    Most rounds end in here: in `Delivery.put` for the client, in `hold` for the inbox.
    """
    outcomes: dict[str, Outcome[Any]] = {}
    unanswered: list[tuple[str, Question]] = []
    for key, ready in batch:
        entry = execution.recall("ask", key, ready.digest, ready.note)
        outcome = None if entry is None else read_answered(execution, key, ready, entry.value())
        if outcome is None:
            unanswered.append((key, ready))
        else:
            outcomes[key] = outcome
    if unanswered:
        asked, held = await route_asks(execution, unanswered, outcomes)
        if asked:
            outcomes |= await execution.delivery.put(execution, asked)
        if held:
            await execution.hold(held)
    who = execution.request.principal
    return [named_by_caller(outcomes[key], who) for key, _ in batch]


def read_answered(
    execution: "Execution", key: str, ready: Question, raw: Any
) -> Outcome[Any] | None:
    """Read an answer; None when it does not fit and is to be asked for again."""
    try:
        return ready.read(raw, key)
    except AnswerInvalid as error:
        execution.reject(key, reasons(error, secret=ready.ask.secret))
        return None
