"""The developer's console in a browser: calls, their questions, and which lines ran again."""

import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, Page, ViewportSize, expect

from antiphon.apps.dev.promises import DISTURBANCES
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
    assert await marked.locator(".source > code").all_text_contents() == [
        "    charged.append(name)",
        "    await charge(name)",
    ]
    advice = await marked.nth(1).locator(".advice").inner_text()
    assert "Ran in 2 rounds" in advice
    assert 'await ctx.once("charge", charge, name)' in advice
    # The mark is also said beside the name of the call, from where a link leads to the lines.
    await bench.page.get_by_role("link", name="2 lines need a look").click()
    await expect(bench.page.locator("#code")).to_be_in_viewport()
    await bench.approve()
    assert await bench.result() == "orders.eu-west is running."
    await expect(marked.nth(1).locator(".advice")).to_contain_text("Ran in 3 rounds")
    unmarked = await bench.page.locator("tr:not(.again) .source > code").all_text_contents()
    for harmless in ("euros(cents)", "ctx.elicit", "ctx.once", "ctx.approve"):
        assert any(harmless in line for line in unmarked), harmless


async def marks(page: Page, kind: str = "again") -> list[tuple[str, str]]:
    """Return the lines that are marked, each with the rule."""
    rows = page.locator(f"table.lines tr.{kind}")
    codes = await rows.locator(".source > code").all_text_contents()
    rules = await rows.locator(".advice .hint").all_inner_texts()
    return [(code.strip(), rule) for code, rule in zip(codes, rules, strict=True)]


async def test_effects_in_methods_helpers_loops_and_finally_are_marked(bench: Developer) -> None:
    await bench.call("tally")
    for number in range(2):
        form = bench.ask(f"Number {number}?")
        await form.get_by_label("target").fill("x")
        await form.get_by_role("button", name="Answer").click()
    assert await bench.result() == "Counted."
    assert await marks(bench.page) == [
        ("self.count += 1", "write-above-ask"),
        ('self._note("begun")', "runs-again"),
        ('self._note("ended")', "runs-again"),
        ("charged.append(text)", "write-above-ask"),
    ]


async def test_a_volatile_question_is_marked_before_and_shown_as_diverged_after(
    bench: Developer,
) -> None:
    await bench.call("guess")
    form = bench.ask("Go on at")
    await expect(form).to_be_visible()
    found = [('await ctx.elicit(f"Go on at {moment}?", Switch)', "volatile-question")]
    assert await marks(bench.page, "wrong") == found
    await form.get_by_label("target").fill("x")
    await form.get_by_role("button", name="Answer").click()
    await expect(bench.page.locator("#diverged")).to_contain_text("took another path")
    await expect(bench.page.locator("#diverged")).to_contain_text("No file was edited meanwhile")
    await expect(bench.page.locator("#call .badge")).to_have_text("error")
    assert await marks(bench.page, "wrong") == found


async def test_a_swallowed_question_is_marked_where_it_is_caught(bench: Developer) -> None:
    await bench.call("stubborn")
    result = bench.page.locator("#result")
    await expect(result).to_contain_text("swallowed the end of the round at ask 'switch'")
    await expect(bench.page.locator("#call .badge")).to_have_text("error")
    assert await marks(bench.page, "wrong") == [
        ("with suppress(BaseException):", "swallowed-suspension")
    ]


@pytest.mark.parametrize("client", ["everything", "vscode"])
async def test_lines_show_while_a_handler_waits_in_memory_and_what_it_raises(
    bench: Developer, client: str
) -> None:
    await bench.call("parked", client)
    form = bench.ask("Which one is parked?")
    await expect(form).to_be_visible()
    asked = bench.page.locator("table.lines tr").filter(has_text="answer = await ctx.elicit")
    await expect(asked.locator(".dot")).to_have_count(1)
    await form.get_by_label("target").fill("bay <7>")
    await form.get_by_role("button", name="Answer").click()
    raised = bench.page.locator("#result .raised")
    await expect(raised).to_contain_text(re.compile(r"ValueError: no bay <7> \(workshop.py, line"))
    await expect(bench.page.locator("#output")).to_contain_text("long long")


async def test_two_pages_answer_one_round_together(bench: Developer) -> None:
    await bench.call("interview")
    await expect(bench.ask("Which target?")).to_be_visible()
    page = await bench.page.context.new_page()
    other = Developer(page, bench.url)
    await page.goto(bench.page.url)
    await other.ask("Which target?").get_by_label("target").fill("ü 日本")
    await other.ask("Which target?").get_by_role("button", name="Answer").click()
    await expect(bench.ask("Which target?")).to_have_count(0)
    await bench.ask("Please sign in.").get_by_role("button", name="Decline").click()
    await expect(page.locator("#call .badge")).to_have_text("error")
    await page.close()


async def test_only_a_legacy_client_can_refuse_a_completion(bench: Developer) -> None:
    refuse = bench.page.get_by_role("button", name="Refuse")
    for client, shown in (("everything", 0), ("vscode", 1)):
        await bench.call("interview", client)
        switch = bench.ask("Which target?")
        await switch.get_by_label("target").fill("blue")
        await switch.get_by_role("button", name="Answer").click()
        visit = bench.ask("Please sign in.")
        await visit.get_by_role("button", name="I agree to open it").click()
        await expect(bench.ask("A completion")).to_be_visible()
        await expect(refuse).to_have_count(shown)
    await refuse.click()
    await expect(bench.page.locator("#call .badge")).to_have_text("error")


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
    await expect(bench.page.locator("#call")).to_contain_text("task completed")
    await expect(bench.page.locator("#call")).to_contain_text("Where to?")
    await expect(bench.page.locator("#code")).to_contain_text("Nothing that ran again looks")
    recorded = await bench.page.locator("#journal").inner_text()
    assert "copy effect ok sleep" in " ".join(recorded.split())
    assert await done_to_task(bench) == {
        "Send again": "The same task: completed.",
        "Send with another answer": "Taken and ignored: the first answer counts.",
        "Tamper": "A name with another letter: refused, -32602: Unknown or expired task",
        "Expire": "Nothing was sent: a task has no token that could expire.",
        "As somebody else": "The task of another caller: refused, -32602: Unknown or expired task",
        "Forget the answer": "Nothing was sent: the task asks nothing now.",
    }


async def done_to_task(bench: Developer) -> dict[str, str]:
    """Press every button but the one that takes long; return what came of it."""
    came: dict[str, str] = {}
    for _, label in DISTURBANCES:
        if label != "Kill the server":
            said = await bench.do(label)
            assert "not as promised" not in said["title"], said
            came[label] = said["came"]
    return came


async def test_every_button_keeps_its_promise_on_a_task_that_asks(bench: Developer) -> None:
    await bench.call("migrate")
    await expect(bench.ask("Where to?")).to_be_visible()
    came = await done_to_task(bench)
    assert came["Send again"] == "The same task: input_required."
    assert came["Forget the answer"] == "An update without answers; the task is input_required."
    said = await bench.do("Kill the server")
    assert "The task is input_required." in said["came"]
    await bench.ask("Where to?").get_by_label("target").fill("green")
    await bench.ask("Where to?").get_by_role("button", name="Answer").click()
    assert await bench.result() == "Runs in green."


async def test_a_question_for_a_role_is_decided_in_the_inbox_of_the_same_console(
    bench: Developer,
) -> None:
    await bench.call("refund", order="4711")
    call = bench.page.url
    button = bench.page.get_by_role("button", name="Take the role, and open it")
    await expect(button).to_be_visible()
    assert (await done_to_task(bench))["Send again"] == "The same task: working."
    await bench.page.get_by_role("button", name="Take the role, and open it").click()
    await bench.page.wait_for_url("**/ask/*")
    await bench.page.get_by_role("button", name="Approve").click()
    await bench.page.goto(call)
    assert await bench.result() == "Order 4711: approved by finance."


async def test_a_client_is_chosen_by_its_name(bench: Developer) -> None:
    await bench.call("provision", "openai-agents", name="orders")
    problem = bench.page.locator("#result .problem")
    await expect(problem).to_contain_text("elicitation.form. Another client may have it")
    await expect(bench.page.locator("#call")).to_contain_text("as openai-agents")


async def test_era_and_abilities_are_chosen_by_hand_and_notes_appear_while_it_runs(
    bench: Developer,
) -> None:
    page = bench.page
    await page.goto(f"{bench.url}/dev?name=interview")
    await page.select_option("#client", "by-hand")
    await page.get_by_text("Choose era and abilities").click()
    await page.get_by_label("legacy").check()
    await page.get_by_label("Pages to visit").uncheck()
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(page.locator("#call")).to_contain_text("legacy · as chosen by hand")
    await expect(page.locator("#result")).to_contain_text("elicitation.url")
    await bench.call("watch", "by-hand")
    await expect(page.locator("#notes")).to_contain_text("1 of 2 half way")
    await expect(page.locator("#notes")).to_contain_text("still here")
    await expect(page.locator("#call .badge")).to_have_text("running")
    await expect(page.locator("#code")).to_contain_text("In a legacy session the handler waits")
    assert await bench.result() == "Seen."


async def test_a_call_is_made_again_with_its_arguments(bench: Developer) -> None:
    page, again = bench.page, bench.page.get_by_role("link", name="call it again")
    await bench.call("sort_out", tags='{"b": [1], "a": []}', note="<i>ü</i>")
    await expect(page.locator("#call")).to_contain_text('"note":"<i>ü</i>"')
    await again.click()
    assert await page.input_value("#field-tags") == '{"b":[1],"a":[]}'
    assert await page.input_value("#field-note") == "<i>ü</i>"
    await page.get_by_role("button", name="Call", exact=True).click()
    assert await bench.result() == "['a', 'b'] <i>ü</i> False"
    await bench.call("notes://{day}", kind="resource", uri="notes://monday")
    assert await bench.result() == "Nothing on monday."
    await again.click()
    assert await page.input_value("#field-uri") == "notes://monday"


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


async def test_an_answer_waits_for_a_server_that_is_away_and_a_cut_round_is_sent_again(
    browser: Browser, own_workshop: Workshop
) -> None:
    async with developer(browser, own_workshop.link) as person:
        page, bar = person.page, person.page.locator("#dev-bar")
        await person.call("provision", name="orders")
        own_workshop.edit("server = Server", "server = = Server")
        await expect(bar).to_contain_text("did not start")
        await person.place()
        await expect(page.locator("#asks")).to_contain_text("Waiting for the server")
        slow = "if not await ctx.approve"
        mended = own_workshop.file.read_text("utf-8").replace("= = Server", "= Server")
        mended = mended.replace(slow, f"await asyncio.sleep(2)\n    {slow}")
        own_workshop.file.write_text(mended, "utf-8")
        await expect(bar).to_contain_text("running")
        await expect(page.locator("#asks")).to_contain_text("Waiting for the server")
        own_workshop.edit("async def sort_out(", "async def sorted_out(")
        await expect(person.ask("Start orders")).to_be_visible()
        await expect(page.locator("#notes")).to_contain_text("is sent again when the server is")
        await expect(page.locator("#output")).not_to_contain_text("ended by itself")
        await expect(page.locator("#effects tbody tr")).to_have_count(1)


async def test_a_tool_that_is_renamed_under_a_call_and_a_renamed_server_are_told(
    browser: Browser, own_workshop: Workshop
) -> None:
    async with developer(browser, own_workshop.link) as person:
        page = person.page
        await person.call("provision", name="orders")
        await expect(person.ask("Where should orders live?")).to_be_visible()
        own_workshop.edit("async def provision(", "async def provide(")
        edited = page.locator("#edited")
        await expect(edited.locator(".plus").last).to_contain_text("async def provide(")
        await expect(page.locator("#dev-bar")).to_contain_text("running")
        await person.place()
        await expect(page.locator("#call .badge")).to_have_text("failed")
        await expect(edited).to_contain_text("workshop.py was edited while this call waited")
        own_workshop.edit('Server("workshop")', 'Server("workbench")')
        trouble = page.locator("#trouble")
        await expect(trouble).to_contain_text("The server is called 'workbench' now")
        assert await violations(page) == []
        own_workshop.edit('Server("workbench")', 'Server("workshop")')
        await expect(trouble).to_have_text("")


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
