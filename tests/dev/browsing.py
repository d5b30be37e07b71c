"""`antiphon dev` as a process, and a person at a browser in front of it."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Locator, Page, ViewportSize, expect

from tests.browser.people import People
from tests.cli.running import ANTIPHON, environment

PHONE: ViewportSize = {"width": 360, "height": 740}
DESKTOP: ViewportSize = {"width": 1400, "height": 900}
WORKSHOP = Path(__file__).with_name("workshop.py")


class Workshop:
    """`antiphon dev` in a folder of its own."""

    def __init__(
        self, folder: Path, process: asyncio.subprocess.Process, link: str, printed: list[str]
    ) -> None:
        self.folder = folder
        self._process = process
        self.link = link
        self.printed = printed

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


NOT_STARTED = "Save its file, and it is tried again."


@asynccontextmanager
async def workshop(folder: Path, *, broken: bool = False) -> AsyncIterator[Workshop]:
    """Run `antiphon dev workshop.py`, and wait for its link.

    A broken file is mended when the command has said that the server does not start.
    """
    shutil.copy(WORKSHOP, folder / "workshop.py")
    if broken:
        (folder / "workshop.py").write_text("server = (", "utf-8")
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON,
        "dev",
        "workshop.py",
        cwd=folder,
        env=environment(LOGNAME="ada"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    printed: list[str] = []
    not_started = asyncio.Event()
    reading = asyncio.create_task(_read(process, printed, not_started))
    try:
        if broken:
            await asyncio.wait_for(not_started.wait(), 60)
            shutil.copy(WORKSHOP, folder / "workshop.py")
        line = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
        assert "/link/" in line, "".join(printed)
        started = Workshop(folder, process, line.strip(), printed)
        yield started
        await started.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading


async def _read(
    process: asyncio.subprocess.Process, printed: list[str], not_started: asyncio.Event
) -> None:
    """Keep what the command says to people."""
    assert process.stderr is not None
    async for line in process.stderr:
        printed.append(line.decode())
        if NOT_STARTED in printed[-1]:
            not_started.set()


class Developer:
    """A person at the developer's console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

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
    people = People(browser)
    async with people.context(**{"viewport": DESKTOP, **options}) as context:
        page = await context.new_page()
        await page.goto(link)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url("**/dev")
        yield Developer(page, page.url.removesuffix("/dev"))
    assert people.watch.found == []
