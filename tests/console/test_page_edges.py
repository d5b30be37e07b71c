"""What a page, a session or a stream does when somebody tries more than it is for."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Server
from antiphon.apps.console.app import ConsoleApp
from antiphon.apps.console.guard import place_of
from antiphon.apps.console.live import PER_SESSION
from antiphon.apps.console.notices import NoticeSender
from antiphon.console import Console, Webhook
from antiphon.protocol.inbox import Face, NewNotice, Person
from antiphon.stores.sqlite import SqliteStore
from antiphon.testing import KEY
from tests.console.console_inbox import (
    ANNA,
    CARL,
    ISSUER,
    ORIGIN,
    OURS,
    URL,
    ConsoleInbox,
    form_of,
    schema,
)


@pytest.fixture
def held_inbox() -> ConsoleInbox:
    return ConsoleInbox()


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "1e999"])
async def test_a_number_that_is_none_is_no_answer(held_inbox: ConsoleInbox, value: str) -> None:
    face = Face("How much?", schema=schema(price={"type": "number"}))
    item = await held_inbox.put(face, kind="form", role="", own=True)
    async with held_inbox.signed_in(CARL) as carl:
        page = await carl.get(f"/console/ask/{item.id}")
        sent = form_of(page, "answer", **{"field-price": value})
        answer = await carl.post(f"/console/ask/{item.id}", data=sent, headers=OURS)
    assert answer.status_code == 422
    assert await held_inbox.status(item) == "open"


async def test_everything_that_is_bound_is_shown_to_its_end(held_inbox: ConsoleInbox) -> None:
    long = "x" * 8_000
    face = Face(
        f"Run {long} M-END?",
        (("Query", f"SELECT {long} D-END"),),
        f"because {long} W-END",
        arguments=f'{{"sql": "{long} A-END"}}'.encode(),
    )
    item = await held_inbox.put(face)
    async with held_inbox.signed_in(ANNA) as anna:
        page = await anna.get(f"/console/ask/{item.id}")
    shown = page.text[page.text.index("<h1>") :]
    for end in ("M-END", "D-END", "W-END", "A-END"):
        assert end in shown, end


async def test_an_operator_reads_neither_question_nor_notes(held_inbox: ConsoleInbox) -> None:
    item = await held_inbox.put()
    async with held_inbox.signed_in(ANNA) as anna:
        sent = form_of(await anna.get(f"/console/ask/{item.id}"), note="the secret reason")
        await anna.post(f"/console/ask/{item.id}", data=sent, headers=OURS)
        assert "the secret reason" in (await anna.get(f"/console/ask/{item.id}")).text
    async with held_inbox.signed_in(Person(ISSUER, "olaf", "Olaf", ("operator",))) as olaf:
        page = await olaf.get(f"/console/ask/{item.id}")
    assert page.status_code == 200
    assert "the secret reason" not in page.text
    assert "order 4711" not in page.text


async def test_a_session_is_none_at_another_server_with_the_same_store_and_keys(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "shared.db")
    await store.open()
    try:
        apps: list[ConsoleApp] = []
        for name in ("shop", "bank"):
            server = Server(name, store=store, environ={"ANTIPHON_KEYS": KEY})
            environment = server._services  # pyright: ignore[reportPrivateUsage]
            view = store.for_server(name)
            apps.append(ConsoleApp(environment, view, Console(URL)))
        shop, bank = apps
        link = await shop.make_link(ANNA)
        for app, status in ((bank, 403), (shop, 303)):
            async with _browser(app) as client:
                assert (await client.post(link, headers=OURS)).status_code == status
                cookies = dict(client.cookies)
        place = place_of(cookies["antiphon-console-8401"], Console(URL))
        async with _browser(bank) as client:
            client.cookies.update(cookies)
            client.base_url = client.base_url.copy_with(path=place)
            assert (await client.get("/console/inbox")).status_code == 303
    finally:
        await store.close()


def _browser(app: Any) -> Any:
    import httpx

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN)


async def _open_stream(
    held_inbox: ConsoleInbox,
    cookie: str,
    *,
    gone: bool = False,
    seen: Callable[[], None] | None = None,
) -> int:
    """Open a stream as a server would; returns its status once it has ended.

    With `gone`, nobody is there from the start; with `seen`, somebody stays and sees every event.
    """
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    headers = [
        (b"host", b"127.0.0.1:8401"),
        (b"cookie", f"antiphon-console-8401={cookie}".encode()),
    ]
    path = f"{place_of(cookie, held_inbox.console)}/console/events"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": headers, "scheme": "http", "root_path": "",
        "server": ("127.0.0.1", 8401), "client": ("127.0.0.1", 1), "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip

    async def receive() -> Any:
        await (started if seen is None else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.set_result(message["status"])
            if gone:
                raise OSError("the browser has gone")
        elif seen is not None:
            seen()

    with contextlib.suppress(OSError, BaseExceptionGroup):
        await held_inbox.app(scope, receive, send)
    return await started


@pytest.mark.parametrize("gone", [False, True], ids=["later", "before its first event"])
async def test_a_stream_gives_its_place_back_however_it_ends(
    held_inbox: ConsoleInbox, *, gone: bool
) -> None:
    async with held_inbox.signed_in(ANNA) as anna:
        cookie = anna.cookies["antiphon-console-8401"]
    for _ in range(PER_SESSION + 2):
        assert await _open_stream(held_inbox, cookie, gone=gone) == 200


async def test_a_page_that_is_only_open_does_not_keep_its_session_alive(
    held_inbox: ConsoleInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.apps.console.live.LOOK_EVERY", 0.0)
    monkeypatch.setattr("antiphon.apps.console.live.KEEP_ALIVE", -1.0)
    begun = held_inbox.clock.now

    def an_hour_passes() -> None:
        held_inbox.clock.now += 3600

    async with held_inbox.signed_in(ANNA) as anna:
        cookie = anna.cookies["antiphon-console-8401"]
        async with asyncio.timeout(20):
            assert await _open_stream(held_inbox, cookie, seen=an_hour_passes) == 200
        assert held_inbox.clock.now - begun < 10 * 3600
        assert (await anna.get("/console/inbox")).status_code == 303


async def test_a_page_that_looks_for_changes_does_not_keep_its_session_alive(
    held_inbox: ConsoleInbox,
) -> None:
    async with held_inbox.signed_in(ANNA) as anna:
        held_inbox.clock.now += 7 * 3600
        changed = await anna.get("/console/inbox", headers={"x-live": "1"})
        assert changed.status_code == 200
        held_inbox.clock.now += 2 * 3600
        assert (await anna.get("/console/inbox")).status_code == 303
    async with held_inbox.signed_in(ANNA) as anna:
        for _ in range(2):
            held_inbox.clock.now += 7 * 3600
            assert (await anna.get("/console/inbox")).status_code == 200


async def test_the_cookie_of_a_login_under_way_is_for_this_host_alone() -> None:
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response

    class Elsewhere:
        async def begin(self, request: Request, started: Any, *, fresh: bool) -> Response:
            await started.remember("state", b"{}")
            return RedirectResponse("https://id.example/", 303)

        async def finish(self, request: Request, started: Any) -> Person | None:
            return ANNA if await started.recall("state") is not None else None

    held_inbox = ConsoleInbox(url="https://mcp.example/console", login=Elsewhere())
    async with held_inbox.browser("https://mcp.example") as anna:
        answer = await anna.get("/console/login")
        cookie = answer.headers["set-cookie"]
        assert re.match(r"__Host-\S+=", cookie)
        assert "Secure" in cookie
        assert "Path=/;" in cookie
        assert (await anna.get("/console/login/callback")).status_code == 303
    async with held_inbox.browser("https://mcp.example") as eve:
        assert (await eve.get("/console/login/callback")).status_code == 403


async def test_a_notice_that_cannot_be_signed_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    targets = [
        Webhook("https://a.example/", secret="env:NO_SUCH_SECRET", name="a"),
        Webhook("https://b.example/", secret="secret", name="b"),
    ]
    held_inbox = ConsoleInbox(notify=targets)
    sent: list[str] = []

    async def post(url: str, body: bytes, headers: dict[str, str]) -> int:
        sent.append(url)
        return 200

    await held_inbox.put(notices=(NewNotice("1", "asked", "a"), NewNotice("2", "asked", "b")))
    sender = NoticeSender(held_inbox.environment, held_inbox.store, held_inbox.console, post)
    assert await sender.send_due() == 2
    assert sent == ["https://b.example/"]
