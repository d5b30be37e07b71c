"""Every page for people who see, point or move badly, on phones and desks, by day and by night."""

import re
import struct
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import SignIn
from tests.browser.people import DESKTOP, PHONE, People, overflow, violations
from tests.browser.pictures import IMAGES, take
from tests.browser.running import RunningShop
from tests.child_processes import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

ZOOMED = {"width": 320, "height": 256}
"""What a window of 1280 pixels shows at a zoom of 400 %."""


async def looks_good(page: Page) -> None:
    """Check a page in both colour schemes and three widths."""
    await expect(page.get_by_role("heading", level=1)).to_have_count(1)
    for size in (ZOOMED, PHONE, DESKTOP):
        await page.set_viewport_size(size)  # pyright: ignore[reportArgumentType]
        assert await overflow(page) == 0, (page.url, size)
    grounds: set[str] = set()
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        assert await violations(page) == [], (page.url, scheme)
        grounds.add(
            await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        )
    assert len(grounds) == 2, "a light and a dark one"


async def test_the_pages_of_an_item_can_be_used_by_everybody(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl, reason="x" * 300, rules={"need": 2})
    async with (
        sign_in(sqlite_shop, "Anna Berg", role) as anna,
        sign_in(sqlite_shop, "Carl Dahl") as caller,
        sign_in(sqlite_shop, "Olaf By", "operator") as operator,
    ):
        await anna.open(refund.message)
        await anna.page.get_by_text("Everything that is bound").click()
        await looks_good(anna.page)
        address = anna.page.url
        await caller.page.goto(address.replace(anna.url, caller.url))
        await looks_good(caller.page)
        await operator.page.goto(address.replace(anna.url, operator.url))
        await expect(operator.page.get_by_role("heading")).to_have_text("A question of refund")
        await looks_good(operator.page)
        await anna.page.locator("input[name=digest]").evaluate("one => { one.value = '00' }")
        await anna.press("Approve")
        await expect(anna.page.get_by_role("alert")).to_be_visible()
        await looks_good(anna.page)
        await anna.page.get_by_role("textbox", name="Note").fill("y" * 200)
        await anna.press("Approve")
        await expect(anna.page.get_by_text("1 of 2 needed")).to_be_visible()
        await looks_good(anna.page)
        await caller.press("Withdraw this request")
        await expect(caller.page.get_by_text("Withdrawn")).to_be_visible()
        await looks_good(caller.page)


async def test_lists_can_be_used_by_everybody(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    async with sign_in(sqlite_shop, "Anna Berg", role, f"{role}-b") as anna:
        await anna.inbox()
        await expect(anna.page.get_by_text("Nothing waits for you.")).to_be_visible()
        await looks_good(anna.page)
        first = await sqlite_shop.refund(role, carl, order="4" * 60)
        await expect(anna.page.get_by_role("status")).to_contain_text("1 new")
        await looks_good(anna.page)
        await sqlite_shop.refund(role, carl, rules={"within": 600})
        await anna.open(first.message)
        await anna.press("Decline")
        await anna.inbox()
        soon = anna.page.get_by_text(re.compile(r"^\d min left"))
        await expect(soon).to_be_visible()
        await looks_good(anna.page)
        await anna.inbox("decided")
        await expect(anna.page.get_by_text("Declined")).to_be_visible()
        await looks_good(anna.page)


async def test_forms_and_their_mistakes_can_be_used_by_everybody(
    sqlite_shop: RunningShop, sign_in: SignIn, carl: str, mark: str
) -> None:
    await sqlite_shop.call("parcel", carl, forms=True, order=mark)
    async with sign_in(sqlite_shop, "Carl Dahl") as caller:
        await caller.open_when_asked(f"How do we send order {mark}?")
        await looks_good(caller.page)
        await caller.page.locator("#decide").evaluate("form => { form.noValidate = true }")
        await caller.press("Answer")
        await expect(caller.page.get_by_role("alert").get_by_role("link")).to_have_count(9)
        await looks_good(caller.page)


async def test_the_pages_of_somebody_who_is_not_signed_in_can_be_used_by_everybody(
    sqlite_shop: RunningShop, sign_in: SignIn, people: People, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        assert anna.person is not None
        await anna.page.goto(f"{sqlite_shop.url}/ask/nothing")
        await looks_good(anna.page)
        await anna.open(refund.message)
        await anna.page.get_by_role("textbox", name="Note").fill("z" * 200)
        await anna.page.context.clear_cookies()
        await anna.press("Approve")
        await expect(anna.page.get_by_role("heading")).to_have_text("Signed out")
        await looks_good(anna.page)
        link = await sqlite_shop.link(anna.person)
    async with people.nobody(sqlite_shop.url) as nobody:
        await nobody.inbox()
        await looks_good(nobody.page)
        await nobody.page.goto(link)
        await looks_good(nobody.page)


async def test_the_pictures_of_the_docs_can_be_made_and_are_shown(
    people: People, tmp_path: Path
) -> None:
    shop = RunningShop(f"sqlite:///{tmp_path / 'shop.db'}", tmp_path, alone=False)
    async with shop.running():
        taken = await take(people, shop, tmp_path)
    docs = (ROOT / "docs" / "approvals-by-others.md").read_text()
    assert {path.name for path in IMAGES.glob("*.png")} == {path.name for path in taken}
    for path in taken:
        assert f"](images/{path.name})" in docs
        assert _size(IMAGES / path.name) == _size(path)


def _size(path: Path) -> tuple[int, int]:
    """Return the width and height that a PNG names."""
    return struct.unpack(">II", path.read_bytes()[16:24])
