"""A console with items in its inbox, and people who look at it over HTTP."""

import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from antiphon import Server
from antiphon.apps.console.app import ConsoleApp
from antiphon.console import Console
from antiphon.ports import HeldCall, Inbox, NewTask
from antiphon.protocol.inbox import Face, Item, NewItem, Person, encode_face, terms_of
from antiphon.testing import KEY

URL = "http://127.0.0.1:8401/console"
ORIGIN = "http://127.0.0.1:8401"
OURS = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
ISSUER = "https://id.example"

ANNA = Person(ISSUER, "anna", "Anna Berg", ("finance",))
BO = Person(ISSUER, "bo", "Bo Lind", ("finance", "ops"))
CARL = Person(ISSUER, "carl", "Carl Dahl", ("finance",))
"""Who made the calls."""

DORA = Person(ISSUER, "dora", "Dora Ek")


class Clock:
    """A clock that a test can set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class ConsoleInbox:
    """A server's console and what is in its inbox."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        settings = options.pop("server", {})
        self.console = Console(options.pop("url", URL), **options)
        server = Server("shop", environ={"ANTIPHON_KEYS": KEY}, clock=self.clock, **settings)
        self.environment = server._services  # pyright: ignore[reportPrivateUsage]
        self.store: Inbox = self.environment.store  # pyright: ignore[reportAttributeAccessIssue]
        self.app = ConsoleApp(self.environment, self.store, self.console)

    async def put(self, face: Face | None = None, **changes: Any) -> Item:
        """Put an item into the inbox, as a held call does."""
        face = face or Face("Refund 120.00 EUR for order 4711?", (("Customer", "ACME Ltd"),))
        id, call = secrets.token_hex(16), secrets.token_hex(8)
        item = NewItem(
            id=id,
            server=self.environment.sealer.audience,
            call=call,
            key="approve",
            task=f"task-{id}",
            tool="refund",
            owner=CARL.identity,
            role="finance",
            need=1,
            own=False,
            assurance="signed-in",
            digest=b"shown",
            arguments=b"arguments",
            within=3_600.0,
            face=b"",
        )
        item = msgspec.structs.replace(item, **changes)
        face = msgspec.structs.replace(face, terms=terms_of(item))
        sealed = await self.environment.protect(encode_face(face), f"item {id}")
        item = msgspec.structs.replace(item, face=sealed)
        task = NewTask(
            id=item.task,
            server=item.server,
            owner="carl",
            tool=item.tool,
            status="working",
            message="waits",
            created=self.clock(),
            expires=self.clock() + 7_200,
            state=b"",
            call=call,
            held=HeldCall((item,), 3_600.0),
        )
        assert await self.environment.store.create_task(task)  # pyright: ignore[reportAttributeAccessIssue]
        kept = await self.store.item(id)
        assert kept is not None
        return kept

    def change(self, item: Item, **changes: Any) -> None:
        """Change the row of an item, as somebody who writes the store does."""
        rows: Any = self.store
        rows._inbox[item.id] = msgspec.structs.replace(item, **changes)

    async def status(self, item: Item) -> str:
        kept = await self.store.item(item.id)
        assert kept is not None
        return kept.status

    @asynccontextmanager
    async def browser(self, origin: str = ORIGIN) -> AsyncIterator[httpx.AsyncClient]:
        """A browser in which nobody is signed in."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=origin) as client:
            yield client

    @asynccontextmanager
    async def signed_in(self, person: Person) -> AsyncIterator[httpx.AsyncClient]:
        """A browser in which somebody is signed in."""
        async with self.browser() as client:
            link = await self.app.make_link(person)
            answer = await client.post(link, headers=OURS)
            assert answer.status_code == 303, answer.text
            go_to_place(client, answer)
            yield client


def go_to_place(client: httpx.AsyncClient | httpx.Client, answer: httpx.Response) -> str:
    """Stay below the path of its own that a session got, in the response that signed in.

    Returns the path; addresses are read from there on: `/console/inbox` is what stands behind it.
    """
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"].partition("/console/")[0]
    assert place.startswith("/s-")
    client.base_url = client.base_url.copy_with(path=place)
    return place


def hidden(page: httpx.Response, name: str) -> str:
    """Return a hidden field of a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found is not None, page.text
    return found[1]


def form_of(page: httpx.Response, choice: str = "approve", **changes: Any) -> dict[str, Any]:
    """Return what pressing a button of the page sends."""
    sent = {name: hidden(page, name) for name in ("token", "digest", "shown")}
    return {**sent, "choice": choice, "note": "", **changes}


def statuses(page: httpx.Response) -> list[str]:
    """Return the texts of a page that say what has happened."""
    return re.findall(r'role="status" class="decided">([^<]*)', page.text)


def schema(**properties: Any) -> bytes:
    return json.dumps(
        {"type": "object", "properties": properties, "required": list(properties)}
    ).encode()
