"""Decide what waits in the inbox, as a person whom a test names would on the console's pages."""

from typing import Literal

from antiphon.apps.console.inbox_view import InboxView, Shown
from antiphon.protocol.inbox import Changed, Closed, Decided, NotAllowed, Person, Verdict


class Undecided(AssertionError):
    """Nothing was decided: there is nothing to decide, or this person may not."""

    def __init__(self, why: str, verdict: Verdict | None = None) -> None:
        super().__init__(why)
        self.verdict = verdict
        """What the store said, if it was asked."""


async def decide(
    view: InboxView,
    choice: Literal["approve", "decline"],
    person: Person,
    *,
    note: str = "",
    message: str | None = None,
) -> Decided:
    """Press a button of the one question that waits, or of the one with this message.

    Raises:
        Undecided: None or several wait, or this person may not decide.
    """
    seen = [await view.one(item.id, person) for item in await view.waiting()]
    shown = [
        one
        for one in seen
        if one is not None
        and (message is None or (one.face is not None and one.face.message == message))
    ]
    if len(shown) != 1:
        raise Undecided(_found(shown, hidden=seen.count(None)))
    (item,) = shown
    verdict = await view.decide(
        item, person, choice, digest=item.item.digest, first_shown=0.0, note=note
    )
    if not isinstance(verdict, Decided):
        raise Undecided(_why(verdict), verdict)
    return verdict


def _found(shown: list[Shown], *, hidden: int) -> str:
    if shown:
        texts = [one.face.message for one in shown if one.face is not None]
        return f"{len(shown)} questions wait; choose one with message=: {texts}"
    if hidden:
        return f"{hidden} questions wait, but this person may see none of them"
    return "no question waits for a decision"


def _why(verdict: Changed | Closed | NotAllowed) -> str:
    if isinstance(verdict, Changed):
        return "the question has changed"
    if isinstance(verdict, Closed):
        return f"too late: it is {verdict.status}"
    return f"this person may not decide: {verdict.reason}"
