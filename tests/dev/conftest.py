"""One browser and one `antiphon dev` for all tests here that change nothing about the server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.people import launch
from tests.dev.browsing import Developer, Workshop, developer, workshop


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bench(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Developer]:
    """A workshop that runs, and somebody signed in to it."""
    async with (
        workshop(tmp_path_factory.mktemp("workshop")) as running,
        developer(browser, running.link) as person,
    ):
        yield person


@pytest_asyncio.fixture(loop_scope="session")
async def own_workshop(tmp_path: Path) -> AsyncIterator[Workshop]:
    """A workshop whose file a test may edit."""
    async with workshop(tmp_path) as running:
        yield running
