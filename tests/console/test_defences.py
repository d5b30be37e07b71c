"""What stands against those who want a decision that nobody made; see docs/security.md."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon import Console, Context, Limits, Server
from antiphon.console import Person
from antiphon.testing import KEY
from tests.console.console_inbox import ANNA, BO, OURS, ConsoleInbox, form_of, go_to_place
from tests.console.shop import Shop, caller

SECRET_WORDS = ("Pay the ransom to", "customer 4711", "because of the parcel", "noted by anna")


class LimitedShop(Shop):
    """A shop whose callers may have two questions open."""

    def server(self) -> Server:
        server = Server(
            "shop",
            store=f"sqlite:///{self.path}",
            environ={"ANTIPHON_KEYS": KEY},
            principal=caller,
            limits=Limits(inbox_items_per_principal=2),
            console=Console("http://127.0.0.1:8401/console"),
        )

        @server.tool(holds=True)
        async def refund(ctx: Context, order: str) -> str:
            approval = await ctx.approve(
                f"Pay the ransom to {order}?",
                details={"Who": "customer 4711"},
                why="because of the parcel",
                by="finance",
                grace=0,
            )
            return approval.outcome

        return server


async def test_one_caller_cannot_fill_the_inbox(tmp_path: Path) -> None:
    shop = LimitedShop(tmp_path)
    for order in ("1", "2"):
        assert "Not done yet" in await shop.text(arguments={"order": order})
    refused = await shop.send(arguments={"order": "3"})
    assert "too many questions open" in str(refused)
    assert len(await shop.open_items()) == 2
    assert "Not done yet" in await shop.text(user="dora", arguments={"order": "3"})


async def test_the_store_has_neither_questions_nor_notes_nor_sessions_in_the_clear(
    tmp_path: Path,
) -> None:
    shop = LimitedShop(tmp_path)
    await shop.send(arguments={"order": "1"})
    server = shop.server()
    async with server.inbox() as pages:
        transport = httpx.ASGITransport(pages)  # pyright: ignore[reportArgumentType]
        address = "http://127.0.0.1:8401"
        async with httpx.AsyncClient(transport=transport, base_url=address) as browser:
            go_to_place(browser, await browser.post(await pages.make_link(ANNA), headers=OURS))
            (cookie,) = browser.cookies.values()
            (item,) = await shop.open_items()
            place = f"/console/ask/{item.id}"
            form = form_of(await browser.get(place), note="noted by anna")
            assert (await browser.post(place, data=form, headers=OURS)).status_code == 303
    with closing(sqlite3.connect(shop.path)) as database, database:
        dump = "\n".join(database.iterdump())
        tables = ("antiphon_inbox", "antiphon_decisions", "antiphon_sessions", "antiphon_tasks")
        rows = [row for name in tables for row in database.execute(f"SELECT * FROM {name}")]
    kept = b"\n".join(
        value if isinstance(value, bytes) else str(value).encode() for row in rows for value in row
    )
    assert len(rows) >= 4
    for words in (*SECRET_WORDS, cookie):
        assert words.encode() not in kept
        assert words not in dump


async def test_a_form_without_a_pressed_button_decides_nothing_and_decline_comes_first() -> None:
    held_inbox = ConsoleInbox()
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(f"/console/ask/{item.id}")
        assert page.text.index('value="decline"') < page.text.index('value="approve"')
        form = form_of(page)
        del form["choice"]
        answer = await anna.post(f"/console/ask/{item.id}", data=form, headers=OURS)
        assert answer.status_code == 400
        both: Any = {**form, "choice": ["decline", "approve"]}
        answer = await anna.post(f"/console/ask/{item.id}", data=both, headers=OURS)
        assert answer.status_code == 400
    assert await held_inbox.status(item) == "open"


async def test_a_role_that_was_taken_away_decides_nothing_any_more() -> None:
    people: dict[str, Person | None] = {"anna": ANNA}
    held_inbox = ConsoleInbox(login=lambda _: people["anna"])
    item = await held_inbox.put()
    async with held_inbox.browser() as anna:
        go_to_place(anna, await anna.get("/console/login"))
        form = form_of(await anna.get(f"/console/ask/{item.id}"))
        people["anna"] = Person(ANNA.issuer, ANNA.subject, ANNA.name, ("ops",))
        answer = await anna.post(f"/console/ask/{item.id}", data=form, headers=OURS)
        assert answer.status_code == 404
        assert await held_inbox.status(item) == "open"
        for changed in (None, BO):
            people["anna"] = ANNA
            go_to_place(anna, await anna.get("/console/login"))
            form = form_of(await anna.get(f"/console/ask/{item.id}"))
            people["anna"] = changed
            answer = await anna.post(f"/console/ask/{item.id}", data=form, headers=OURS)
            assert answer.status_code == 401, "nobody, or somebody else: the session has ended"
            people["anna"] = ANNA
        assert await held_inbox.status(item) == "open"
        go_to_place(anna, await anna.get("/console/login"))
        form = form_of(await anna.get(f"/console/ask/{item.id}"))
        answer = await anna.post(f"/console/ask/{item.id}", data=form, headers=OURS)
        assert answer.status_code == 303


async def test_links_are_made_from_the_setting_and_never_from_a_request(tmp_path: Path) -> None:
    shop = LimitedShop(tmp_path)
    server = shop.server()
    async with server.inbox() as pages:
        link = await pages.make_link(ANNA)
        assert link.startswith("http://127.0.0.1:8401/console/link/")
        transport = httpx.ASGITransport(pages)  # pyright: ignore[reportArgumentType]
        async with httpx.AsyncClient(transport=transport, base_url="http://evil.example") as evil:
            answer = await evil.get("/console/inbox")
            assert answer.status_code == 403
            assert "evil.example" not in answer.text


@pytest.mark.parametrize("how", ["same digest twice", "two people at once"])
async def test_two_decisions_at_once_are_one(how: str) -> None:
    import asyncio

    held_inbox = ConsoleInbox()
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna, held_inbox.signed_in(BO) as bo:
        second = anna if how == "same digest twice" else bo
        forms = [form_of(await who.get(f"/console/ask/{item.id}")) for who in (anna, second)]
        answers = await asyncio.gather(
            anna.post(f"/console/ask/{item.id}", data=forms[0], headers=OURS),
            second.post(f"/console/ask/{item.id}", data=forms[1], headers=OURS),
        )
    assert sorted(answer.status_code for answer in answers) == [303, 409]
    assert len(await held_inbox.store.decisions(item.server)) == 1


async def post_raw(
    held_inbox: ConsoleInbox, path: str, headers: dict[str, str], pieces: list[bytes | None]
) -> tuple[int, int]:
    """Send a form in pieces, where None never comes; return the status and the pieces left."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        if piece is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    head = {
        "host": "127.0.0.1:8401",
        "content-type": "application/x-www-form-urlencoded",
        **OURS,
        **headers,
    }
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": b"",
        "query_string": b"", "root_path": "", "scheme": "http", "server": ("127.0.0.1", 8401),
        "headers": [(name.encode(), value.encode()) for name, value in head.items()],
    }  # fmt: skip
    await held_inbox.app(scope, receive, send)
    return sent[0]["status"], len(pieces)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-length": "200000"}, 401),
        ({"transfer-encoding": "chunked"}, 401),
        ({"content-length": "200000", "cookie": "antiphon-console-8401=invented"}, 401),
        ({"content-length": "300000"}, 413),
    ],
)
@pytest.mark.parametrize("path", ["/console/ask/x", "/console/ask/x/withdraw", "/console/logout"])
async def test_the_form_of_a_stranger_is_refused_before_it_is_read(
    path: str, headers: dict[str, str], status: int
) -> None:
    held_inbox = ConsoleInbox()
    assert await post_raw(held_inbox, path, headers, [b"note=", None]) == (status, 2)


async def test_a_form_has_one_time_for_all_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.apps.console.app.BODY_SECONDS", 0.05)
    held_inbox = ConsoleInbox()
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        signed = {"cookie": "; ".join(f"{name}={value}" for name, value in anna.cookies.items())}
        path = f"{anna.base_url.path}console/ask/{item.id}"
    status, _ = await post_raw(held_inbox, path, signed, [b"note=", b"a", None])
    assert status == 408
    assert await held_inbox.status(item) == "open"
