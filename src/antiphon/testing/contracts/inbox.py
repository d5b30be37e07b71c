"""Inbox items, decisions, notices and sessions, for stores that keep tasks.

Every contract has a server of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from antiphon.ports import HeldCall, Inbox, ItemFilter, NewTask, Store, TaskChange, Tasks
from antiphon.protocol.chain import START, verify_chain
from antiphon.protocol.identities import LINK_ISSUER, identity_of
from antiphon.protocol.inbox import (
    Attempt,
    Changed,
    Closed,
    Decided,
    Item,
    NewItem,
    NewNotice,
    NotAllowed,
    Person,
)
from antiphon.testing.contracts.parts import LONG, TTL, apart, mine_of, name, store_passes


class InboxStore(Store, Tasks, Inbox, Protocol):
    """A store that keeps tasks and an inbox."""


InboxContract: TypeAlias = Callable[[InboxStore, InboxStore], Awaitable[None]]
"""Two handles of one store; the second stands for another process."""

SOON = 0.2
"""Seconds after which a short-lived item expires."""


def person(subject: str, *roles: str, auth_time: float = 0.0) -> Person:
    return Person("https://id.example", subject, subject.title(), roles, auth_time)


ANNA, BO = person("anna", "finance"), person("bo", "finance", "ops")
CARL = person("carl", "finance")
"""Who calls."""

DORA = person("dora")


def new_item(task: NewTask, key: str = "approve", **changes: Any) -> NewItem:
    item = NewItem(
        id=name("item"),
        server=task.server,
        call=task.call,
        key=key,
        task=task.id,
        tool=task.tool,
        owner=CARL.identity,
        role="finance",
        need=1,
        own=False,
        assurance="signed-in",
        digest=b"question",
        arguments=b"arguments",
        within=LONG,
        face=b"sealed face",
    )
    return msgspec.structs.replace(item, **changes)


def new_task(server: str, *, arguments: bytes = b"", ready: float = LONG) -> NewTask:
    return NewTask(
        id=name("task"),
        server=server,
        owner="carl",
        tool="refund",
        status="working",
        message="waits",
        created=1.5,
        expires=time.time() + TTL,
        state=b"state",
        call=name(),
        held=HeldCall((), ready, arguments),
    )


def holding(task: NewTask, *items: NewItem) -> NewTask:
    assert task.held is not None
    return msgspec.structs.replace(task, held=msgspec.structs.replace(task.held, items=items))


async def held_item(store: InboxStore, server: str, **changes: Any) -> Item:
    """Keep a held call with one item and return the item."""
    task = new_task(server)
    new = new_item(task, **changes)
    assert await store.create_task(holding(task, new))
    return await shown(store, new.id)


async def shown(store: InboxStore, id: str) -> Item:
    item = await store.item(id)
    assert item is not None
    return item


def says(item: Item, who: Person = ANNA, choice: Any = "approve", **changes: Any) -> Attempt:
    attempt = Attempt(item=item.id, person=who, choice=choice, digest=item.digest)
    return msgspec.structs.replace(attempt, **changes)


async def is_ready(store: InboxStore, server: str) -> bool:
    return bool(await store.claim_runs(server=server, limit=1, lease=LONG))


# --- deciding ----------------------------------------------------------------------------------


async def an_item_is_kept_with_its_task(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, need=2, own=True, assurance="fresh")
    again = await shown(b, item.id)
    assert again == item
    assert (item.status, item.closed, item.need, item.own) == ("open", None, 2, True)
    assert (item.face, item.digest, item.arguments) == (b"sealed face", b"question", b"arguments")
    assert item.expires - item.created > LONG - 1
    assert await b.task(item.task) is not None
    assert not await is_ready(b, server), "a held call must wait"
    assert await b.item("\0") is None
    assert await b.item("unknown") is None


async def a_decision_closes_the_item_and_makes_the_task_ready(a: InboxStore, b: InboxStore) -> None:
    for choice, status in (("approve", "approved"), ("decline", "declined")):
        a, b, server = apart(a, b)
        item = await held_item(a, server)
        attempt = says(item, choice=choice, note=b"sealed note", shown=7.5)
        verdict = await b.decide(attempt)
        assert isinstance(verdict, Decided)
        assert verdict.status == status
        assert (await shown(a, item.id)).status == status
        assert await is_ready(a, server)
        [(found, [record])] = await a.items_of(item.call)
        assert found.status == status
        assert record == verdict.record
        assert (record.issuer, record.subject, record.name) == (
            ANNA.issuer, ANNA.subject, ANNA.name,
        )  # fmt: skip
        assert (record.decision, record.roles, record.note, record.shown) == (
            choice, ("finance",), b"sealed note", 7.5,
        )  # fmt: skip


async def nobody_decides_without_the_role(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    assert await b.decide(says(item, DORA)) == NotAllowed("role")
    assert await b.decide(says(item, person("eve", "sales"))) == NotAllowed("role")
    assert (await shown(a, item.id)).status == "open"
    assert await a.decisions(server) == []
    assert not await is_ready(a, server)


async def the_caller_does_not_decide_his_own_call(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    assert await b.decide(says(item, CARL)) == NotAllowed("own")
    assert await b.decide(says(item, ANNA, same_person=True)) == NotAllowed("own")
    allowed = await held_item(a, server, own=True)
    assert isinstance(await b.decide(says(allowed, CARL)), Decided)


async def nobody_who_stands_behind_a_call_decides_it(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    behind = (CARL.identity, ANNA.identity, identity_of("https://other.example:443/", "Bo"))
    item = await held_item(a, server, behind=behind)
    assert (await shown(b, item.id)).behind == behind
    for who in (
        ANNA,
        Person("HTTPS://ID.example:443/", "anna", roles=("finance",)),
        Person("https://id.example", "\uff21nna", roles=("finance",)),
        Person("https://other.example", "bo", roles=("finance",)),
        Person(LINK_ISSUER, "carl", roles=("finance",)),
    ):
        assert await b.decide(says(item, who)) == NotAllowed("own"), who
    assert await b.decide(says(item, BO, behind=True)) == NotAllowed("own")
    assert isinstance(await b.decide(says(item, BO)), Decided)
    allowed = await held_item(a, server, behind=behind, own=True)
    assert isinstance(await b.decide(says(allowed, ANNA)), Decided)


async def one_person_under_two_spellings_counts_once(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, need=2)
    assert isinstance(await a.decide(says(item, ANNA)), Decided)
    for issuer, subject in (("https://id.example/", "anna"), (LINK_ISSUER, "Anna")):
        again = Person(issuer, subject, roles=("finance",))
        assert await b.decide(says(item, again)) == NotAllowed("twice")
    assert (await shown(a, item.id)).status == "open"


async def what_has_no_role_is_decided_by_the_caller_alone(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, role="", own=True)
    assert await b.decide(says(item, ANNA)) == NotAllowed("role")
    assert isinstance(await b.decide(says(item, CARL)), Decided)
    nobodys = await held_item(a, server, role="", own=True, owner="")
    anonymous = Person("", "")
    assert await b.decide(says(nobodys, anonymous)) == NotAllowed("role")


async def a_question_that_was_not_shown_is_not_decided(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    assert await b.decide(says(item, digest=b"another")) == Changed()
    assert (await shown(a, item.id)).status == "open"
    assert not await is_ready(a, server)


async def what_is_decided_stays_decided(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    assert isinstance(await a.decide(says(item, choice="decline")), Decided)
    assert await b.decide(says(item, BO)) == Closed("declined")
    assert await b.decide(says(item, ANNA)) == Closed("declined")
    assert len(await b.decisions(server)) == 1


async def nothing_is_decided_after_its_time(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, within=SOON)
    await store_passes(a, SOON)
    assert await b.decide(says(item)) == Closed("expired")
    [(found, said)] = await b.items_of(item.call)
    assert (found.status, list(said)) == ("expired", [])
    assert await a.decide(says(item)) == Closed("expired")


async def an_expired_item_makes_its_task_ready(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    task = new_task(server, ready=SOON)
    assert await a.create_task(holding(task, new_item(task, within=SOON)))
    assert not await is_ready(b, server)
    await store_passes(a, SOON)
    assert await is_ready(b, server)


async def several_people_are_needed_when_the_author_says_so(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, need=2)
    first = await a.decide(says(item, ANNA))
    assert isinstance(first, Decided)
    assert first.status == "open"
    assert not await is_ready(a, server)
    assert await b.decide(says(item, ANNA)) == NotAllowed("twice")
    second = await b.decide(says(item, BO))
    assert isinstance(second, Decided)
    assert second.status == "approved"
    assert await is_ready(a, server)
    refused = await held_item(a, server, need=2)
    assert isinstance(await a.decide(says(refused, ANNA)), Decided)
    end = await b.decide(says(refused, BO, "decline"))
    assert isinstance(end, Decided)
    assert end.status == "declined"


async def a_fresh_sign_in_is_asked_for(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server, assurance="fresh")
    stale = person("anna", "finance", auth_time=time.time() - 3600)
    assert await b.decide(says(item, stale)) == NotAllowed("assurance")
    assert await b.decide(says(item, ANNA)) == NotAllowed("assurance")
    fresh = person("anna", "finance", auth_time=time.time())
    assert isinstance(await b.decide(says(item, fresh, how="fresh")), Decided)


async def a_form_is_answered_and_an_approval_is_not(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    form = await held_item(a, server, kind="form", role="", own=True)
    assert await b.decide(says(form, CARL)) == NotAllowed("choice")
    verdict = await b.decide(says(form, CARL, "answer", answer=b"sealed answer"))
    assert isinstance(verdict, Decided)
    assert verdict.status == "answered"
    assert (await shown(a, form.id)).answer == b"sealed answer"
    approval = await held_item(a, server)
    assert await b.decide(says(approval, ANNA, "answer")) == NotAllowed("choice")


async def one_of_many_deciders_wins(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    people = [person(f"person-{number}", "finance") for number in range(12)]
    attempts = [
        says(item, who, "approve" if number % 2 else "decline") for number, who in enumerate(people)
    ]
    verdicts = await asyncio.gather(
        *((a if number % 2 else b).decide(one) for number, one in enumerate(attempts))
    )
    won = [one for one in verdicts if isinstance(one, Decided)]
    assert len(won) == 1
    lost = [one for one in verdicts if not isinstance(one, Decided)]
    assert lost == [Closed(won[0].status)] * 11
    assert len(await a.decisions(server)) == 1


async def decisions_form_a_chain(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    items = [await held_item(a, server) for _ in range(6)]
    await asyncio.gather(*((a if i % 2 else b).decide(says(it)) for i, it in enumerate(items)))
    chain = list(await a.decisions(server))
    assert [record.sequence for record in chain] == [1, 2, 3, 4, 5, 6]
    assert chain[0].previous == START
    assert verify_chain(chain) is None
    assert list(await b.decisions(server, after=2, limit=3)) == chain[2:5]
    assert await b.decisions(name("server")) == []


# --- items and their tasks -----------------------------------------------------------------------


async def an_item_is_withdrawn_by_its_owner_only(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    assert not await b.withdraw(item.id, ANNA.identity)
    assert not await b.withdraw(item.id, "")
    assert not await b.withdraw("\0", CARL.identity)
    assert await b.withdraw(item.id, CARL.identity)
    assert not await b.withdraw(item.id, CARL.identity)
    assert (await shown(a, item.id)).status == "withdrawn"
    assert await a.decide(says(item)) == Closed("withdrawn")
    assert await is_ready(a, server)
    nobodys = await held_item(a, server, owner="")
    assert not await b.withdraw(nobodys.id, "")


async def a_task_that_ends_takes_its_items_along(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    item = await held_item(a, server)
    row = await b.task(item.task)
    assert row is not None
    cancelled = TaskChange("cancelled", "", b"end", 2.0, cancel=True)
    assert await b.change_task(row.id, row.revision, cancelled)
    assert (await shown(a, item.id)).status == "withdrawn"
    assert await a.decide(says(item)) == Closed("withdrawn")


async def a_decision_and_a_cancellation_have_one_winner(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    for _ in range(8):
        item = await held_item(a, server)
        row = await b.task(item.task)
        assert row is not None
        cancelled = TaskChange("cancelled", "", b"end", 2.0, cancel=True)
        verdict, gone = await asyncio.gather(
            a.decide(says(item)), b.change_task(row.id, row.revision, cancelled)
        )
        assert isinstance(verdict, Decided) is not gone, (verdict, gone)


async def a_run_puts_items_and_what_the_client_answers_is_withdrawn(
    a: InboxStore, b: InboxStore
) -> None:
    a, b, server = apart(a, b)
    task = msgspec.structs.replace(new_task(server), held=None)
    assert await a.create_task(task)
    [run] = await a.claim_runs(server=server, limit=1, lease=LONG)
    one, two = new_item(task, "one", kind="form"), new_item(task, "two", kind="form")
    asked = TaskChange("input_required", "asks", b"state", 2.0, items=(one, two))
    assert await a.finish_run(run.id, run.epoch, run.revision, asked)
    assert (await shown(b, one.id)).status == (await shown(b, two.id)).status == "open"
    row = await b.task(task.id)
    assert row is not None
    answered = TaskChange("input_required", "asks", b"state", 3.0, answered=("one",))
    assert await b.change_task(row.id, row.revision, answered)
    assert (await shown(a, one.id)).status == "withdrawn"
    assert (await shown(a, two.id)).status == "open"


async def a_run_that_is_repeated_puts_the_same_item_once(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    task = msgspec.structs.replace(new_task(server), held=None)
    assert await a.create_task(task)
    first = new_item(task, notices=(NewNotice(name("notice"), "asked", "hook"),))
    for number, item in enumerate((first, msgspec.structs.replace(first, id=name("item")))):
        [run] = await a.claim_runs(server=server, limit=1, lease=LONG)
        asked = TaskChange("working", "", b"state", 2.0, ready=0.0, items=(item,))
        assert await a.finish_run(run.id, run.epoch, run.revision, asked), number
    [(kept, _)] = await b.items_of(task.call)
    assert kept.id == first.id
    assert len(await b.due_notices(server, limit=10, lease=LONG)) == 1


async def a_task_is_kept_for_as_long_as_its_items(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    task = msgspec.structs.replace(
        new_task(server, arguments=b"arguments", ready=0.0), expires=time.time() + SOON
    )
    assert await a.create_task(holding(task, new_item(task)))
    [row] = await a.claim_runs(server=server, limit=1, lease=LONG)
    second = new_item(task, "second")
    change = TaskChange("working", "waits", b"state", 2.0, ready=LONG, items=(second,), lasts=LONG)
    assert await a.finish_run(task.id, row.epoch, row.revision, change)
    await store_passes(a, SOON)
    await b.remove_tasks()
    assert await b.held(server, task.owner, task.tool, b"arguments") == task.id
    assert isinstance(await b.decide(says(await shown(b, second.id))), Decided)
    [run] = await b.claim_runs(server=server, limit=1, lease=LONG)
    assert run.expires - time.time() > LONG - 2 * SOON - 1
    shorter = TaskChange("working", "", b"state", 2.0, ready=LONG, items=(second,), lasts=1.0)
    assert await b.finish_run(task.id, run.epoch, run.revision, shorter)
    kept = await b.task(task.id)
    assert kept is not None
    assert kept.expires == run.expires, "a life is never made shorter"


async def what_was_asked_for_a_removed_task_expires(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    task = msgspec.structs.replace(new_task(server), expires=time.time() + SOON)
    new = new_item(task)
    assert await a.create_task(holding(task, new))
    await store_passes(a, SOON)
    while await b.task(task.id) is not None:
        await b.remove_tasks()
    item = await shown(b, new.id)
    assert item.status == "expired"
    assert await b.decide(says(item)) == Closed("expired")


async def a_round_keeps_its_held_call_with_its_outcome(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    task = new_task(server, arguments=b"same")
    item = new_item(task)
    claim = await mine_of(a, task.call)
    lost = await a.record(task.call, 2, claim.fence + 1, b"out", ttl=TTL, task=holding(task, item))
    assert not lost
    assert await b.item(item.id) is None
    assert await b.held(server, "carl", "refund", b"same") is None
    assert await a.record(task.call, 2, claim.fence, b"out", ttl=TTL, task=holding(task, item))
    assert (await shown(b, item.id)).status == "open"
    assert await b.held(server, "carl", "refund", b"same") == task.id


# --- held calls ----------------------------------------------------------------------------------


async def a_repeated_call_finds_the_held_one_until_it_is_collected(
    a: InboxStore, b: InboxStore
) -> None:
    a, b, server = apart(a, b)
    task = new_task(server, arguments=b"same")
    assert await a.create_task(holding(task, new_item(task)))
    assert await b.held(server, "carl", "refund", b"same") == task.id
    for other in (("eve", "refund", b"same"), ("carl", "pay", b"same"), ("carl", "refund", b"x")):
        assert await b.held(server, *other) is None
    assert await b.held(name("server"), "carl", "refund", b"same") is None
    assert await b.collect(task.id)
    assert not await a.collect(task.id)
    assert await a.held(server, "carl", "refund", b"same") is None
    again = new_task(server, arguments=b"same")
    assert await a.create_task(holding(again, new_item(again)))


async def of_two_held_calls_with_the_same_arguments_one_is_kept(
    a: InboxStore, b: InboxStore
) -> None:
    a, b, server = apart(a, b)
    tasks = [new_task(server, arguments=b"same") for _ in range(4)]
    kept = await asyncio.gather(
        *(
            (a if number % 2 else b).create_task(holding(task, new_item(task)))
            for number, task in enumerate(tasks)
        )
    )
    assert sorted(kept) == [False, False, False, True]
    [won] = [task for task, found in zip(tasks, kept, strict=True) if found]
    assert await a.held(server, "carl", "refund", b"same") == won.id
    for task in tasks:
        assert (await b.task(task.id) is not None) is (task is won)
        assert len(await b.items_of(task.call)) == (1 if task is won else 0)


# --- lists ---------------------------------------------------------------------------------------


async def open_items_are_listed_oldest_first_by_pages(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    items = [await held_item(a, server, role="finance" if n % 2 else "ops") for n in range(7)]
    wanted = ItemFilter(server, open=True, roles=("finance", "ops"))
    listed: list[str] = []
    after = None
    while page := await b.items(wanted, after=after, limit=3):
        listed += [item.id for item in page]
        after = (page[-1].created, page[-1].id)
    order = sorted(items, key=lambda item: (item.created, item.id))
    assert listed == [item.id for item in order]
    ops = ItemFilter(server, open=True, roles=("ops",))
    assert {item.role for item in await a.items(ops)} == {"ops"}
    assert await a.count_items(wanted, most=100) == 7
    assert await a.count_items(wanted, most=5) == 5
    assert await a.items(ItemFilter(server, open=True, roles=())) == []


async def lists_hold_what_was_asked_for(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    own = await held_item(a, server, role="", own=True)
    others = await held_item(a, server, role="", own=True, owner=ANNA.identity)
    mine = ItemFilter(server, open=True, roles=(), owner=CARL.identity)
    assert [item.id for item in await b.items(mine)] == [own.id]
    requests = ItemFilter(server, owner=ANNA.identity)
    assert [item.id for item in await b.items(requests)] == [others.id]
    assert isinstance(await a.decide(says(others, ANNA)), Decided)
    closed = ItemFilter(server, open=False)
    assert [item.id for item in await b.items(closed)] == [others.id]
    decided = ItemFilter(server, decided_by=(ANNA.issuer, ANNA.subject))
    assert [item.id for item in await b.items(decided)] == [others.id]
    assert await b.items(ItemFilter(server, tool="pay")) == []
    assert len(await b.items(ItemFilter(server, tool="refund"))) == 2
    assert await b.items(ItemFilter(name("server"))) == []
    other, _, elsewhere_server = apart(a, b)
    elsewhere = await held_item(other, elsewhere_server, role="ops")
    assert [item.id for item in await other.items(ItemFilter(elsewhere_server))] == [elsewhere.id]
    assert await b.item(elsewhere.id) is None
    assert not isinstance(await b.decide(says(elsewhere, ANNA)), Decided)
    assert await other.item(others.id) is None


# --- notices and sessions ------------------------------------------------------------------------


async def notices_are_leased_until_they_are_sent(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    notice = NewNotice(name("notice"), "asked", "hook")
    later = NewNotice(name("notice"), "reminded", "hook", delay=LONG)
    item = await held_item(a, server, notices=(notice, later))
    assert await b.due_notices(name("server"), limit=10, lease=LONG) == []
    [due] = await b.due_notices(server, limit=10, lease=SOON)
    assert (due.id, due.item, due.kind, due.target, due.tries) == (
        notice.id, item.id, "asked", "hook", 0,
    )  # fmt: skip
    assert await a.due_notices(server, limit=10, lease=LONG) == []
    await store_passes(a, SOON)
    [again] = await a.due_notices(server, limit=10, lease=LONG)
    assert (again.id, again.tries) == (notice.id, 1)
    await a.sent_notice(notice.id, again=0.0)
    [third] = await b.due_notices(server, limit=10, lease=LONG)
    assert third.tries == 2
    await b.sent_notice(notice.id)
    await b.sent_notice(notice.id)
    await a.add_notices(item.id, (notice,))
    assert len(await a.due_notices(server, limit=10, lease=LONG)) == 1


async def a_decision_keeps_its_notices_and_drops_reminders(a: InboxStore, b: InboxStore) -> None:
    a, b, server = apart(a, b)
    reminder = NewNotice(name("notice"), "reminded", "hook", delay=SOON)
    item = await held_item(a, server, notices=(reminder,))
    decided = NewNotice(name("notice"), "decided", "hook")
    refused = await b.decide(says(item, DORA), notices=(decided,))
    assert refused == NotAllowed("role")
    assert await b.due_notices(server, limit=10, lease=LONG) == []
    assert isinstance(await b.decide(says(item), notices=(decided,)), Decided)
    await store_passes(a, SOON)
    assert [one.id for one in await a.due_notices(server, limit=10, lease=LONG)] == [decided.id]


async def a_session_lives_while_it_is_used(a: InboxStore, b: InboxStore) -> None:
    id, other = name().encode(), name().encode()
    await a.keep_session(id, b"anna", ttl=LONG)
    assert await b.session(id, ttl=LONG) == b"anna"
    assert await b.session(other, ttl=LONG) is None
    assert await a.session(id, ttl=SOON) == b"anna"
    await store_passes(a, SOON)
    assert await b.session(id, ttl=LONG) is None


async def a_one_time_link_is_taken_once(a: InboxStore, b: InboxStore) -> None:
    id = name().encode()
    await a.keep_session(id, b"anna", ttl=LONG)
    taken = await asyncio.gather(*((a if n % 2 else b).take_session(id) for n in range(6)))
    assert sorted(taken, key=bool) == [None] * 5 + [b"anna"]
    old = name().encode()
    await a.keep_session(old, b"anna", ttl=SOON)
    await store_passes(a, SOON)
    assert await b.take_session(old) is None


INBOX_CONTRACTS: tuple[InboxContract, ...] = (
    an_item_is_kept_with_its_task,
    a_decision_closes_the_item_and_makes_the_task_ready,
    nobody_decides_without_the_role,
    the_caller_does_not_decide_his_own_call,
    nobody_who_stands_behind_a_call_decides_it,
    one_person_under_two_spellings_counts_once,
    what_has_no_role_is_decided_by_the_caller_alone,
    a_question_that_was_not_shown_is_not_decided,
    what_is_decided_stays_decided,
    nothing_is_decided_after_its_time,
    an_expired_item_makes_its_task_ready,
    several_people_are_needed_when_the_author_says_so,
    a_fresh_sign_in_is_asked_for,
    a_form_is_answered_and_an_approval_is_not,
    one_of_many_deciders_wins,
    decisions_form_a_chain,
    an_item_is_withdrawn_by_its_owner_only,
    a_task_that_ends_takes_its_items_along,
    a_decision_and_a_cancellation_have_one_winner,
    a_run_puts_items_and_what_the_client_answers_is_withdrawn,
    a_run_that_is_repeated_puts_the_same_item_once,
    a_task_is_kept_for_as_long_as_its_items,
    what_was_asked_for_a_removed_task_expires,
    a_round_keeps_its_held_call_with_its_outcome,
    a_repeated_call_finds_the_held_one_until_it_is_collected,
    of_two_held_calls_with_the_same_arguments_one_is_kept,
    open_items_are_listed_oldest_first_by_pages,
    lists_hold_what_was_asked_for,
    notices_are_leased_until_they_are_sent,
    a_decision_keeps_its_notices_and_drops_reminders,
    a_session_lives_while_it_is_used,
    a_one_time_link_is_taken_once,
)
"""Everything that a store with an inbox must do."""
