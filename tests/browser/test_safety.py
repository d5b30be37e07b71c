"""What people must not be able to do, or be made to do: other sites, other people, old pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.conftest import MakeShop, SignIn
from tests.browser.people import People
from tests.browser.provider import Provider
from tests.browser.running import RunningShop

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

NOT_HERE = "There is nothing here, or it is not for you."


@asynccontextmanager
async def another_origin(page: Page, html: str, *, same_site: bool) -> AsyncIterator[str]:
    """A page of somebody else: on another port of this machine, or of a site that is elsewhere."""
    html = f'<!doctype html><link rel="icon" href="data:,">{html}'
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(html)}\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write((head + html).encode())
        await writer.drain()
        writer.close()

    async def fulfil(route: Route) -> None:
        await route.fulfill(body=html, content_type="text/html")

    if not same_site:
        await page.context.route("http://evil.example/", fulfil)
        yield "http://evil.example/"
        return
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def fields(page: Page) -> dict[str, str]:
    """Return what the form of an item carries unseen."""
    found: dict[str, str] = await page.evaluate(
        "Object.fromEntries(new FormData(document.getElementById('decide')))"
    )
    return found


# --- other sites ---------------------------------------------------------------------------------


@pytest.mark.parametrize("same_site", [True, False], ids=["another port", "another site"])
async def test_a_form_on_another_origin_decides_nothing_even_with_every_secret_in_it(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str, *, same_site: bool
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        address = anna.page.url
        sent = {**await fields(anna.page), "choice": "approve"}
        inputs = "".join(
            f'<input type="hidden" name="{name}" value="{value}">' for name, value in sent.items()
        )
        form = f'<form method="post" action="{address}">{inputs}<button>Win a prize</button></form>'
        async with another_origin(anna.page, form, same_site=same_site) as site:
            await anna.page.goto(site)
            await anna.press("Win a prize")
            await expect(anna.page.get_by_role("alert")).to_have_text(
                "This form was not sent from here."
            )
        await anna.page.goto(address)
        await expect(anna.page.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    assert await sqlite_shop.decisions(anna.subject) == []


async def test_another_site_can_neither_frame_a_page_nor_read_it(
    sqlite_shop: RunningShop, sign_in: SignIn, people: People, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        address = anna.page.url
        frame = f'<iframe src="{address}"></iframe>'
        async with another_origin(anna.page, frame, same_site=True) as site:
            await anna.page.goto(site)
            assert refund.message not in await anna.page.frames[1].content()
            read = await anna.page.evaluate(
                "address => fetch(address, {credentials: 'include'})"
                ".then(answer => answer.text(), () => 'not read')",
                address,
            )
            assert read == "not read"
    framing, reading = people.watch.found
    assert "frame-ancestors" in framing
    assert "CORS" in reading
    people.watch.found.clear()


async def test_the_watch_sees_what_leaves_the_machine_and_what_the_policy_refuses(
    sqlite_shop: RunningShop, people: People
) -> None:
    async with people.nobody(sqlite_shop.url) as nobody:
        await nobody.page.goto(f"{sqlite_shop.url}/login")
        await nobody.page.evaluate(
            """() => {
                document.body.append(Object.assign(new Image(), {src: "https://cdn.example/x.png"}));
                document.body.append(Object.assign(document.createElement("script"), {text: "1"}));
            }"""
        )
        await expect(nobody.page.locator("img")).to_have_count(1)
    refused = [one for one in people.watch.found if "Content Security Policy" in one]
    assert any("img-src" in one for one in refused), people.watch.found
    assert any("script-src" in one for one in refused), people.watch.found
    people.watch.found.clear()
    async with people.nobody(sqlite_shop.url) as nobody:
        picture = '<img src="https://cdn.example/x.png">'
        async with another_origin(nobody.page, picture, same_site=True) as site:
            await nobody.page.goto(site)
    assert people.watch.found == ["left the machine: https://cdn.example/x.png"]
    people.watch.found.clear()


# --- other people --------------------------------------------------------------------------------


async def test_what_is_not_for_somebody_looks_like_what_does_not_exist(
    sqlite_shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with (
        sign_in(sqlite_shop, "Anna Berg", role) as anna,
        sign_in(sqlite_shop, "Dora Ek", f"{role}-b") as dora,
    ):
        await anna.open(refund.message)
        await dora.inbox()
        await expect(dora.page.get_by_text("Nothing waits for you.")).to_be_visible()
        seen: list[str] = []
        for address in (anna.page.url, f"{sqlite_shop.url}/ask/{uuid4().hex}"):
            await dora.page.goto(address)
            await expect(dora.page.get_by_role("alert")).to_have_text(NOT_HERE)
            seen.append(await dora.page.locator("main").inner_text())
        assert seen[0] == seen[1]
        forged = await dora.page.context.request.post(
            anna.page.url.replace(anna.url, dora.url),
            form={**await fields(anna.page), "choice": "approve"},
            headers={"origin": sqlite_shop.origin},
        )
        assert forged.status == 404
    assert await sqlite_shop.decisions(dora.subject) == []


async def test_the_caller_cannot_approve_even_with_a_form_made_by_hand(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl)
    async with sign_in(shop, "Anna Berg", role) as anna, sign_in(shop, "Carl Dahl", role) as caller:
        await anna.open(refund.message)
        await caller.open(refund.message, "mine")
        page = caller.page
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
        digest = (await fields(anna.page))["digest"]
        async with page.expect_navigation():
            await page.evaluate(
                """digest => {
                    const form = document.querySelector("form.withdraw");
                    form.action = form.action.replace("/withdraw", "");
                    for (const [name, value] of Object.entries({digest, choice: "approve"})) {
                        form.append(Object.assign(document.createElement("input"), {name, value}));
                    }
                    form.submit();
                }""",
                digest,
            )
        await expect(page.get_by_role("alert")).to_have_text(
            "You made this call, so somebody else has to decide."
        )
    assert await shop.decisions(caller.subject) == []
    assert refund.times_paid == 0


# --- previews and old pages ----------------------------------------------------------------------


async def test_previews_decide_nothing_and_use_up_no_link(
    sqlite_shop: RunningShop, sign_in: SignIn, people: People, role: str, carl: str
) -> None:
    refund = await sqlite_shop.refund(role, carl)
    async with sign_in(sqlite_shop, "Anna Berg", role) as anna:
        assert anna.person is not None
        await anna.open(refund.message)
        address = anna.page.url
        for query in ("?choice=approve", "?choice=approve&note=x"):
            await anna.page.goto(address + query)
            button = anna.page.get_by_role("button", name="Approve", exact=True)
            await expect(button).to_be_visible()
        link = await sqlite_shop.link(anna.person)
    async with people.nobody(sqlite_shop.url) as scanner:
        for url in (address, link, link):
            await scanner.page.goto(url)
        await expect(scanner.page.get_by_role("button", name="Sign in")).to_be_visible()
    async with people.nobody(sqlite_shop.url) as late, people.nobody(sqlite_shop.url) as first:
        for each in (first, late):
            await each.page.goto(link)
            await each.press("Sign in")
        heading = first.page.get_by_role("heading", name="Inbox", exact=True)
        await expect(heading).to_be_visible()
        await expect(late.page.get_by_role("alert")).to_contain_text("used already")
    assert await sqlite_shop.decisions(anna.subject) == []


async def test_a_page_that_shows_another_question_decides_nothing(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl)
    async with sign_in(shop, "Anna Berg", role) as anna:
        await anna.open(refund.message)
        await anna.page.locator("input[name=digest]").evaluate("one => { one.value = '00ff' }")
        note = anna.page.get_by_role("textbox", name="Note", exact=True)
        await note.fill("Half written.")
        await anna.press("Approve")
        await expect(anna.page.get_by_role("alert")).to_have_text(
            "The question changed while you read it. Look again."
        )
        await expect(anna.page.get_by_role("alert")).to_be_focused()
        await expect(note).to_have_value("Half written.")
        assert await shop.decisions(anna.subject) == []
        await anna.press("Approve")
        assert (await anna.status()).startswith("Approved by Anna Berg")


async def test_a_session_that_has_ended_decides_nothing_and_loses_no_words(
    shop: RunningShop, sign_in: SignIn, role: str, carl: str
) -> None:
    refund = await shop.refund(role, carl)
    async with sign_in(shop, "Anna Berg", role) as anna:
        assert anna.person is not None
        await anna.open(refund.message)
        address = anna.page.url
        other = await anna.page.context.new_page()
        await other.goto(f"{shop.url}/inbox")
        await other.get_by_role("button", name="Sign out").click()
        await expect(other.get_by_role("heading", name="You are not signed in")).to_be_visible()
        await anna.page.get_by_role("textbox", name="Note", exact=True).fill("Long thought about.")
        await anna.press("Approve")
        await expect(anna.page.get_by_role("alert")).to_contain_text("Nothing was done")
        await expect(anna.page.get_by_text("Long thought about.")).to_be_visible()
        again = anna.page.get_by_role("link", name="Sign in", exact=True)
        assert (await again.get_attribute("href") or "").endswith(address.split("/")[-1])
        await anna.page.goto(address)
        await expect(anna.page.get_by_role("heading", name="You are not signed in")).to_be_visible()
        assert await shop.decisions(anna.subject) == []


# --- signing in ----------------------------------------------------------------------------------


async def test_a_function_says_who_somebody_is(
    make_shop: MakeShop, people: People, role: str, carl: str
) -> None:
    shop: RunningShop = await make_shop("sqlite beside", "function")
    refund = await shop.refund(role, carl)
    headers = {"x-signed-in-as": f"anna:{role}"}
    async with people.nobody(shop.url, extra_http_headers=headers) as anna:
        await anna.open(refund.message)
        await anna.press("Approve")
        assert (await anna.status()).startswith("Approved by Anna")
    async with people.nobody(shop.url) as nobody:
        await nobody.inbox()
        heading = nobody.page.get_by_role("heading", name="You are not signed in")
        await expect(heading).to_be_visible()
        await expect(nobody.page.get_by_role("link", name="Sign in", exact=True)).to_be_visible()


async def test_an_openid_provider_signs_people_in_and_again_where_that_is_asked_for(
    tmp_path: Path, people: People, carl: str
) -> None:
    with Provider().serving() as provider:
        shop = RunningShop(
            f"sqlite:///{tmp_path / 'shop.db'}", tmp_path, alone=True, login=provider.issuer
        )
        async with shop.running(), people.nobody(shop.url) as anna:
            refund = await shop.refund("finance", carl, rules={"assurance": "fresh"})
            page = anna.page
            await page.goto(f"{shop.url}/inbox")
            await page.get_by_role("link", name="Continue as Anna Berg").click()
            await page.get_by_role("link", name=refund.message, exact=True).click()
            await expect(page.get_by_text("a sign-in of the last five minutes")).to_be_visible()
            await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
            await page.get_by_role("link", name="Sign in again", exact=True).click()
            await page.get_by_role("link", name="Continue as Anna Berg").click()
            await expect(page.get_by_role("heading", name=refund.message)).to_be_visible()
            await anna.press("Approve")
            assert (await anna.status()).startswith("Approved by Anna Berg (finance)")
            assert [one.how for one in await shop.decisions("anna")] == ["fresh"]
            await anna.press("Sign out")
            await page.get_by_role("link", name="Sign in", exact=True).click()
            await expect(page.get_by_role("heading", name="Who are you?")).to_be_visible()
