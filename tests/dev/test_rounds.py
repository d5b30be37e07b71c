"""The developer's console in a browser: calls, their questions, and which lines ran again."""

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, ViewportSize, expect

from tests.browser.people import overflow, violations
from tests.dev.browsing import DESKTOP, PHONE, Developer, Workshop, developer, workshop
from tests.dev.pictures import IMAGES, take

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


async def test_an_effect_above_a_question_is_marked_in_round_two(bench: Developer) -> None:
    await bench.call("provision", name="orders")
    marked = bench.page.locator("tr.again")
    await expect(bench.ask("Where should orders live?")).to_be_visible()
    assert await marked.count() == 0, "nothing has run twice"
    await bench.place()
    await expect(bench.ask("Start orders for 12.00 EUR?")).to_be_visible()
    await expect(marked).to_have_count(2)
    assert await marked.locator("code").all_inner_texts() == [
        "    charged.append(name)",
        "    await charge(name)",
    ]
    advice = await marked.nth(1).locator(".advice").inner_text()
    assert "Ran 2 times" in advice
    assert "ctx.once" in advice
    await bench.approve()
    assert await bench.result() == "orders.eu-west is running."
    await expect(marked.nth(1).locator(".advice")).to_contain_text("Ran 3 times")
    unmarked = await bench.page.locator("tr:not(.again) code").all_inner_texts()
    for harmless in ("euros(cents)", "ctx.elicit", "ctx.once", "ctx.approve"):
        assert any(harmless in line for line in unmarked), harmless


async def test_the_page_shows_journal_effects_claims_and_wire(bench: Developer) -> None:
    await bench.call("provision", name="orders")
    await bench.place()
    await expect(bench.ask("Start orders")).to_be_visible()
    page = bench.page
    assert "placement ask ok" in " ".join((await page.locator("#journal").inner_text()).split())
    assert "create create done" in " ".join((await page.locator("#effects").inner_text()).split())
    assert "eu-west" not in await page.locator("#journal").inner_text()
    await page.get_by_role("link", name="Reveal the values").click()
    await expect(page.locator("#journal")).to_contain_text("eu-west")
    await page.get_by_text("Claims of the token").click()
    await expect(page.locator("#claims")).to_contain_text("approve (form)")
    await page.get_by_text("Raw wire").click()
    await page.locator("#wire summary").last.click()
    await expect(page.locator("#wire pre").last).to_contain_text("inputRequests")


@pytest.mark.parametrize("client", ["everything", "vscode"])
async def test_every_kind_of_question_is_answered_on_the_page(
    bench: Developer, client: str
) -> None:
    await bench.call("interview", client)
    switch = bench.ask("Which target?")
    await expect(switch).to_be_visible()
    visit = bench.ask("Please sign in.")
    await expect(visit.get_by_role("link", name="https://id.example/login")).to_be_visible()
    await switch.get_by_label("target").fill("blue")
    await switch.get_by_role("button", name="Answer").click()
    await expect(switch).to_have_count(0)
    await visit.get_by_role("button", name="I agree to open it").click()
    model = bench.ask("A completion")
    await expect(model).to_contain_text("Say one word.")
    await model.get_by_label("Completion").fill("Hello")
    await model.get_by_role("button", name="Answer").click()
    roots = bench.ask("The workspace roots")
    await roots.get_by_role("button", name="Answer").click()
    await bench.ask("The first of two?").get_by_role("button", name="Decline").click()
    await bench.ask("The second of two?").get_by_role("button", name="Cancel").click()
    assert await bench.result() == "blue, Hello, 1 roots, declined and cancelled."
    notes = bench.page.locator("#notes")
    await expect(notes).to_contain_text("2 of 2 asked everything")
    await expect(notes).to_contain_text("the interview is over")


async def test_an_answer_that_does_not_fit_is_refused_on_the_page(bench: Developer) -> None:
    await bench.call("provision", name="orders")
    form = bench.ask("Where should orders live?")
    await form.evaluate("form => form.noValidate = true")
    await form.get_by_label("size").fill("")
    await form.get_by_role("button", name="Answer").click()
    await expect(bench.page.get_by_role("alert")).to_contain_text("Some answers do not fit")
    await bench.place()
    await expect(bench.ask("Start orders")).to_be_visible()


async def test_a_task_with_a_question_is_followed_to_its_end(bench: Developer) -> None:
    await bench.call("migrate")
    form = bench.ask("Where to?")
    await expect(bench.page.locator("#effects")).to_contain_text("copy")
    await form.get_by_label("target").fill("green")
    await form.get_by_role("button", name="Answer").click()
    assert await bench.result() == "Runs in green."
    await expect(bench.page.locator("#effects")).to_contain_text("copy")
    await expect(bench.page.locator("#notes")).to_contain_text("input_required")
    for label in ("Send again", "Tamper", "As somebody else", "Send with another answer"):
        assert "as promised" in (await bench.do(label))["title"], label


async def test_a_question_for_a_role_is_decided_in_the_inbox_of_the_same_console(
    bench: Developer,
) -> None:
    await bench.call("refund", order="4711")
    call = bench.page.url
    await bench.page.get_by_role("button", name="Take the role, and open it").click()
    await bench.page.wait_for_url("**/ask/*")
    await bench.page.get_by_role("button", name="Approve").click()
    await bench.page.goto(call)
    assert await bench.result() == "Order 4711: approved by finance."


async def test_a_client_is_chosen_by_its_name(bench: Developer) -> None:
    await bench.call("provision", "openai-agents", name="orders")
    problem = bench.page.locator("#result .problem")
    await expect(problem).to_contain_text("elicitation.form")
    await expect(bench.page.locator("#call")).to_contain_text("as openai-agents")


async def test_prompts_resources_and_nested_arguments_have_forms(bench: Developer) -> None:
    await bench.call("greet", kind="prompt", name="Ada")
    assert await bench.result() == "Say hello to Ada."
    await bench.call("notes://today", kind="resource")
    assert await bench.result() == "Nothing happened."
    await bench.call("sort_out", tags='{"b": [1], "a": []}', note="x")
    assert await bench.result() == "['a', 'b'] x False"
    await bench.page.goto(f"{bench.url}/dev?name=sort_out")
    await bench.page.fill("#field-tags", "{")
    await bench.page.get_by_role("button", name="Call", exact=True).click()
    await expect(bench.page.get_by_role("alert")).to_contain_text("not JSON")


async def test_a_call_is_given_up(bench: Developer) -> None:
    await bench.call("provision", name="orders")
    await bench.page.get_by_role("button", name="Give the call up").click()
    await expect(bench.page.locator("#call .badge")).to_have_text("cancelled")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_are_accessible_and_fit_a_phone(
    bench: Developer, scheme: Literal["light", "dark"]
) -> None:
    page = bench.page
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size(PHONE)
    try:
        await page.goto(f"{bench.url}/dev")
        assert await violations(page) == []
        assert await overflow(page) <= 0
        await bench.call("provision", name="orders")
        await bench.place()
        await expect(bench.ask("Start orders")).to_be_visible()
        await bench.do("Tamper")
        for summary in ("Claims of the token", "Raw wire", "What the server printed"):
            await page.get_by_text(summary).click()
        assert await violations(page) == []
        assert await overflow(page) <= 0
        await bench.approve()
        await bench.result()
        assert await violations(page) == []
        assert await overflow(page) <= 0
    finally:
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size(DESKTOP)


async def test_the_pages_work_without_scripts(browser: Browser, own_workshop: Workshop) -> None:
    async with developer(browser, own_workshop.link, java_script_enabled=False) as person:
        await person.call("provision", name="orders")
        await person.place()
        await person.approve()
        assert await person.result() == "orders.eu-west is running."


async def test_a_saved_file_reloads_the_server_and_a_broken_one_is_shown(
    browser: Browser, own_workshop: Workshop
) -> None:
    async with developer(browser, own_workshop.link) as person:
        own_workshop.edit("async def sort_out(", "async def sorted_out(")
        side = person.page.locator("#side")
        await expect(side.get_by_role("link", name="sorted_out")).to_be_visible()
        own_workshop.edit("server = Server", "server = = Server")
        await expect(person.page.locator("#dev-bar")).to_contain_text("did not start")
        await person.page.get_by_text("What the server printed").click()
        await expect(person.page.locator("#output")).to_contain_text("SyntaxError")
        own_workshop.edit("server = = Server", "server = Server")
        await expect(person.page.locator("#dev-bar")).to_contain_text(
            re.compile(r"running, pid \d")
        )


async def test_a_server_that_does_not_start_is_tried_again_when_it_is_saved(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        workshop(tmp_path, broken=True) as running,
        developer(browser, running.link) as person,
    ):
        assert any("SyntaxError" in line for line in running.printed)
        await expect(person.page.locator("#dev-bar")).to_contain_text("running")


async def test_a_file_edited_under_a_waiting_call_shows_both_sides_and_the_cure(
    browser: Browser, own_workshop: Workshop
) -> None:
    async with developer(browser, own_workshop.link) as person:
        await person.call("provision", name="orders")
        await person.place()
        await expect(person.ask("Start orders")).to_be_visible()
        pid = await person.page.locator("#dev-bar .state").inner_text()
        own_workshop.edit('ctx.once("create", create, name', 'ctx.once("make", create, name')
        await expect(person.page.locator("#dev-bar .state")).not_to_have_text(pid)
        await expect(person.page.locator("#dev-bar .state")).to_contain_text("running")
        await person.approve()
        diverged = person.page.locator("#diverged")
        await expect(diverged).to_contain_text("Diverged")
        await expect(diverged.locator("dd").nth(0)).to_contain_text("create")
        await expect(diverged.locator("dd").nth(1)).to_contain_text("make")
        await expect(diverged.locator("dd").nth(2)).to_contain_text("ctx.patched")
        edited = person.page.locator("#edited")
        await expect(edited).to_contain_text("workshop.py was edited while this call waited")
        await expect(edited.locator(".plus").last).to_contain_text('"make"')
        assert await violations(person.page) == []


async def test_the_pictures_of_the_docs_can_be_taken(
    browser: Browser, own_workshop: Workshop, tmp_path: Path
) -> None:
    taken = await take(browser, own_workshop.link, tmp_path)
    assert [path.name for path in taken] == ["round.png", "disturbed.png"]
    for path in taken:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert (IMAGES / path.name).is_file()


@pytest.mark.parametrize("width", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_the_operators_page_is_accessible_on_a_phone_and_a_desk(
    bench: Developer, width: ViewportSize
) -> None:
    await bench.call("greet", kind="prompt", name="Ada")
    await bench.result()
    await bench.page.set_viewport_size(width)
    await bench.page.get_by_role("link", name="Ops", exact=True).click()
    await expect(bench.page.get_by_role("heading", name="Operations")).to_be_visible()
    assert await violations(bench.page) == []
    assert await overflow(bench.page) <= 0
    await bench.page.set_viewport_size(DESKTOP)
