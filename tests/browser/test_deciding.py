"""People decide in browsers: one, two and three at once, on both stores and both kinds of pages."""

import asyncio
import re
import time

import pytest
from playwright.async_api import Route, expect

from tests.browser.conftest import SignIn
from tests.browser.people import PATIENCE, PHONE
from tests.browser.running import RunningShop

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

LATE = "It was too late: this is decided already, or its time is over."


@pytest.mark.parametrize(
    ("button", "words", "result", "paid"),
    [
        ("Approve", "Approved by Anna Berg", "Refunded, receipt R-", 1),
        ("Decline", "Declined by Anna Berg", "Not refunded: declined.", 0),
    ],
)
async def test_somebody_decides_and_the_call_goes_on(
    shop: RunningShop,
    sign_in: SignIn,
    role: str,
    carl: str,
    button: str,
    words: str,
    result: str,
    paid: int,
) -> None:
    refund = await shop.refund(role, carl, reason="The parcel was damaged.")
    async with sign_in(shop, "Anna Berg", role, viewport=PHONE) as anna:
        await anna.open(refund.message)
        page = anna.page
        for term, definition in (("Customer", "ACME Ltd"), ("Paid", "240.00 EUR")):
            await expect(page.get_by_role("term").filter(has_text=term)).to_be_visible()
            await expect(page.get_by_role("definition").filter(has_text=definition)).to_be_visible()
        await expect(page.get_by_role("figure")).to_contain_text("not checked")
        await page.get_by_role("textbox", name="Note", exact=True).fill("Seen the photos.")
        await anna.press(button)
        await expect(page.get_by_role("status").filter(has_text=words)).to_be_visible()
        assert (await anna.status()).startswith(words)
        await expect(page).to_have_title(re.compile(f"^{words.split()[0]} · Refund"))
        await expect(page.get_by_text("Seen the photos.")).to_be_visible()
        for name in ("Approve", "Decline"):
            await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        await anna.inbox("decided")
        await expect(page.get_by_role("link", name=refund.message, exact=True)).to_be_visible()
    assert (await refund.ended()).startswith(result)
    assert refund.times_paid == paid


async def test_of_two_people_at_once_one_decides_and_both_read_who(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl)
    async with sign_in(shop, "Anna Berg", role) as anna, sign_in(shop, "Bo Lind", role) as bo:
        await asyncio.gather(anna.open(refund.message), bo.open(refund.message))
        # Whoever is later may find the buttons disabled already, and presses all the same.
        await asyncio.gather(anna.press("Approve", force=True), bo.press("Decline", force=True))
        said = re.compile(r"^(Approved by Anna Berg|Declined by Bo Lind)")
        for each in (anna, bo):
            await expect(each.page.get_by_role("status").filter(has_text=said)).to_be_visible()
        assert await anna.status() == await bo.status()
    decided = await shop.decisions(anna.subject) + await shop.decisions(bo.subject)
    assert len(decided) == 1
    result = await refund.ended()
    assert refund.times_paid == (1 if decided[0].decision == "approve" else 0), result


async def test_three_people_see_each_other_decide_and_nobody_loses_what_they_write(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl, rules={"need": 2})
    async with (
        sign_in(shop, "Anna Berg", role) as anna,
        sign_in(shop, "Bo Lind", role) as bo,
        sign_in(shop, "Carl Dahl", role) as caller,
    ):
        assert caller.subject == carl
        await asyncio.gather(
            anna.open(refund.message), bo.open(refund.message), caller.open(refund.message, "mine")
        )
        await expect(caller.page.get_by_text("somebody else has to decide")).to_be_visible()
        await expect(caller.page.get_by_role("button", name="Approve")).to_have_count(0)
        note = bo.page.get_by_role("textbox", name="Note", exact=True)
        await note.press_sequentially("I have called")
        await anna.press("Approve")
        for each in (anna, bo, caller):
            status = each.page.get_by_role("status").filter(has_text="Approved by Anna Berg")
            await expect(status).to_contain_text("2 people are needed")
            await expect(each.page.get_by_text("1 of 2 needed")).to_be_visible()
        assert await bo.focused() == "note"
        await note.press_sequentially(" the customer.")
        assert refund.times_paid == 0
        await bo.press("Approve")
        for each in (anna, bo, caller):
            second = each.page.get_by_role("status").filter(has_text="Approved by Bo Lind")
            await expect(second).to_be_visible()
            await expect(each.page.get_by_text("I have called the customer.")).to_be_visible()
    assert "I have called the customer." in await refund.ended()
    assert refund.times_paid == 1


async def test_a_list_never_jumps(shop: RunningShop, sign_in: SignIn, role: str, carl: str) -> None:
    first, second = await shop.refund(role, carl), await shop.refund(role, carl)
    async with (
        sign_in(shop, "Anna Berg", role, viewport=PHONE) as anna,
        sign_in(shop, "Bo Lind", role) as bo,
    ):
        page = anna.page
        await anna.inbox()
        links = [page.get_by_role("link", name=one.message, exact=True) for one in (first, second)]
        await links[1].focus()
        places = [await link.bounding_box() for link in links]
        await bo.open(first.message)
        await bo.press("Decline")
        await expect(page.get_by_text("Not waiting any more")).to_be_visible()
        third = await shop.refund(role, carl)
        news = page.get_by_role("status").filter(has_text="1 new")
        await expect(news).to_be_visible()
        assert [await link.bounding_box() for link in links] == places
        assert await anna.focused() == second.message
        await news.get_by_role("link", name="show", exact=True).click()
        await expect(page.get_by_role("link", name=third.message, exact=True)).to_be_visible()
        await expect(links[0]).to_have_count(0)


async def test_a_page_that_is_open_learns_that_its_time_is_over(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    async with (
        sign_in(shop, "Anna Berg", role) as anna,
        sign_in(shop, "Bo Lind", role, java_script_enabled=False) as bo,
    ):
        began, tried = time.monotonic(), await shop.refund(role, carl)
        await asyncio.gather(anna.open(tried.message), bo.open(tried.message))
        enough = 2 + 3 * (time.monotonic() - began)
        refund = await shop.refund(role, carl, rules={"within": enough})
        await asyncio.gather(anna.open(refund.message), bo.open(refund.message))
        approve = anna.page.get_by_role("button", name="Approve", exact=True)
        await approve.focus()
        over = anna.page.get_by_role("status").filter(has_text="Nobody answered in time")
        await expect(over).to_be_visible(timeout=enough * 1000 + PATIENCE)
        assert await anna.focused() == "Approve", "the focus stays where it was"
        await expect(approve).to_be_disabled()
        await approve.press("Enter")
        await expect(over).to_be_visible()
        await bo.press("Approve")
        await expect(bo.page.get_by_role("alert")).to_have_text(LATE)
        await expect(bo.page.get_by_role("status")).to_contain_text("Nothing was done")
    assert await refund.ended() == "Not refunded: expired."
    assert refund.times_paid == 0


async def test_a_page_whose_server_was_killed_still_decides_when_it_is_back(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl)
    async with sign_in(shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        await shop.start(shop.kill_pages())
        await anna.press("Approve")
        said = anna.page.get_by_role("status").filter(has_text="Approved by Anna Berg")
        await expect(said).to_be_visible()
    assert (await refund.ended()).startswith("Refunded")
    assert refund.times_paid == 1


async def test_the_caller_decides_what_is_asked_of_the_caller(
    sqlite_shop: RunningShop, sign_in: SignIn, carl: str, mark: str
) -> None:
    task = await sqlite_shop.call("own", carl, order=mark)
    async with sign_in(sqlite_shop, "Carl Dahl") as caller:
        await caller.open(f"Close order {mark}?")
        await caller.press("Approve")
        assert (await caller.status()).startswith("Approved by Carl Dahl")
    assert await sqlite_shop.ended(task, carl) == "approved"


async def test_the_caller_withdraws_and_the_approver_sees_it(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with (
        sign_in(sqlite_shop, "Anna Berg", role) as anna,
        sign_in(sqlite_shop, "Carl Dahl") as caller,
    ):
        await anna.open(refund.message)
        await caller.open(refund.message, "mine")
        await caller.press("Withdraw this request")
        for each in (anna, caller):
            status = each.page.get_by_role("status").filter(has_text="Withdrawn")
            await expect(status).to_be_visible()
    assert refund.times_paid == 0


async def test_the_buttons_bear_the_labels_of_the_author_and_hostile_words_stay_words(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    message = "<script>document.title='taken'</script><img src=//evil.example/x onerror=alert(1)>"
    task = await sqlite_shop.call(
        "delete", carl, message=message, role=role, labels=["Delete it", "Keep it"]
    )
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        await anna.open(message)
        await expect(anna.page).not_to_have_title("taken")
        await expect(anna.page.locator("main img, main script")).to_have_count(0)
        await expect(anna.page.get_by_role("button", name="Keep it", exact=True)).to_be_visible()
        await anna.press("Delete it")
        assert (await anna.status()).startswith("Approved by Anna Berg")
    assert await sqlite_shop.ended(task, carl) == "approved"


async def test_many_tabs_of_one_person_all_answer(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        address = anna.page.url
        tabs = [await anna.page.context.new_page() for _ in range(7)]
        for tab in tabs:
            await tab.goto(address)
        last = tabs[-1]
        await last.get_by_role("button", name="Approve", exact=True).click()
        said = re.compile("^Approved by Anna Berg")
        for tab in (anna.page, last):
            await expect(tab.get_by_role("status").filter(has_text=said)).to_be_visible()
    assert len(await sqlite_shop.decisions(anna.subject)) == 1


async def test_a_button_that_is_pressed_again_while_the_server_thinks_decides_once(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    sent, answered = asyncio.Event(), asyncio.Event()
    posts: list[str] = []

    async def think(route: Route) -> None:
        if route.request.method == "POST":
            posts.append(route.request.url)
            sent.set()
            await answered.wait()
        await route.continue_()

    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        await anna.page.route("**/ask/*", think)
        approve = anna.page.get_by_role("button", name="Approve", exact=True)
        place = await approve.bounding_box()
        assert place is not None
        for _ in range(2):
            await anna.page.mouse.click(place["x"] + 20, place["y"] + 20)
            await sent.wait()
        answered.set()
        await expect(anna.page.get_by_role("status").first).to_contain_text("Approved by Anna")
        await expect(anna.page.get_by_role("alert")).to_have_count(0)
    assert len(posts) == 1
