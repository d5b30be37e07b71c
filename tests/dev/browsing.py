"""`antiphon dev` as a process, and a person at a browser in front of it.

A request that leaves the machine is aborted and counted; what the content security policy refuses,
and every error of a script, is written down. `Developer.found` must stay empty.
"""

import asyncio
import json
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Playwright,
    Route,
    ViewportSize,
    expect,
)

from tests.cli.running import ANTIPHON, ROOT, environment

AXE = ROOT / ".peers" / "node" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PHONE: ViewportSize = {"width": 360, "height": 740}
DESKTOP: ViewportSize = {"width": 1400, "height": 900}
OFF_LOOPBACK = re.compile(r"^(?!https?://127\.0\.0\.1[:/])")
PATIENCE = 30_000.0
"""Milliseconds for a page to do what is awaited, on a busy machine."""

WORKSHOP = Path(__file__).with_name("workshop.py")

expect.set_options(timeout=PATIENCE)


async def launch(playwright: Playwright) -> Browser:
    """Start the browser of this machine."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "Chromium is needed: run `make peers`"
    return await playwright.chromium.launch(
        executable_path=path, args=["--no-sandbox", "--disable-gpu", "--lang=en"]
    )


class Workshop:
    """`antiphon dev` in a folder of its own."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process, link: str) -> None:
        self.folder = folder
        self._process = process
        self.link = link

    @property
    def file(self) -> Path:
        return self.folder / "workshop.py"

    @property
    def url(self) -> str:
        return self.link.partition("/link/")[0]

    def edit(self, before: str, after: str) -> None:
        """Save the server's file with a change, in one step."""
        text = self.file.read_text("utf-8")
        assert before in text
        changed = self.file.with_suffix(".new")
        changed.write_text(text.replace(before, after), "utf-8")
        changed.replace(self.file)

    async def stop(self) -> None:
        """End it as Ctrl-C does; it must end by itself."""
        self._process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(self._process.wait(), 30) == 0


@asynccontextmanager
async def workshop(folder: Path) -> AsyncIterator[Workshop]:
    """Run `antiphon dev workshop.py`, and wait for its link."""
    shutil.copy(WORKSHOP, folder / "workshop.py")
    with (folder / "printed.txt").open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            *ANTIPHON,
            "dev",
            "workshop.py",
            cwd=folder,
            env=environment(LOGNAME="ada"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        assert process.stdout is not None
        try:
            line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
            assert "/link/" in line, (folder / "printed.txt").read_text()
            started = Workshop(folder, process, line.strip())
            yield started
            await started.stop()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


class Developer:
    """A person at the developer's console."""

    def __init__(self, page: Page, url: str, found: list[str]) -> None:
        self.page = page
        self.url = url
        self.found = found

    async def call(
        self, tool: str, client: str = "everything", kind: str = "tool", **arguments: str
    ) -> None:
        """Call something with a form of the start page."""
        await self.page.goto(f"{self.url}/dev?kind={kind}&name={tool}")
        for name, value in arguments.items():
            await self.page.fill(f"#field-{name}", value)
        await self.page.select_option("#client", client)
        await self.page.get_by_role("button", name="Call", exact=True).click()
        await self.page.wait_for_url("**/dev/call/*")

    def ask(self, message: str) -> Locator:
        """Return the form of a question."""
        return self.page.locator("form.ask").filter(has_text=message)

    async def place(self, name: str = "orders") -> None:
        """Answer the first question of `provision`."""
        form = self.ask(f"Where should {name} live?")
        await form.get_by_label("region").select_option("eu-west")
        await form.get_by_role("button", name="Answer").click()

    async def approve(self, name: str = "orders") -> None:
        """Answer the second question of `provision`."""
        form = self.ask(f"Start {name} for 12.00 EUR?")
        await form.get_by_label("Yes").check()
        await form.get_by_role("button", name="Answer").click()

    async def result(self) -> str:
        """Return the text of the result, when there is one."""
        await self.page.locator(".result .text").first.wait_for()
        return await self.page.locator(".result .text").first.inner_text()

    async def do(self, label: str) -> dict[str, str]:
        """Press a button of "Do to this round"; return what the page says of it."""
        before = await self.page.locator(".attempt").count()
        await self.page.get_by_role("button", name=label, exact=True).click()
        await expect(self.page.locator(".attempt")).to_have_count(before + 1)
        newest = self.page.locator(".attempt").first
        return {
            "title": await newest.locator("h3").inner_text(),
            "came": await newest.locator("dd").nth(0).inner_text(),
            "promised": await newest.locator("dd").nth(1).inner_text(),
        }


@asynccontextmanager
async def developer(browser: Browser, link: str, **options: Any) -> AsyncIterator[Developer]:
    """Sign in with a link that works once."""
    usual = {"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce"}
    context = await browser.new_context(**{**usual, **options})
    context.set_default_timeout(PATIENCE)
    found: list[str] = []

    async def abort(route: Route) -> None:
        found.append(f"left the machine: {route.request.url}")
        await route.abort()

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            found.append(f"console: {message.text}")

    try:
        await context.route(OFF_LOOPBACK, abort)
        context.on("console", heard)
        context.on("weberror", lambda error: found.append(f"error: {error.error}"))
        page = await context.new_page()
        await page.goto(link)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url("**/dev")
        yield Developer(page, link.partition("/link/")[0], found)
        assert found == []
    finally:
        await context.close()


async def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with a page."""
    await page.evaluate(AXE.read_text("utf-8"))
    found = await page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES
    )
    assert len(found["passes"]) > 5, "axe has looked"
    return [
        f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']])[:400]}"
        for one in found["violations"]
    ]


async def overflow(page: Page) -> int:
    """Return how far a page reaches to the right, in pixels beyond the window."""
    return await page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
