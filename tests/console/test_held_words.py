"""What a client reads while a call waits for people, and forms that only the inbox can answer."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon import Context, Elicit, InputRequired, Server
from antiphon.ports import ItemFilter
from antiphon.protocol.retry import back_off
from tests.console.shop import CARL, FORMS, GRACE, NOTHING, TASKS, URLS, Shop
from tests.legacy.wire import old, serving

FORM = {"type": "object", "properties": {"account": {"type": "string"}}, "required": ["account"]}
IMMEDIATE = "io.modelcontextprotocol/model-immediate-response"
PAGES = "http://127.0.0.1:8401/console/ask/"


@dataclass
class Account:
    """Where the money goes."""

    account: str


class AskingShop(Shop):
    """A shop that acts and asks around its approvals."""

    def server(self) -> Server:
        server = super().server()
        paid = self.paid

        def act(what: str) -> None:
            with paid.open("a") as file:
                file.write(f"{what}\n")

        @server.tool(holds=True)
        async def acted(ctx: Context) -> str:
            await ctx.once("act", act, "before")
            return (await ctx.approve("Go on?", by="finance", grace=GRACE)).outcome

        @server.tool(holds=True)
        async def account(ctx: Context) -> str:
            approval = await ctx.approve("Go?", by="finance", grace=GRACE)
            answer = await ctx.elicit("Which account?", FORM)
            return f"{approval.outcome} {answer['account']}"

        @server.tool(detach="refuse")
        async def detached(ctx: Context) -> str:
            await ctx.detach()
            return f"{(await ctx.elicit('Which account?', FORM))['account']}"

        @server.tool(task="required")
        async def returned(ctx: Context) -> str | InputRequired:
            answer = ctx.answers.get("account", Account)
            if answer is None:
                return InputRequired({"account": Elicit("Which account?", Account)})
            return answer.account

        return server

    async def answer(self, account: str) -> None:
        """Let the owner answer the one form that waits in the inbox."""
        environment = self.server()._services  # pyright: ignore[reportPrivateUsage]
        async with self.inbox() as inbox:
            (item,) = await inbox.items(ItemFilter("shop", open=True))
            assert (item.kind, item.role, item.owner) == ("form", "", CARL.identity)
            content = b'{"account":"%b"}' % account.encode()
            answer = await environment.protect(content, f"answer {item.id}")
            await self.say(inbox, item, CARL, "answer", answer=answer)

    async def until(self, id: str, can: dict[str, Any], word: str) -> Any:
        """Run the task until its status or its status message has a word."""
        async with self.server().running(), self.inbox() as kept, asyncio.timeout(100):
            store: Any = kept
            for pause in back_off(0.02, 0.2):
                row = await store.task(id)
                if word in f"{row.status} {row.message}":
                    break
                await asyncio.sleep(pause)
        return await self.send(can=can, method="tasks/get", taskId=id)


@pytest.fixture
def shop(tmp_path: Path) -> AskingShop:
    return AskingShop(tmp_path)


async def test_a_client_that_opens_pages_is_sent_to_one_although_it_takes_tasks(
    shop: AskingShop,
) -> None:
    asked = await shop.send("own", {**URLS, **TASKS})
    assert asked["resultType"] == "input_required"
    visit = asked["inputRequests"]["approve"]["params"]
    (item,) = await shop.open_items()
    assert (visit["mode"], visit["url"]) == ("url", PAGES + item.id)


async def test_a_task_says_where_its_caller_decides_and_that_it_may_be_refused(
    shop: AskingShop,
) -> None:
    made = await shop.send("own", TASKS)
    (item,) = await shop.open_items()
    message = f"Waits for you to decide at {PAGES}{item.id}. It goes on only then."
    assert made["statusMessage"] == message
    told = made["_meta"][IMMEDIATE]
    assert told.startswith(message)
    assert "pending" in told
    assert "may still be refused" in told
    assert IMMEDIATE not in (await shop.send("own", FORMS, arguments={"order": "2"}))["_meta"]


async def test_a_task_that_has_ended_no_longer_says_that_it_waits(shop: AskingShop) -> None:
    done = (await shop.send(can=TASKS))["taskId"]
    await shop.decide()
    await shop.work()
    seen = await shop.send(can=TASKS, method="tasks/get", taskId=done)
    assert seen["status"] == "completed"
    assert "statusMessage" not in seen
    left = (await shop.send(can=TASKS, arguments={"order": "2"}))["taskId"]
    await shop.send(can=TASKS, method="tasks/cancel", taskId=left)
    seen = await shop.send(can=TASKS, method="tasks/get", taskId=left)
    assert seen["status"] == "cancelled"
    assert "statusMessage" not in seen


async def test_what_was_done_before_a_question_is_not_denied(shop: AskingShop) -> None:
    first = await shop.text("acted", arguments={})
    again = await shop.text("acted", arguments={})
    task = (await shop.send("acted", TASKS, arguments={}))["statusMessage"]
    for words in (first, again, task):
        assert "What was done before stays done." in words
        assert "Nothing" not in words
    assert shop.refunds() == ["before"]


@pytest.mark.parametrize("tool", ["detached", "returned"])
async def test_a_form_of_a_task_is_in_the_inbox_where_the_client_has_none(
    shop: AskingShop, tool: str
) -> None:
    id = (await shop.send(tool, TASKS, arguments={}))["taskId"]
    seen = await shop.until(id, TASKS, "Waits")
    (item,) = await shop.open_items()
    assert "inputRequests" not in seen
    assert f"Waits for you to answer at {PAGES}{item.id}." in seen["statusMessage"]
    await shop.answer("A1")
    done = await shop.until(id, TASKS, "completed")
    assert done["result"]["content"][0]["text"] == "A1"
    assert "statusMessage" not in done


async def test_a_form_that_waits_in_the_inbox_is_shown_to_a_client_that_has_forms_by_now(
    shop: AskingShop,
) -> None:
    id = (await shop.send("detached", TASKS, arguments={}))["taskId"]
    await shop.until(id, TASKS, "Waits")
    both = {**TASKS, **FORMS}
    seen = await shop.send(can=both, method="tasks/get", taskId=id)
    assert seen["status"] == "input_required"
    (key,) = seen["inputRequests"]
    answers = {key: {"action": "accept", "content": {"account": "B2"}}}
    await shop.send(can=both, method="tasks/update", taskId=id, inputResponses=answers)
    assert await shop.open_items() == [], "the first answer counts"
    seen = await shop.send(can=both, method="tasks/get", taskId=id)
    assert "inputRequests" not in seen


async def test_a_held_call_asks_a_form_of_its_owner_where_the_client_can_nothing(
    shop: AskingShop,
) -> None:
    assert "Not done yet" in await shop.text("account", NOTHING, arguments={})
    await shop.decide()
    server = shop.server()
    async with server.running(), asyncio.timeout(20):
        for pause in back_off(0.02, 0.2):
            if await shop.open_items():
                break
            await asyncio.sleep(pause)
    (item,) = await shop.open_items()
    assert item.kind == "form"
    await shop.answer("C3")
    assert await shop.text("account", NOTHING, arguments={}) == "approved C3"


async def test_a_repeated_call_waits_no_longer_than_the_author_says(shop: AskingShop) -> None:
    await shop.send()
    began = asyncio.get_running_loop().time()
    assert "Not done yet" in await shop.text()
    assert asyncio.get_running_loop().time() - began < 10, "grace= is a tenth of a second"


async def test_a_legacy_session_hears_what_its_call_waits_for(shop: AskingShop) -> None:
    async with serving(shop.server()) as url, old(url, "2025-11-25", {}) as client:
        params = {"name": "both", "arguments": {"order": "1"}, "_meta": {"progressToken": "p"}}
        async with client.stream(client.request("tools/call", params)) as messages:
            told, answer = [message async for message in messages]
    assert told["method"] == "notifications/progress"
    waits = "Waits for approval by finance. It goes on only then."
    assert told["params"] == {"progressToken": "p", "progress": 0.0, "message": waits}
    assert "Not done yet" in answer["result"]["content"][0]["text"]
