"""Who hears of which change."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.errors import CapabilityMissing, Unavailable
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.changes import PROMPTS, RESOURCE, RESOURCES, TASK, TOOLS, Changes
from antiphon.protocol.limits import Limits
from antiphon.protocol.quotas import Allowance, Holdings
from antiphon.protocol.request import Principal, Request
from antiphon.transports.subscriptions import Subscription, Subscriptions

OFFERED = {"tools", "prompts", "resources"}
ADA, BOB = Principal(subject="ada"), Principal(subject="bob")


def allowance(limits: Limits | None = None) -> Allowance:
    return Holdings(limits or Limits()).listeners


async def listen(
    subscriptions: Subscriptions, principal: Principal = ADA, **wanted: Any
) -> Subscription:
    extensions = {"extensions": {TASKS: {}}}
    return await subscriptions.subscribe(
        Request(
            method="subscriptions/listen",
            capabilities=extensions,
            principal=principal,
            params={"notifications": wanted},
        )
    )


async def news(listener: Subscription) -> list[Any]:
    async with asyncio.timeout(20):
        return await listener.news()


async def test_a_listener_hears_only_what_it_asked_for() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED)
    listener = await listen(subscriptions, toolsListChanged=True, resourceSubscriptions=["a"])
    changes.announce(PROMPTS)
    changes.announce(RESOURCES)
    changes.announce(RESOURCE, "b")
    changes.announce(TASK, "t")
    changes.announce(RESOURCE, "a")
    changes.announce(TOOLS)
    assert await news(listener) == [
        ("notifications/resources/updated", {"uri": "a"}),
        ("notifications/tools/list_changed", {}),
    ]


async def test_however_often_something_changes_it_is_told_once() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED)
    listener = await listen(subscriptions, toolsListChanged=True, promptsListChanged=True)
    for _ in range(10_000):
        changes.announce(TOOLS)
    assert await news(listener) == [("notifications/tools/list_changed", {})]
    assert await listener.news(timeout=0) == []
    changes.announce(TOOLS)
    assert len(await news(listener)) == 1


async def test_what_the_server_does_not_offer_is_not_accepted() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered={"tools"})
    listener = await listen(
        subscriptions,
        toolsListChanged=True,
        promptsListChanged=True,
        resourcesListChanged=False,
        resourceSubscriptions=["a"],
        taskIds=["t"],
    )
    assert listener.accepted == {"toolsListChanged": True}
    changes.announce(PROMPTS)
    assert await listener.news(timeout=0) == []


async def test_a_change_may_be_announced_from_any_thread() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED)
    listener = await listen(subscriptions, toolsListChanged=True)
    thread = threading.Thread(target=changes.announce, args=(TOOLS,))
    thread.start()
    assert await news(listener) == [("notifications/tools/list_changed", {})]
    thread.join()


async def test_listeners_are_counted_in_all_and_for_each_principal() -> None:
    limits = Limits(listeners=3, listeners_per_principal=2)
    subscriptions = Subscriptions(allowance(limits), Changes(), offered=OFFERED)
    first, _ = await listen(subscriptions), await listen(subscriptions)
    with pytest.raises(Unavailable):
        await listen(subscriptions)
    await listen(subscriptions, BOB)
    with pytest.raises(Unavailable):
        await listen(subscriptions, Principal(subject="eve"))
    first.close()
    first.close()
    assert len(subscriptions) == 2
    await listen(subscriptions)


async def test_closing_the_subscriptions_ends_its_listeners_and_takes_no_more() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED)
    listener = await listen(subscriptions, toolsListChanged=True)
    waiting = asyncio.create_task(listener.news())
    subscriptions.close()
    assert await waiting == []
    assert listener.ended
    with pytest.raises(Unavailable):
        await listen(subscriptions)


# --- tasks ----------------------------------------------------------------------------------------


class SomeTasks:
    """Tasks whose ids begin with the name of their owner."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []

    async def view(self, id: str, principal: Principal) -> dict[str, Any] | None:
        return {"taskId": id} if id.startswith(principal.subject) else None

    async def owned(self, ids: Sequence[str], request: Request) -> list[str]:
        self.looked_up += ids
        return [id for id in ids if id.startswith(request.principal.subject)]


async def test_a_task_is_shown_to_its_owner_only() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED, tasks=SomeTasks())
    listener = await listen(subscriptions, taskIds=["ada-1", "bob-1", "ada-1"])
    assert listener.accepted == {"taskIds": ["ada-1"]}
    changes.announce(TASK, "bob-1")
    changes.announce(TASK, "ada-1")
    assert await news(listener) == [("notifications/tasks", {"taskId": "ada-1"})]


async def test_listening_to_tasks_needs_the_extension() -> None:
    changes = Changes()
    subscriptions = Subscriptions(allowance(), changes, offered=OFFERED, tasks=SomeTasks())
    round = Request(
        method="subscriptions/listen",
        capabilities={},
        principal=ADA,
        params={"notifications": {"taskIds": ["ada-1"]}},
    )
    with pytest.raises(CapabilityMissing):
        await subscriptions.subscribe(round)
    assert len(subscriptions) == 0


async def test_no_task_is_looked_up_for_a_caller_who_may_open_no_stream() -> None:
    tasks = SomeTasks()
    few = allowance(Limits(listeners_per_principal=1))
    subscriptions = Subscriptions(few, Changes(), offered=OFFERED, tasks=tasks)
    await listen(subscriptions)
    with pytest.raises(Unavailable):
        await listen(subscriptions, taskIds=[f"ada-{number}" for number in range(1_000)])
    assert tasks.looked_up == []


async def test_streams_without_authentication_leave_half_of_all_to_others() -> None:
    few = allowance(Limits(listeners=4, listeners_per_principal=1))
    subscriptions = Subscriptions(few, Changes(), offered=OFFERED)
    for _ in range(2):
        await listen(subscriptions, Principal())
    with pytest.raises(Unavailable):
        await listen(subscriptions, Principal())
    await listen(subscriptions, ADA)
    await listen(subscriptions, BOB)


async def test_a_filter_counts_with_its_bytes() -> None:
    few = allowance(Limits(held_bytes_per_principal=64 * 1024))
    subscriptions = Subscriptions(few, Changes(), offered=OFFERED)
    with pytest.raises(Unavailable):
        await listen(subscriptions, resourceSubscriptions=["x" * 8_000])
    await listen(subscriptions, resourceSubscriptions=["x" * 1_000])
