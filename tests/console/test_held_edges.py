"""Held calls whose handler, client or row does something unusual."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from antiphon import Approve, Context, InputRequired, Server
from antiphon.ports import ItemFilter
from antiphon.protocol.retry import back_off
from tests.console.shop import ANNA, CARL, FORMS, GRACE, NOTHING, TASKS, Shop

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}


class UnusualShop(Shop):
    """A shop with tools that ask in every way there is."""

    @property
    def price(self) -> Path:
        return self.path.with_name("price.txt")

    def server(self) -> Server:
        server = super().server()

        @server.tool(holds=True)
        async def returned(ctx: Context, order: str) -> Any:
            answer = ctx.answers.get("ok")
            if answer is None:
                return InputRequired({"ok": Approve("Refund?", by="finance", grace=GRACE)})
            return f"refunded: {answer}"

        @server.tool(holds=True)
        async def branches(ctx: Context, order: str) -> str:
            async with asyncio.TaskGroup() as group:
                money = group.create_task(ctx.approve("Pay?", by="finance", key="money"))
                ops = group.create_task(ctx.approve("Ship?", by="ops", key="ops"))
                number = group.create_task(ctx.elicit("How many?", NUMBER, key="number"))
            outcomes = money.result().outcome, ops.result().outcome
            return f"{outcomes} {number.result()}"

        @server.tool(holds=True)
        async def renamed(ctx: Context, order: str) -> str:
            price = self.price.read_text()
            asked = await ctx.approve(
                f"Refund {price}?", identity="refund", by="finance", grace=GRACE
            )
            return f"{asked.outcome} {price}"

        @server.tool(holds=True, task_ttl=timedelta(hours=2))
        async def long(ctx: Context, order: str) -> str:
            await ctx.detach()
            asked = await ctx.approve("Pay?", by="finance", within=timedelta(days=5))
            return asked.outcome

        return server

    async def decide_all(self, choice: Any = "approve") -> None:
        async with self.inbox() as inbox:
            for item in await inbox.items(ItemFilter("shop", open=True)):
                await self.say(inbox, item, ANNA, choice)


@pytest.fixture
def shop(tmp_path: Path) -> UnusualShop:
    return UnusualShop(tmp_path)


@pytest.mark.parametrize("can", [NOTHING, FORMS, TASKS], ids=["nothing", "forms", "tasks"])
async def test_an_approval_by_others_is_never_put_to_the_client_as_a_returned_ask(
    shop: UnusualShop, can: dict[str, Any]
) -> None:
    result = await shop.send("returned", can)
    assert "inputRequests" not in result
    assert len(await shop.open_items()) == 1


async def test_branches_wait_for_the_client_first_and_then_for_others(
    shop: UnusualShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.5)
    asked = await shop.send("branches", FORMS)
    assert list(asked["inputRequests"]) == ["number"]
    answers = {"number": {"action": "accept", "content": {"n": 1}}}
    waits = await shop.send(
        "branches", FORMS, requestState=asked["requestState"], inputResponses=answers
    )
    assert not waits.get("inputRequests")
    assert sorted(item.key for item in await shop.open_items()) == ["money", "ops"]
    await shop.decide_all()
    async with asyncio.timeout(20):
        while waits["resultType"] != "complete":
            waits = await shop.send("branches", FORMS, requestState=waits["requestState"])
    assert waits["content"][0]["text"] == "('approved', 'approved') {'n': 1}"


async def test_a_task_lives_longer_than_people_may_decide_about_it(shop: UnusualShop) -> None:
    id = (await shop.send("long", TASKS))["taskId"]
    async with shop.server().running(), asyncio.timeout(20):
        for pause in back_off(0.02, 0.2):
            if await shop.open_items():
                break
            await asyncio.sleep(pause)
    (item,) = await shop.open_items()
    async with shop.inbox() as inbox:
        row = await inbox.task(item.task)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert row.expires > item.expires, "a decision must find its call"
    seen = await shop.send(can=TASKS, method="tasks/get", taskId=id)
    assert seen["ttlMs"] > timedelta(days=5).total_seconds() * 1000


async def test_a_decision_counts_although_the_client_could_be_asked_by_now(
    shop: UnusualShop,
) -> None:
    id = (await shop.send("own", TASKS))["taskId"]
    await shop.send(can={**TASKS, **FORMS}, method="tasks/get", taskId=id)
    await shop.decide(who=CARL)
    async with shop.server().running(), asyncio.timeout(20):
        seen: dict[str, Any] = {}
        for pause in back_off(0.02, 0.2):
            seen = await shop.send(can={**TASKS, **FORMS}, method="tasks/get", taskId=id)
            if seen["status"] != "working":
                break
            await asyncio.sleep(pause)
    assert seen["status"] == "completed"
    assert seen["result"]["content"][0]["text"] == "approved signed-in"


async def test_a_decision_is_bound_to_the_words_that_were_read(
    shop: UnusualShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.5)
    shop.price.write_text("10 EUR")
    await shop.send("renamed")
    await shop.decide()
    shop.price.write_text("1000 EUR")
    assert "Not done yet" in await shop.text("renamed")
    assert (await shop.shown()).message == "Refund 1000 EUR?"
    await shop.decide()
    assert await shop.text("renamed") == "approved 1000 EUR"


async def test_the_same_call_many_times_at_once_is_held_once_and_paid_once(
    shop: UnusualShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 2.0)
    texts = await asyncio.gather(*(shop.text() for _ in range(6)))
    assert all("Not done yet" in text for text in texts)
    assert len(await shop.open_items()) == 1
    await shop.decide()
    async with shop.server().running(), shop.server().running():
        results = await asyncio.gather(*(shop.text() for _ in range(4)))
    assert any(text.startswith("receipt 4711") for text in results)
    assert shop.refunds() == ["4711"]
