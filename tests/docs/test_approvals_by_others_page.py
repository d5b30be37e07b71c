"""The example of the page on approvals by somebody else, and what the page says of it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon import Limits, Server
from antiphon.apps.console.notices import TRIES
from antiphon.apps.console.sessions import IDLE, LOGIN, LONGEST
from antiphon.console import OneTimeLink, Person
from antiphon.protocol.retry import back_off
from antiphon.testing import KEY
from docs_src.approvals_by_others import ISSUER, Sale, make_console, make_server
from tests.console.console_inbox import form_of, statuses
from tests.transports.wire import call, mirrored, request

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "approvals-by-others.md").read_text().split())
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
REFUND = {"order": "4711", "cents": 12000, "reason": "broken"}
ORIGIN = "https://mcp.example.com"
OURS = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}


class Shop:
    """The example's server, who calls it and who decides."""

    def __init__(self, server: Server, sales: dict[str, Sale]) -> None:
        self.sales = sales
        self._app: Any = server.asgi()
        self._pages = server.pages()

    async def send(self, method: str = "tools/call", can: Any = TASKS, **params: Any) -> Any:
        message = request(
            method, meta={"io.modelcontextprotocol/clientCapabilities": can}, **params
        )
        more = {"mcp_name": params["taskId"]} if "taskId" in params else {}
        answer = await call(self._app, message, mirrored(message, x_user="carl", **more)).run()
        return answer.result

    async def ended(self, task: str) -> str:
        for pause in back_off(0.02, 0.2):
            seen = await self.send("tasks/get", taskId=task)
            if seen["status"] != "working":
                return seen["result"]["content"][0]["text"]
            await asyncio.sleep(pause)
        raise AssertionError

    @asynccontextmanager
    async def browser(self, subject: str, *groups: str) -> AsyncIterator[httpx.AsyncClient]:
        """A browser in which somebody of these groups has signed in."""
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(
            transport=transport, base_url=ORIGIN, headers=OURS, follow_redirects=True
        ) as client:
            assert self._pages is not None
            link = await self._pages.make_link(Person(ISSUER, subject, subject.title(), groups))
            await client.post(link)
            yield client


async def first_item(browser: httpx.AsyncClient) -> httpx.Response:
    """Open what the inbox lists first."""
    page = await browser.get("/console/inbox")
    found = re.search(r'href="(/console/ask/\w+)"', page.text)
    assert found is not None, page.text
    return await browser.get(found[1])


async def press(browser: httpx.AsyncClient, item: httpx.Response, choice: str) -> httpx.Response:
    return await browser.post(str(item.url), data=form_of(item, choice))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    console = replace(make_console(), login=OneTimeLink(), notify=())
    sales = {"4711": Sale("ACME Ltd", 24000)}
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    server = make_server(console, sales, store, environ={"ANTIPHON_KEYS": KEY})
    async with server.running(), asyncio.timeout(30):
        yield Shop(server, sales)


async def test_a_refund_waits_for_finance_and_is_paid_once(shop: Shop) -> None:
    made = await shop.send(name="refund", arguments=REFUND)
    assert made["statusMessage"] in PAGE
    async with shop.browser("anna", "grp-finance") as anna:
        item = await first_item(anna)
        for words in ("Refund 120.00 EUR for order 4711?", "ACME Ltd", "240.00 EUR", "broken"):
            assert words in item.text
        page = await press(anna, item, "approve")
        assert statuses(page)[0].startswith("Approved by Anna")
    text = await shop.ended(made["taskId"])
    assert text == "Refunded, receipt R-4711-12000-anna, approved by finance."
    assert shop.sales["4711"].refunded


async def test_a_no_is_a_result_that_says_so(shop: Shop) -> None:
    made = await shop.send(name="refund", arguments=REFUND)
    async with shop.browser("anna", "grp-finance") as anna:
        await press(anna, await first_item(anna), "decline")
    assert await shop.ended(made["taskId"]) == "Not refunded: declined."
    assert not shop.sales["4711"].refunded


async def test_a_client_without_tasks_that_waits_gets_a_quick_decision(shop: Shop) -> None:
    waiting = asyncio.create_task(shop.send(can={}, name="refund", arguments=REFUND))
    async with shop.browser("anna", "grp-finance") as anna:
        for pause in back_off(0.02, 0.2):
            if "Refund 120.00" in (await anna.get("/console/inbox")).text:
                break
            await asyncio.sleep(pause)
        await press(anna, await first_item(anna), "approve")
    assert (await waiting)["content"][0]["text"].startswith("Refunded, receipt")


async def test_the_caller_cannot_decide_and_two_people_must(shop: Shop) -> None:
    made = await shop.send(name="delete", arguments={"order": "4711"})
    async with shop.browser("carl", "grp-finance") as carl:
        assert 'value="approve"' not in (await first_item(carl)).text
    for subject in ("anna", "bo"):
        assert "4711" in shop.sales
        async with shop.browser(subject, "grp-finance") as browser:
            await press(browser, await first_item(browser), "approve")
    assert await shop.ended(made["taskId"]) == "Deleted 4711."


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    limits = Limits()
    assert limits.decision.total_seconds() == 8 * 3600
    assert limits.collect.total_seconds() == 24 * 3600
    assert limits.inbox_items_per_principal == 100
    assert (IDLE, LONGEST, LOGIN) == (8 * 3600, 24 * 3600, 600)
    assert TRIES == 12
    for words in (
        "end after 8 hours without a request, and after 24 in any case",
        "works for ten minutes",
        "after twelve tries",
        "`Limits(collect=)`, 24 hours",
        "bounds the open questions of a caller, 100 unless set",
    ):
        assert words in PAGE


def test_the_page_says_what_is_proven_and_what_is_not() -> None:
    assert (
        "this server showed this digest to this signed-in issuer and subject, and that session "
        "pressed this button, once." in PAGE
    )
    assert "**Not proven**: that a human hand did it." in PAGE
