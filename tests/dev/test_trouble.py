"""Servers that misbehave: the pages stay small and usable, and say what has happened."""

import asyncio

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.people import violations
from tests.dev.browsing import Developer, Workshop, developer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

LARGEST_PAGE = 500_000
SHORT_LEASE = """from datetime import timedelta
from antiphon import Limits

server = Server("workshop", limits=Limits(lease=timedelta(seconds=2)))"""


async def test_a_flood_of_output_notes_and_results_leaves_the_page_small(
    bench: Developer,
) -> None:
    page = bench.page
    await bench.call("flood", letters="100000")
    shown = await bench.result()
    assert shown.startswith("<script>alert(1)</script>")
    assert shown.endswith("…")
    assert len(await page.content()) < LARGEST_PAGE
    await page.get_by_text("Raw wire").click()
    await page.locator("#wire summary").last.click()
    await expect(page.locator("#wire")).to_contain_text("more messages are not shown")
    await page.get_by_text("What the server printed").click()
    await expect(page.locator("#output")).to_contain_text("\\x1b[31mxxx")
    assert await violations(page) == []


async def test_an_effect_that_ended_the_process_is_settled_by_the_operator(
    browser: Browser, own_workshop: Workshop
) -> None:
    async with developer(browser, own_workshop.link) as person:
        page, state = person.page, person.page.locator("#dev-bar .state")
        first = await state.inner_text()
        own_workshop.edit('server = Server("workshop")', SHORT_LEASE)
        await expect(state).not_to_have_text(first)
        await expect(state).to_contain_text("running")
        await person.call("pay")
        form = person.ask("Whom?")
        await form.get_by_label("target").fill("Ada")
        await form.get_by_role("button", name="Answer").click()
        problem = page.locator("#result .problem")
        await expect(problem).to_contain_text("process ended while it ran this round")
        await expect(page.locator("#dev-bar")).to_contain_text("has ended by itself")
        await page.get_by_text("What the server printed").click()
        await expect(page.locator("#output")).to_contain_text("exit code 9")
        # It is started again although a child of its predecessor holds the old output.
        await page.get_by_role("button", name="Restart the server").click()
        await expect(state).to_contain_text("running")
        call = page.url
        await settle(page, person.url)
        await expect(page.locator("main")).to_contain_text("it happened ada")
        await page.goto(call)
        said = await person.do("Send again")
        assert "result: Paid." in said["came"], said


async def settle(page: Page, url: str) -> None:
    """Say on the operators' page that the effect happened, as soon as it counts as uncertain."""
    form = page.locator("form.uncertain")
    for _ in range(40):
        await page.goto(f"{url}/ops")
        if await form.count():
            break
        await asyncio.sleep(0.5)
    await expect(form).to_contain_text("vanish")
    assert await violations(page) == []
    await form.get_by_role("button", name="It happened").click()
    await expect(form.get_by_label("Reason")).to_be_focused()  # nothing is settled without one
    await form.get_by_label("Reason").fill("the bank has it")
    await form.get_by_role("button", name="It happened").click()
    await expect(page.locator("form.uncertain")).to_have_count(0)
