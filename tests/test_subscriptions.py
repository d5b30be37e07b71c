"""Who hears of which change."""

import asyncio
import threading
from typing import Any

import pytest

from antiphon.core.capabilities import TASKS
from antiphon.core.limits import Limits
from antiphon.core.request import Principal, Request
from antiphon.errors import CapabilityMissing, Unavailable
from antiphon.subscriptions import Listener, Subscriptions

ADA, BOB = Principal(subject="ada"), Principal(subject="bob")


async def listen(hub: Subscriptions, principal: Principal = ADA, **wanted: Any) -> Listener:
    extensions = {"extensions": {TASKS: {}}}
    return await hub.subscribe(
        Request(
            method="subscriptions/listen",
            capabilities=extensions,
            principal=principal,
            params={"notifications": wanted},
        )
    )


async def news(listener: Listener) -> list[Any]:
    async with asyncio.timeout(5):
        return await listener.news()


async def test_a_listener_hears_only_what_it_asked_for() -> None:
    hub = Subscriptions(Limits())
    listener = await listen(hub, toolsListChanged=True, resourceSubscriptions=["a"])
    hub.prompts_changed()
    hub.resources_changed()
    hub.resource_updated("b")
    hub.task_changed("t")
    hub.resource_updated("a")
    hub.tools_changed()
    assert await news(listener) == [
        ("notifications/resources/updated", {"uri": "a"}),
        ("notifications/tools/list_changed", {}),
    ]


async def test_however_often_something_changes_it_is_told_once() -> None:
    hub = Subscriptions(Limits())
    listener = await listen(hub, toolsListChanged=True, promptsListChanged=True)
    for _ in range(10_000):
        hub.tools_changed()
    assert await news(listener) == [("notifications/tools/list_changed", {})]
    assert await listener.news(timeout=0) == []
    hub.tools_changed()
    assert len(await news(listener)) == 1


async def test_what_the_server_does_not_offer_is_not_accepted() -> None:
    hub = Subscriptions(Limits(), serves=lambda kind: kind == "toolsListChanged")
    listener = await listen(
        hub,
        toolsListChanged=True,
        promptsListChanged=True,
        resourcesListChanged=False,
        resourceSubscriptions=["a"],
        taskIds=["t"],
    )
    assert listener.accepted == {"toolsListChanged": True}
    hub.prompts_changed()
    assert await listener.news(timeout=0) == []


async def test_a_change_may_be_announced_from_any_thread() -> None:
    hub = Subscriptions(Limits())
    listener = await listen(hub, toolsListChanged=True)
    thread = threading.Thread(target=hub.tools_changed)
    thread.start()
    assert await news(listener) == [("notifications/tools/list_changed", {})]
    thread.join()


async def test_listeners_are_counted_in_all_and_for_each_principal() -> None:
    hub = Subscriptions(Limits(listeners=3, listeners_per_principal=2))
    first, _ = await listen(hub), await listen(hub)
    with pytest.raises(Unavailable):
        await listen(hub)
    await listen(hub, BOB)
    with pytest.raises(Unavailable):
        await listen(hub, Principal(subject="eve"))
    first.close()
    first.close()
    assert len(hub) == 2
    await listen(hub)


async def test_closing_the_hub_ends_its_listeners_and_takes_no_more() -> None:
    hub = Subscriptions(Limits())
    listener = await listen(hub, toolsListChanged=True)
    waiting = asyncio.create_task(listener.news())
    hub.close()
    assert await waiting == []
    assert listener.ended
    with pytest.raises(Unavailable):
        await listen(hub)


# --- tasks ----------------------------------------------------------------------------------------


async def task_view(id: str, principal: Principal) -> dict[str, Any] | None:
    return {"taskId": id} if id.startswith(principal.subject) else None


async def test_a_task_is_shown_to_its_owner_only() -> None:
    hub = Subscriptions(Limits(), task_view=task_view)
    listener = await listen(hub, taskIds=["ada-1", "bob-1", "ada-1"])
    assert listener.accepted == {"taskIds": ["ada-1"]}
    hub.task_changed("bob-1")
    hub.task_changed("ada-1")
    assert await news(listener) == [("notifications/tasks", {"taskId": "ada-1"})]


async def test_listening_to_tasks_needs_the_extension() -> None:
    hub = Subscriptions(Limits(), task_view=task_view)
    round = Request(
        method="subscriptions/listen",
        capabilities={},
        principal=ADA,
        params={"notifications": {"taskIds": ["ada-1"]}},
    )
    with pytest.raises(CapabilityMissing):
        await hub.subscribe(round)
    assert len(hub) == 0
