"""Calls that wait for somebody else, on clients of every kind; each request on a new server."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon import ConfigError, Context, Server
from antiphon.errors import HandlerError
from antiphon.protocol.retry import back_off
from tests.console.shop import ANNA, BO, CARL, FORMS, NOTHING, TASKS, URLS, Shop
from tests.legacy.wire import Old, old, serving
from tests.transports.wire import call, mirrored, request

DONE = "receipt 4711, approved by anna, fine"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize("can", [NOTHING, FORMS, URLS], ids=["nothing", "forms", "urls"])
async def test_a_client_without_tasks_is_told_to_come_back(shop: Shop, can: dict[str, Any]) -> None:
    result = await shop.send(can=can, arguments={"order": "4711", "reason": "broken"})
    text = result["content"][0]["text"]
    assert result["isError"] is True
    for words in ("Not done yet", "approval by finance", "It goes on only then", "call this"):
        assert words in text
    assert "anna" not in text
    face = await shop.shown()
    assert (face.message, face.why) == ("Refund order 4711?", "broken")
    assert face.details == (("Order", "4711"),)
    assert shop.refunds() == []
    await shop.decide()
    assert await shop.text(can=can, arguments={"order": "4711", "reason": "broken"}) == DONE
    assert shop.refunds() == ["4711"]


async def test_a_repeated_call_finds_the_held_one_and_collects_once(shop: Shop) -> None:
    await shop.send()
    assert "Not done yet" in await shop.text()
    assert len(await shop.open_items()) == 1
    assert "Not done yet" in await shop.text(arguments={"order": "9"})
    assert len(await shop.open_items()) == 2, "other arguments are another call"
    assert "Not done yet" in await shop.text(user="dora")
    assert len(await shop.open_items()) == 3, "another caller is another call"


async def test_after_the_result_was_collected_a_call_is_a_new_one(shop: Shop) -> None:
    await shop.send()
    await shop.decide()
    assert await shop.text() == DONE
    assert "Not done yet" in await shop.text()
    await shop.decide("decline")
    assert await shop.text() == "Not refunded: declined."
    assert shop.refunds() == ["4711"]


async def test_the_refund_happens_although_nobody_comes_back(shop: Shop) -> None:
    await shop.send()
    await shop.decide()
    await shop.work()
    assert shop.refunds() == ["4711"]
    assert await shop.text() == DONE
    assert shop.refunds() == ["4711"]


async def test_a_client_with_tasks_gets_a_task_that_stays_working(shop: Shop) -> None:
    made = await shop.send(can=TASKS)
    assert (made["resultType"], made["status"]) == ("task", "working")
    assert "It goes on only then" in made["statusMessage"]
    id = made["taskId"]
    again = await shop.send(can=TASKS)
    assert again["taskId"] == id
    seen = await shop.send(can=TASKS, method="tasks/get", taskId=id)
    assert seen["status"] == "working"
    await shop.decide()
    await shop.work()
    done = await shop.send(can=TASKS, method="tasks/get", taskId=id)
    assert done["status"] == "completed"
    assert done["result"]["content"][0]["text"] == DONE


async def test_a_task_that_is_cancelled_withdraws_its_question(shop: Shop) -> None:
    id = (await shop.send(can=TASKS))["taskId"]
    await shop.send(can=TASKS, method="tasks/cancel", taskId=id)
    assert await shop.open_items() == []
    assert shop.refunds() == []


async def test_nobody_in_time_is_never_a_yes(shop: Shop) -> None:
    assert "Not done yet" in await shop.text("brief", arguments={})
    await asyncio.sleep(0.4)
    assert await shop.text("brief", arguments={}) == "expired"


async def test_two_people_are_needed_and_named(shop: Shop) -> None:
    await shop.send("both")
    await shop.decide(who=ANNA)
    assert "Not done yet" in await shop.text("both")
    await shop.decide(who=BO)
    assert await shop.text("both") == "approved ['anna', 'bo']"


async def test_the_caller_approves_in_the_form_where_the_client_has_one(shop: Shop) -> None:
    asked = await shop.send("own", FORMS)
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"approve": True}}}
    token = asked["requestState"]
    text = await shop.text("own", FORMS, requestState=token, inputResponses=answers)
    assert text == "approved client"
    assert await shop.open_items() == []


async def test_the_caller_approves_on_the_page_where_the_client_opens_urls(shop: Shop) -> None:
    asked = await shop.send("own", URLS)
    (ask,) = asked["inputRequests"].values()
    (item,) = await shop.open_items()
    assert ask["params"]["url"] == f"http://127.0.0.1:8401/console/ask/{item.id}"
    await shop.decide(who=CARL)
    answers = {"approve": {"action": "accept"}}
    token = asked["requestState"]
    text = await shop.text("own", URLS, requestState=token, inputResponses=answers)
    assert text == "approved signed-in"


async def test_opening_the_page_is_no_approval(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.1)
    asked = await shop.send("own", URLS)
    answers = {"approve": {"action": "accept"}}
    again = await shop.send("own", URLS, requestState=asked["requestState"], inputResponses=answers)
    assert again["resultType"] == "input_required"
    assert not again.get("inputRequests")
    assert len(await shop.open_items()) == 1
    for _ in range(8):
        again = await shop.send("own", URLS, requestState=again["requestState"])
        if again["resultType"] == "complete":
            break
    assert "Not done yet" in again["content"][0]["text"]
    await shop.decide(who=CARL)
    assert await shop.text("own", URLS) == "approved signed-in"


async def test_a_client_that_declines_to_open_the_page_withdraws(shop: Shop) -> None:
    asked = await shop.send("own", URLS)
    answers = {"approve": {"action": "decline"}}
    token = asked["requestState"]
    text = await shop.text("own", URLS, requestState=token, inputResponses=answers)
    assert text == "cancelled -"
    assert await shop.open_items() == []


async def test_a_caller_whom_nobody_knows_cannot_decide_for_himself(shop: Shop) -> None:
    assert await shop.text("own", NOTHING, user=None) == "unavailable -"


async def test_a_form_first_and_an_approval_by_others_after_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.held._WAIT", 0.1)
    asked = await shop.send("after_form", FORMS, arguments={})
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"n": 3}}}
    waits = await shop.send(
        "after_form", FORMS, arguments={}, requestState=asked["requestState"],
        inputResponses=answers,
    )  # fmt: skip
    assert waits["resultType"] == "input_required"
    assert not waits.get("inputRequests")
    await shop.decide()
    async with shop.server().running():
        text = ""
        while "approved" not in text:
            waits = await shop.send(
                "after_form", FORMS, arguments={}, requestState=waits["requestState"]
            )
            text = str(waits.get("content"))
    assert waits["content"][0]["text"] == "3 approved"


@pytest.mark.parametrize(
    ("choice", "words"),
    [("approve", "deleted orders"), ("decline", "Declined by ops. Nothing was done")],
)
async def test_a_tool_is_approved_before_its_first_line(
    shop: Shop, choice: str, words: str
) -> None:
    arguments = {"name": "orders"}
    waits = await shop.text("delete", arguments=arguments)
    assert "Not done yet" in waits
    assert "Nothing has been done." in waits
    assert (await shop.shown()).message == "Delete orders?"
    await shop.decide(choice)
    assert words in await shop.text("delete", arguments=arguments)


@pytest.mark.parametrize("revision", ["2025-11-25", "2025-06-18"])
async def test_a_legacy_client_is_told_to_come_back(shop: Shop, revision: str) -> None:
    async with serving(shop.server()) as url, old(url, revision, {}) as client:
        assert "Not done yet" in await client.text("both", order="1")
    await shop.decide()
    await shop.decide(who=BO)
    # Callers without a name over HTTP are all alike: nobody may collect for another.
    assert await shop.open_items() == []


@pytest.mark.parametrize("can", [NOTHING, URLS], ids=["nothing", "urls"])
async def test_a_legacy_client_reads_what_helps_when_a_held_call_asks_it_later(
    shop: Shop, can: dict[str, Any]
) -> None:
    async with (
        serving(shop.server()) as url,
        httpx2.AsyncClient(timeout=20, headers={"x-user": "carl"}) as http,
    ):
        client = await Old(http, url, "2025-11-25").open(can)
        assert "Not done yet" in await client.text("visit_after")
        await shop.decide()
        for pause in back_off(0.02, 0.2):
            result = await client.tool("visit_after")
            if "Not done yet" not in result["content"][0]["text"]:
                break
            await asyncio.sleep(pause)
    text = result["content"][0]["text"]
    missing = "tasks (extensions" if can else "a person who opens a page (elicitation.url)"
    assert result["isError"] is True
    for words in (missing, "What was done before stays done", "will not help", "use a client that"):
        assert words in text
    assert shop.refunds() == ["acted"]


async def test_a_held_call_that_nobody_can_answer_later_ends_with_what_helps(shop: Shop) -> None:
    assert "Not done yet" in await shop.text("visit_after", URLS, arguments={})
    await shop.decide()
    await shop.work()
    server = shop.server()
    async with server.running(), asyncio.timeout(20):
        for pause in back_off(0.02, 0.2):
            meta = {"io.modelcontextprotocol/clientCapabilities": URLS}
            message = request("tools/call", meta=meta, name="visit_after", arguments={})
            answer = await call(server.asgi(), message, mirrored(message, x_user="carl")).run()
            if "error" in answer.json:
                break
            await asyncio.sleep(pause)
    error = answer.json["error"]
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"] == TASKS
    assert "a question of tool 'visit_after' after its approval needs tasks" in error["message"]


async def test_a_question_that_the_author_took_back_holds_nothing(shop: Shop) -> None:
    paused = await shop.send("changed_mind", arguments={})
    assert paused["resultType"] == "input_required"
    token = paused["requestState"]
    assert await shop.text("changed_mind", arguments={}, requestState=token) == "done without"
    assert await shop.open_items() == []


async def test_a_quick_decision_answers_the_waiting_request(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.console.shop.GRACE", 20.0)

    async def decide_soon() -> None:
        for pause in back_off(0.02, 0.2):
            if await shop.open_items():
                break
            await asyncio.sleep(pause)
        await shop.decide()

    async with (
        serving(shop.server()) as url,
        old(url, "2025-11-25", {}) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(decide_soon())
        result = await client.tool("refund", order="4711")
    assert result["content"][0]["text"] == DONE
    assert shop.refunds() == ["4711"]


async def test_an_approval_by_others_needs_a_console() -> None:
    server = Server("shop", environ={})

    @server.tool(holds=True)
    async def refund(ctx: Context) -> str:
        return str(await ctx.approve("Pay?", by="finance"))

    with pytest.raises(ConfigError, match=r"Server\(console=Console"):
        async with server.running():
            pass


async def test_a_tool_that_may_be_held_must_say_so(shop: Shop) -> None:
    server = shop.server()

    @server.tool
    async def forgot(ctx: Context) -> str:
        return str(await ctx.approve("Pay?", by="finance"))

    from antiphon import Client

    async with Client(server) as client:
        result = await client.call_tool("forgot", {})
    assert "holds=True" in str(result)


@pytest.mark.parametrize(
    "options",
    [
        {"by": " "},
        {"need": 2},
        {"need": 0, "by": "ops"},
        {"by": "ops", "fallback": "refuse"},
        {"by": "ops", "assurance": "client"},
        {"assurance": "passkey"},
        {"within": 0},
        {"labels": ("", "No")},
    ],
    ids=str,
)
def test_what_can_never_be_decided_is_refused(options: Any) -> None:
    from antiphon import Approve

    with pytest.raises(HandlerError, match="approve"):
        Approve("Pay?", **options)
