"""The pictures of the docs: `python -m tests.dev.pictures` makes them, from a server that runs.

The same scenes are played by a test, so that none can fail unseen; only this command writes them.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, async_playwright, expect

from tests.browser.people import launch
from tests.cli.running import ROOT
from tests.dev.browsing import ViewportSize, developer, workshop

IMAGES = ROOT / "docs" / "images" / "dev"
WIDE: ViewportSize = {"width": 1280, "height": 900}


async def take(browser: Browser, link: str, folder: Path) -> list[Path]:
    """Play the scenes and keep a picture of each."""
    taken = [folder / "round.png", folder / "disturbed.png"]
    async with developer(browser, link, viewport=WIDE) as person:
        await person.call("provision", name="orders")
        await person.place()
        await expect(person.page.locator("tr.again")).to_have_count(2)
        await person.page.screenshot(path=taken[0])
        await person.do("Tamper")
        await person.approve()
        await person.result()
        await person.do("Send again")
        await person.page.screenshot(path=taken[1])
    return taken


async def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with async_playwright() as playwright, workshop(Path(folder)) as running:
            browser = await launch(playwright)
            for path in await take(browser, running.link, IMAGES):
                print(path.relative_to(ROOT))
            await browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
