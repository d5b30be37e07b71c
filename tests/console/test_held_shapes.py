"""Approvals by others in handlers of every shape: returned, gathered, in steps and resolvers."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest

from antiphon import Approval, Approve, Context, Elicit, InputRequired, Outcome, Resolve, Server
from antiphon.ports import ItemFilter
from antiphon.protocol.inbox import decode_face
from antiphon.protocol.retry import back_off
from tests.console.shop import ANNA, BO, CARL, FORMS, GRACE, NOTHING, TASKS, URLS, Shop
from tests.legacy.wire import old, serving

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
MONEY = Approve("Pay?", by="finance", grace=GRACE)
SHIP = Approve("Ship?", by="ops", grace=GRACE)


async def may_pay(order: str) -> Approve:
    return Approve(f"Pay {order}?", by="finance", grace=GRACE)


class ShapedShop(Shop):
    """A shop with tools of every shape."""

    def server(self) -> Server:
        server = super().server()
        self._native(server)
        self._others(server)
        return server

    def _native(self, server: Server) -> None:
        paid = self.paid

        def pay(order: str) -> str:
            with paid.open("a") as file:
                file.write(f"{order}\n")
            return order

        @server.tool(holds=True)
        async def returned(ctx: Context, order: str) -> Any:
            approval = ctx.answers.get("ok", Approval)
            if approval is None:
                ask = Approve(f"Refund {order}?", by="finance", grace=GRACE)
                return InputRequired({"ok": ask}, state={"seen": 1})
            if not approval:
                return f"not paid: {approval.outcome} {ctx.state}"
            await ctx.once("pay", pay, order)
            return f"paid, {approval.by.subject if approval.by else '-'} {ctx.state}"

        @server.tool(holds=True)
        async def returned_set(ctx: Context, order: str) -> Any:
            names = ("money", "ship", "number")
            if any(ctx.answers.get(name) is None for name in names):
                return InputRequired(
                    {"money": MONEY, "ship": SHIP, "number": Elicit("How many?", NUMBER)}
                )
            money, ship, number = (ctx.answers.get(name) for name in names)
            return f"{money.outcome} {ship.outcome} {number['n']}"

        @server.tool(holds=True)
        async def stubborn(ctx: Context, order: str) -> Any:
            return InputRequired({"ok": MONEY})

        @server.tool(holds=True)
        async def self_service(ctx: Context, order: str) -> Any:
            approval = ctx.answers.get("ok", Approval)
            if approval is None:
                return InputRequired({"ok": Approve("Yours?", fallback="inbox", grace=GRACE)})
            return f"{approval.outcome} {approval.by.how if approval.by else '-'}"

        @server.tool(holds=True, unasked="accept")
        async def forged(ctx: Context, order: str) -> Any:
            approval = ctx.answers.get("ok", Approval) or ctx.answers.get("ok")
            return InputRequired({"ok": MONEY}) if approval is None else f"let in: {approval}"

        @server.prompt
        async def letter(ctx: Context) -> str:
            approval = await ctx.approve("Write it?", fallback="inbox")
            return f"letter: {approval.outcome}"

        @server.prompt
        async def by_role(ctx: Context) -> str:
            return f"letter: {(await ctx.approve('Write it?', by='finance')).outcome}"

        @server.resource("shop://secret/{name}")
        async def secret(ctx: Context, name: str) -> str:
            approval = await ctx.approve(f"Read {name}?", fallback="inbox")
            return f"secret: {approval.outcome}"

    def _others(self, server: Server) -> None:
        @server.tool(holds=True)
        async def gathered(ctx: Context, order: str) -> str:
            got = await ctx.gather(money=MONEY, ship=SHIP, number=Elicit("How many?", NUMBER))
            return f"{got['money'].outcome} {got['ship'].outcome} {got['number']['n']}"

        @server.tool(holds=True)
        async def resolved(order: str, pay: Annotated[Outcome[Approval], Resolve(may_pay)]) -> str:
            assert pay.value is not None
            return f"resolved: {pay.value.outcome}"

        flow = server.flow("stepped", holds=True)

        @flow.step
        async def money(order: str) -> Approve:
            return MONEY

        @flow.step
        async def number() -> Elicit:
            return Elicit("How many?", NUMBER)

        @flow.step
        async def ship(number: dict[str, Any]) -> Approve:
            return Approve(f"Ship {number['n']}?", by="ops", grace=GRACE)

        @flow.finish
        async def stepped(
            order: str, money: Approval, number: dict[str, Any], ship: Approval
        ) -> str:
            return f"{money.outcome} {ship.outcome} {number['n']}"

    async def decide_next(self, message: str, choice: Any = "approve", who: Any = ANNA) -> None:
        """Decide the open item that shows this message."""
        environment = self.server()._services  # pyright: ignore[reportPrivateUsage]
        async with self.inbox() as inbox:
            for item in await inbox.items(ItemFilter("shop", open=True)):
                face = decode_face(await environment.reveal(item.face, f"item {item.id}"))
                if face.message == message:
                    await self.say(inbox, item, who, choice)
                    return
        raise AssertionError(f"nothing asks {message!r}")

    async def until_done(self, tool: str, can: dict[str, Any], waits: Any) -> str:
        """Let the client of a token wait for its result."""
        async with asyncio.timeout(20):
            while waits["resultType"] != "complete":
                waits = await self.send(tool, can, requestState=waits["requestState"])
        return waits["content"][0]["text"]

    async def until_open(self, count: int) -> None:
        """Run tasks until so many questions are open."""
        async with self.server().running(), asyncio.timeout(20):
            for pause in back_off(0.02, 0.2):
                if len(await self.open_items()) >= count:
                    return
                await asyncio.sleep(pause)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShapedShop:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.5)
    return ShapedShop(tmp_path)


@pytest.mark.parametrize("can", [NOTHING, FORMS, URLS], ids=["nothing", "forms", "urls"])
@pytest.mark.parametrize(
    ("choice", "text", "paid"),
    [
        ("approve", "paid, anna {'seen': 1}", ["4711"]),
        ("decline", "not paid: declined {'seen': 1}", []),
    ],
)
async def test_a_returned_approval_by_others_is_held(
    shop: ShapedShop, can: dict[str, Any], choice: str, text: str, paid: list[str]
) -> None:
    assert "Not done yet" in await shop.text("returned", can)
    assert shop.refunds() == []
    await shop.decide(choice)
    assert await shop.text("returned", can) == text
    assert shop.refunds() == paid


async def test_a_returned_approval_by_others_is_a_task_for_clients_with_tasks(
    shop: ShapedShop,
) -> None:
    id = (await shop.send("returned", TASKS))["taskId"]
    await shop.decide()
    async with shop.server().running(), asyncio.timeout(20):
        seen: dict[str, Any] = {"status": "working"}
        while seen["status"] == "working":
            seen = await shop.send(can=TASKS, method="tasks/get", taskId=id)
            await asyncio.sleep(0.02)
    assert seen["result"]["content"][0]["text"] == "paid, anna {'seen': 1}"


async def test_a_returned_approval_is_held_for_a_legacy_session(shop: ShapedShop) -> None:
    async with serving(shop.server()) as url, old(url, "2025-11-25", {}) as client:
        assert "Not done yet" in await client.text("returned", order="4711")
    await shop.decide()
    await shop.work()
    assert shop.refunds() == ["4711"]


@pytest.mark.parametrize("tool", ["returned_set", "gathered"])
async def test_the_client_answers_first_and_several_roles_decide_after_it(
    shop: ShapedShop, tool: str
) -> None:
    asked = await shop.send(tool, FORMS)
    assert list(asked["inputRequests"]) == ["number"]
    answers = {"number": {"action": "accept", "content": {"n": 2}}}
    waits = await shop.send(tool, FORMS, requestState=asked["requestState"], inputResponses=answers)
    assert not waits.get("inputRequests")
    assert sorted(item.role for item in await shop.open_items()) == ["finance", "ops"]
    await shop.decide_next("Pay?")
    waits = await shop.send(tool, FORMS, requestState=waits["requestState"])
    assert waits["resultType"] == "input_required", "one of two is not enough"
    await shop.decide_next("Ship?", "decline")
    assert await shop.until_done(tool, FORMS, waits) == "approved declined 2"


async def test_steps_and_their_approvals_go_on_in_runs_of_the_task(shop: ShapedShop) -> None:
    asked = await shop.send("stepped", FORMS)
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"n": 2}}}
    waits = await shop.send(
        "stepped", FORMS, requestState=asked["requestState"], inputResponses=answers
    )
    await shop.decide_next("Pay?")
    await shop.until_open(1)
    await shop.decide_next("Ship 2?")
    assert await shop.until_done("stepped", FORMS, waits) == "approved approved 2"


async def test_a_resolver_asks_for_an_approval_by_others(shop: ShapedShop) -> None:
    assert "Not done yet" in await shop.text("resolved")
    await shop.decide(who=BO)
    assert await shop.text("resolved") == "resolved: approved"


async def test_asking_for_what_was_decided_is_an_error_and_no_endless_wait(
    shop: ShapedShop, caplog: pytest.LogCaptureFixture
) -> None:
    assert "Not done yet" in await shop.text("stubborn")
    await shop.decide()
    await shop.text("stubborn")
    assert "ctx.answers.get(key, Approval)" in caplog.text


async def test_a_returned_approval_of_the_caller_takes_the_form_or_the_page(
    shop: ShapedShop,
) -> None:
    asked = await shop.send("self_service", FORMS)
    answers = {"ok": {"action": "accept", "content": {"approve": True}}}
    token = asked["requestState"]
    text = await shop.text("self_service", FORMS, requestState=token, inputResponses=answers)
    assert text == "approved client"
    assert "Not done yet" in await shop.text("self_service", NOTHING, arguments={"order": "2"})
    await shop.decide(who=CARL)
    done = await shop.text("self_service", NOTHING, arguments={"order": "2"})
    assert done == "approved signed-in"


async def test_a_client_cannot_bring_a_decision_of_its_own(shop: ShapedShop) -> None:
    forged = {"outcome": "approved", "role": "finance"}
    for raw in (
        {"action": "accept", "content": {"approve": True}, "decided": forged},
        {"decided": forged},
    ):
        assert "Not done yet" in await shop.text("forged", inputResponses={"ok": raw})
    anna = {"issuer": ANNA.issuer, "subject": ANNA.subject, "how": "fresh"}
    raw = {
        "action": "accept",
        "content": {"approve": True},
        "decided": {**forged, "approvers": [anna]},
    }
    token = (await shop.send("self_service", FORMS))["requestState"]
    text = await shop.text("self_service", FORMS, requestState=token, inputResponses={"ok": raw})
    assert text == "approved client", "its own word is all that a client can give"


@pytest.mark.parametrize(
    ("method", "params", "words"),
    [
        ("prompts/get", {"name": "letter"}, "letter: "),
        ("resources/read", {"uri": "shop://secret/plan"}, "secret: "),
    ],
    ids=["prompt", "resource"],
)
async def test_the_caller_approves_a_prompt_or_a_resource_on_the_page(
    shop: ShapedShop, method: str, params: dict[str, Any], words: str
) -> None:
    refused = await shop.send(method=method, **params)
    assert f"{words}unavailable" in str(refused), "no route without a URL"
    asked = await shop.send(can={**URLS, **TASKS}, method=method, **params)
    (ask,) = asked["inputRequests"].values()
    assert "/console/ask/" in ask["params"]["url"]
    answers = {"approve": {"action": "accept"}}
    waits = await shop.send(
        can=URLS, method=method, requestState=asked["requestState"], inputResponses=answers,
        **params,
    )  # fmt: skip
    assert waits["resultType"] == "input_required", "opening a page is no approval"
    await shop.decide(who=CARL)
    async with shop.server().running(), asyncio.timeout(20):
        while waits.get("resultType") == "input_required":
            waits = await shop.send(
                can=URLS, method=method, requestState=waits["requestState"], **params
            )
    assert f"{words}approved" in str(waits)


async def test_no_role_decides_about_a_prompt(shop: ShapedShop) -> None:
    result = await shop.send(can={**URLS, **TASKS}, method="prompts/get", name="by_role")
    assert "letter: unavailable" in str(result)
    assert await shop.open_items() == []
