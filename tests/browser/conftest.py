"""One browser and one set of servers for all tests here; a context for each person of a test."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from antiphon.console import Person
from tests import servers
from tests.browser.people import People, Visitor, launch
from tests.browser.running import RunningShop
from tests.browser.shop import ISSUER

PLACES = ["sqlite beside", "postgres alone"]
"""Which store, and whether the pages are served beside the endpoint or by their own process."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        yield browser
        await browser.close()


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with servers.postgres() as dsn:
        yield dsn


MakeShop = Callable[..., Any]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def make_shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MakeShop]:
    """Start each kind of shop once, when it is first needed."""
    started: dict[tuple[str, str], RunningShop] = {}
    async with AsyncExitStack() as stack:

        async def make(place: str, login: str = "") -> RunningShop:
            if (place, login) not in started:
                folder = tmp_path_factory.mktemp("shop")
                store = f"sqlite:///{folder / 'shop.db'}"
                name = "shop"
                if place.startswith("postgres"):
                    # A database that was given may be used by another run of the tests.
                    store, name = request.getfixturevalue("postgres_dsn"), f"shop-{uuid4().hex}"
                alone = place.endswith("alone")
                shop = RunningShop(store, folder, alone=alone, login=login, name=name)
                started[place, login] = await stack.enter_async_context(shop.running())
            return started[place, login]

        yield make


@pytest_asyncio.fixture(loop_scope="session", params=PLACES)
async def shop(request: pytest.FixtureRequest, make_shop: MakeShop) -> RunningShop:
    """The shop on both stores, with its pages beside it and alone."""
    return await make_shop(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def sqlite_shop(make_shop: MakeShop) -> RunningShop:
    """The shop, for what no store has a part in."""
    return await make_shop(PLACES[0])


@pytest_asyncio.fixture(loop_scope="session")
async def people(browser: Browser) -> AsyncIterator[People]:
    """People at browsers, none of which may do what no page may do."""
    people = People(browser)
    yield people
    assert people.watch.found == []


class SignIn(Protocol):
    def __call__(
        self, shop: RunningShop, name: str, *roles: str, **options: Any
    ) -> AbstractAsyncContextManager[Visitor]: ...


@pytest.fixture
def mark() -> str:
    """What the names of a test's roles and callers end with, so that tests share no items."""
    return uuid4().hex[:6]


@pytest.fixture
def role(mark: str) -> str:
    return f"finance-{mark}"


@pytest.fixture
def carl(mark: str) -> str:
    """Who calls."""
    return f"carl-{mark}"


@pytest.fixture
def sign_in(people: People, mark: str) -> SignIn:
    """Let people come in with a link that works once."""

    @asynccontextmanager
    async def enter(
        shop: RunningShop, name: str, *roles: str, **options: Any
    ) -> AsyncIterator[Visitor]:
        person = Person(ISSUER, f"{name.split()[0].lower()}-{mark}", name, roles)
        async with people.nobody(shop.url, **options) as visitor:
            # What pressing the button of the link's page does, without the time to show it.
            answer = await visitor.page.context.request.post(
                await shop.link(person), headers={"origin": shop.origin}, max_redirects=0
            )
            assert answer.status == 303, await answer.text()
            pages = shop.origin + answer.headers["location"].removesuffix("/inbox")
            yield Visitor(visitor.page, pages, person)

    return enter
