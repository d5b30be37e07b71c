"""Forms on the pages: every kind of field, mistakes, the keyboard, and browsers without scripts."""

import json
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import SignIn
from tests.browser.people import PHONE
from tests.browser.running import RunningShop

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

ANSWER: dict[str, Any] = {
    "name": "Carl Dahl",
    "mail": "carl@example.org",
    "site": "https://example.org/shop",
    "day": "2026-12-01",
    "when": "2026-11-20T12:30:00Z",
    "size": 3,
    "price": 12.5,
    "gift": False,
    "colour": "blue",
    "plan": "l",
    "tags": ["cold", "urgent"],
    "extra": ["c"],
}


async def fill(page: Page) -> None:
    """Fill in everything that has no default, but for the tags."""
    for label, text in (
        ("Name", "Carl Dahl"),
        ("E-mail", "carl@example.org"),
        ("Web page", "https://example.org/shop"),
        ("Day", "2026-12-01"),
        ("Price", "12.5"),
        ("Note", "Ring twice."),
    ):
        await page.get_by_label(label, exact=True).fill(text)
    await page.get_by_role("group", name="Gift").get_by_label("No", exact=True).check()
    await page.get_by_role("combobox", name="Colour", exact=True).select_option("blue")
    await page.get_by_role("combobox", name="Plan", exact=True).select_option(label="Large")


async def values(page: Page) -> dict[str, Any]:
    """Return what the form holds now."""
    found: dict[str, list[str]] = {}
    for field in await page.locator("#decide :is(input, select, textarea)").all():
        kind, name = await field.get_attribute("type"), await field.get_attribute("name")
        if kind == "hidden" or (kind in ("radio", "checkbox") and not await field.is_checked()):
            continue
        found.setdefault(str(name), []).append(await field.input_value())
    return found


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
async def test_every_kind_of_field_is_answered_and_a_mistake_costs_nothing(
    shop: RunningShop, sign_in: SignIn, carl: str, mark: str, *, scripts: bool
) -> None:
    task = await shop.call("parcel", carl, forms=True, order=mark)
    options = {"viewport": PHONE, "java_script_enabled": scripts}
    async with sign_in(shop, "Carl Dahl", **options) as caller:
        page = caller.page
        await caller.open_when_asked(f"How do we send order {mark}?")
        await fill(page)
        written = await values(page)
        assert written["field-when"] == ["2026-11-20T12:30"], "a default, in UTC"
        await caller.press("Answer")
        summary = page.get_by_role("alert")
        await expect(summary).to_contain_text("Some answers do not fit.")
        await expect(summary).to_be_focused()
        assert await values(page) == written
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        tags = page.get_by_role("group", name="Tags")
        await expect(tags).to_be_focused()
        for tag in ("cold", "urgent"):
            await tags.get_by_role("checkbox", name=tag, exact=True).check()
        await caller.press("Answer")
        assert (await caller.status()).startswith("Answered by Carl Dahl")
    assert json.loads(await shop.ended(task, carl)) == ANSWER


async def test_enter_in_a_field_decides_nothing_and_a_radio_button_can_be_taken_back(
    sqlite_shop: RunningShop, sign_in: SignIn, carl: str, mark: str
) -> None:
    await sqlite_shop.call("parcel", carl, forms=True, order=mark)
    async with sign_in(sqlite_shop, "Carl Dahl") as caller:
        page = caller.page
        await caller.open_when_asked(f"How do we send order {mark}?")
        await page.get_by_label("Name", exact=True).fill("Carl Dahl")
        await page.keyboard.press("Enter")
        first = page.get_by_role("group", name="Call first")
        await first.get_by_label("Yes", exact=True).check()
        await first.get_by_label("No answer", exact=True).check()
        await page.get_by_label("Price", exact=True).press("Enter")
        await expect(page.get_by_label("Name", exact=True)).to_have_value("Carl Dahl")
        await expect(page.get_by_role("button", name="Answer", exact=True)).to_be_enabled()
    assert await sqlite_shop.decisions(caller.subject) == []


async def test_the_first_answer_wins_and_the_page_says_so(
    sqlite_shop: RunningShop, sign_in: SignIn, carl: str, mark: str
) -> None:
    task = await sqlite_shop.call("parcel", carl, forms=True, order=mark)
    async with sign_in(sqlite_shop, "Carl Dahl") as caller:
        await caller.open_when_asked(f"How do we send order {mark}?")
        seen = await sqlite_shop.send("tasks/get", carl, forms=True, taskId=task)
        [key] = seen["inputRequests"]
        answers = {key: {"action": "accept", "content": ANSWER}}
        await sqlite_shop.send(
            "tasks/update", carl, forms=True, taskId=task, inputResponses=answers
        )
        status = caller.page.get_by_role("status").filter(has_text="answered in the client")
        await expect(status).to_be_visible()
    assert json.loads(await sqlite_shop.ended(task, carl)) == ANSWER


async def test_the_keyboard_is_enough(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        page = anna.page
        await anna.inbox()
        await page.keyboard.press("Tab")
        assert await anna.focused() == "Skip to content"
        await page.keyboard.press("Enter")
        await _tab_to(page, "link", refund.message)
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name=refund.message, exact=True).wait_for()
        await _tab_to(page, "textbox", "Note")
        await page.keyboard.type("By hand.")
        seen = await _tab_to(page, "button", "Approve")
        assert "Decline" in seen, "declining comes first"
        await page.keyboard.press("Enter")
        said = page.get_by_role("status").filter(has_text="Approved by Anna Berg")
        await expect(said).to_be_visible()
    assert "note By hand." in await refund.ended()


async def _tab_to(page: Page, role: Any, name: str) -> list[str]:
    """Press Tab until something has the focus; returns what had it on the way."""
    wanted = page.get_by_role(role, name=name, exact=True)
    seen: list[str] = []
    for _ in range(15):
        await page.keyboard.press("Tab")
        seen.append(await page.evaluate("document.activeElement.textContent"))
        if await wanted.evaluate("one => one === document.activeElement"):
            outline = await wanted.evaluate(
                "one => [getComputedStyle(one), getComputedStyle(one, '::after')]"
                ".map(style => style.outlineStyle)"
            )
            assert "solid" in outline, "the focus is seen"
            return seen
    raise AssertionError(f"{name} is not reached: {seen}")


async def test_everything_works_without_scripts(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund, other = await shop.refund(role, carl), await shop.refund(f"{role}-b", carl)
    options = {"viewport": PHONE, "java_script_enabled": False}
    async with sign_in(shop, "Anna Berg", role, f"{role}-b", **options) as anna:
        page = anna.page
        await anna.inbox()
        await page.get_by_role("combobox", name="Role").select_option(role)
        await anna.press("Show")
        await expect(page.get_by_role("link", name=other.message, exact=True)).to_have_count(0)
        await page.get_by_role("link", name=refund.message, exact=True).click()
        await page.get_by_text("Everything that is bound").click()
        await expect(page.get_by_role("definition").filter(has_text=role).first).to_be_visible()
        await anna.press("Approve")
        assert (await anna.status()).startswith("Approved by Anna Berg")
        await page.get_by_role("link", name="Inbox", exact=True).click()
        await page.get_by_role("link", name="Decided", exact=True).click()
        await expect(page.get_by_role("link", name=refund.message, exact=True)).to_be_visible()
        await anna.press("Sign out")
        await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    async with sign_in(shop, "Carl Dahl", **options) as caller:
        await caller.open(other.message, "mine")
        await caller.press("Withdraw this request")
        assert (await caller.status()).startswith("Withdrawn")
    assert (await refund.ended()).startswith("Refunded")
