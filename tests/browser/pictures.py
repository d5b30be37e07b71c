"""The pictures of the docs: `python -m tests.browser.pictures` makes them, from a shop that runs.

The same scenes are played by a test, so that none can fail unseen; only this command writes them.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

from antiphon.console import Person
from tests.browser.people import People, Visitor, launch
from tests.browser.running import RunningShop
from tests.browser.shop import ISSUER
from tests.child_processes import ROOT

IMAGES = ROOT / "docs" / "images"
PHONE = {"width": 360, "height": 780}
WIDE = {"width": 900, "height": 470}
WAITING = [
    ("4714", "The shop sent the same parcel twice.", {"within": 40 * 60}),
    ("4713", "Never arrived.", {"within": 3 * 3600}),
]


@asynccontextmanager
async def signed_in(people: People, shop: RunningShop, **options: Any) -> AsyncIterator[Visitor]:
    anna = Person(ISSUER, "anna", "Anna Berg", ("finance",))
    async with people.nobody(shop.url, device_scale_factor=1.5, **options) as visitor:
        await visitor.page.goto(await shop.link(anna))
        await visitor.press("Sign in")
        await visitor.page.wait_for_url("**/console/inbox")
        yield Visitor(visitor.page, visitor.page.url.removesuffix("/inbox"), anna)


async def take(people: People, shop: RunningShop, folder: Path) -> list[Path]:
    """Play the scenes and keep a picture of each."""
    refund = await shop.refund("finance", "carl", "4711", reason="The parcel was damaged.")
    taken = [folder / f"{name}.png" for name in ("item-phone", "inbox-dark", "decided-phone")]
    async with signed_in(people, shop, viewport=PHONE) as anna:
        await anna.open(refund.message)
        await anna.page.screenshot(path=taken[0])
        await anna.page.get_by_role("textbox", name="Note").fill("Seen the photos.")
        for order, reason, rules in WAITING:
            await shop.refund("finance", "carl", order, reason=reason, rules=rules)
        async with signed_in(people, shop, viewport=WIDE, color_scheme="dark") as wide:
            await wide.page.screenshot(path=taken[1])
        await anna.press("Approve")
        await anna.page.get_by_role("status").first.wait_for()
        await anna.page.screenshot(path=taken[2])
    return taken


async def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shop = RunningShop(f"sqlite:///{folder}/shop.db", Path(folder), alone=False)
        async with async_playwright() as playwright, shop.running():
            browser = await launch(playwright)
            people = People(browser)
            for path in await take(people, shop, IMAGES):
                print(path.relative_to(ROOT))
            await browser.close()
    return 1 if people.watch.found else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
