"""People at browsers: each with a context of their own, watched for what no page may do.

A request that leaves the machine is aborted and counted; whatever the content security policy
refuses, and every error of a script, is written down. `Watch.found` must stay empty.
"""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Route,
    expect,
)

from antiphon.console import Person
from tests.child_processes import ROOT

AXE = ROOT / ".peers" / "node" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 800}
OFF_LOOPBACK = re.compile(r"^(?!https?://127\.0\.0\.1[:/])")
PATIENCE = 30_000.0
"""Milliseconds for a page to do what is awaited, on a busy machine."""


expect.set_options(timeout=PATIENCE)


async def launch(playwright: Playwright) -> Browser:
    """Start the browser of this machine."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "Chromium is needed: run `make peers`"
    return await playwright.chromium.launch(
        executable_path=path, args=["--no-sandbox", "--disable-gpu", "--lang=en"]
    )


class Watch:
    """What the browsers of a test did that no page may do."""

    def __init__(self) -> None:
        self.found: list[str] = []

    async def over(self, context: BrowserContext) -> None:
        """Watch everything that a context does from now on."""
        await context.route(OFF_LOOPBACK, self._abort)
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.found.append(f"error: {error.error}"))

    async def _abort(self, route: Route) -> None:
        self.found.append(f"left the machine: {route.request.url}")
        await route.abort()

    def _heard(self, message: ConsoleMessage) -> None:
        # A browser also tells of every answer with an error status, and of some that are expected.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.found.append(f"console: {message.text}")


class Visitor:
    """A person at a browser."""

    def __init__(self, page: Page, url: str, person: Person | None = None) -> None:
        self.page = page
        self.url = url
        self.person = person

    @property
    def subject(self) -> str:
        assert self.person is not None
        return self.person.subject

    async def inbox(self, view: str = "for-me") -> None:
        """Open a list of the inbox."""
        await self.page.goto(f"{self.url}/inbox?view={view}")

    async def open(self, message: str, view: str = "for-me") -> None:
        """Open an item from a list, as a person does: by its link."""
        await self.inbox(view)
        await self.page.get_by_role("link", name=message, exact=True).click()
        await self.page.get_by_role("heading", name=message, exact=True).wait_for()

    async def open_when_asked(self, message: str) -> None:
        """Open a question of one's own that a task asks when it runs."""
        link = self.page.get_by_role("link", name=message, exact=True)
        async with asyncio.timeout(PATIENCE / 1000):
            await self.inbox()
            while not await link.count():
                await self.page.reload()
        await link.click()
        await self.page.get_by_role("heading", name=message, exact=True).wait_for()

    async def press(self, button: str, *, force: bool = False) -> None:
        """Press a button when it can be pressed, or with `force` as it is."""
        await self.page.get_by_role("button", name=button, exact=True).click(force=force)

    async def status(self) -> str:
        """Return the first status of the page that says something."""
        shown = self.page.get_by_role("status").filter(has_text=re.compile(r"\S"))
        return (await shown.first.inner_text()).strip()

    async def focused(self) -> str:
        """Return the id, or else the text, of what has the focus."""
        return await self.page.evaluate(
            "document.activeElement.id || document.activeElement.textContent.trim()"
        )


class People:
    """Makes browsers for people, all with one watch."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.watch = Watch()

    @asynccontextmanager
    async def context(self, **options: Any) -> AsyncIterator[BrowserContext]:
        """A browser that knows nothing yet."""
        usual = {"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce"}
        context = await self._browser.new_context(**{**usual, **options})
        context.set_default_timeout(PATIENCE)
        try:
            await self.watch.over(context)
            yield context
        finally:
            await context.close()

    @asynccontextmanager
    async def nobody(self, url: str, **options: Any) -> AsyncIterator[Visitor]:
        """Somebody who is not signed in."""
        async with self.context(**options) as context:
            yield Visitor(await context.new_page(), url)


async def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with a page, for people who cannot see, hear or point well."""
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
