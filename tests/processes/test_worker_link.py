"""The private socket between workers, by itself: whole requests over, whole answers back."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antiphon.protocol.changes import TASK, Change, Changes
from antiphon.protocol.request import Principal
from antiphon.transports.http.request import Message, Receive, Send
from antiphon.transports.legacy.gateway import LegacyRequest
from antiphon.transports.processes.worker_link import CHUNK_BYTES, WorkerLink

ADA = Principal(issuer="https://id.example", subject="ada", client_id="desk")
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/mcp",
    "root_path": "",
    "query_string": b"a=1",
    "headers": [(b"mcp-session-id", b"w1-abc"), (b"accept", b"*/*")],
}


class OtherWorker:
    """A worker that others speak to."""

    def __init__(self, serve: "Serve | None" = None) -> None:
        self._serve = serve
        self.news: list[tuple[str, str]] = []
        self.told = asyncio.Event()
        self.changes = Changes()
        self.changes.subscribe(self._changed)

    async def serve_forwarded(self, request: LegacyRequest) -> None:
        assert self._serve is not None
        await self._serve(*request)

    def _changed(self, change: Change) -> None:
        self.news.append(change)
        self.told.set()


Serve = Callable[[MutableMapping[str, Any], Receive, Send, bytes, Principal], Awaitable[None]]


class Client:
    """The client's end of one request."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[Message] = []
        self.heard = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.heard.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def finished(self) -> bool:
        last = self.sent[-1] if self.sent else {}
        return last.get("type") == "http.response.body" and not last["more_body"]


async def passed(folder: Path, client: Client, body: bytes = b"{}") -> None:
    async with asyncio.timeout(20):
        await WorkerLink(folder, 0).forward(
            1, LegacyRequest(SCOPE, client.receive, client.send, body, ADA)
        )


@pytest.mark.parametrize(
    ("session", "holder"),
    [("w1-abc", 1), ("w12-abc", 12), ("w0-abc", None), ("abc", None), ("w-1", None), ("", None)],
)
def test_a_session_id_names_its_worker(tmp_path: Path, session: str, holder: int | None) -> None:
    assert WorkerLink(tmp_path, 0).owner_of(session) == holder


async def test_a_request_arrives_as_it_came_with_who_is_calling(tmp_path: Path) -> None:
    arrived: list[Any] = []
    large = bytes(range(256)) * 4 * 4096

    async def serve(
        scope: MutableMapping[str, Any], receive: Receive, send: Send, body: bytes, owner: Principal
    ) -> None:
        arrived.extend((scope, body, owner))
        await send({"type": "http.response.start", "status": 202, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": body + b"!"})

    client = Client()
    async with WorkerLink(tmp_path, 1).listening(OtherWorker(serve)):
        await passed(tmp_path, client, large)
    scope, body, owner = arrived
    assert {name: scope[name] for name in SCOPE} == SCOPE
    assert (body, owner) == (large, ADA)
    assert client.sent[0] == {
        "type": "http.response.start",
        "status": 202,
        "headers": [(b"a", b"b")],
    }
    assert client.body == large + b"!"
    assert client.finished
    assert max(len(message.get("body", b"")) for message in client.sent) <= CHUNK_BYTES


async def test_a_stream_comes_through_piece_by_piece(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def serve(_: Any, receive: Receive, send: Send, body: bytes, owner: Principal) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await more.wait()
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    client = Client()
    async with WorkerLink(tmp_path, 1).listening(OtherWorker(serve)):
        passing = asyncio.create_task(passed(tmp_path, client))
        async with asyncio.timeout(20):
            while client.body != b"one":
                client.heard.clear()
                await client.heard.wait()
        assert not client.finished
        more.set()
        await passing
    assert client.body == b"onetwo"
    assert client.finished


async def test_a_client_that_goes_away_is_gone_for_the_other_worker_too(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def serve(_: Any, receive: Receive, send: Send, body: bytes, owner: Principal) -> None:
        began.set()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended.set()

    client = Client()
    async with WorkerLink(tmp_path, 1).listening(OtherWorker(serve)), asyncio.timeout(20):
        passing = asyncio.create_task(passed(tmp_path, client))
        await began.wait()
        client.left.set()
        await ended.wait()
        await passing
    assert client.sent == []


async def test_a_worker_that_dies_before_it_answers_took_its_session_with_it(
    tmp_path: Path,
) -> None:
    async def serve(*_: Any) -> None:
        raise ConnectionResetError

    client = Client()
    async with WorkerLink(tmp_path, 1).listening(OtherWorker(serve)):
        await passed(tmp_path, client)
    assert client.sent[0]["status"] == 404


async def test_a_worker_that_dies_in_the_middle_leaves_the_answer_unfinished(
    tmp_path: Path,
) -> None:
    async def serve(_: Any, receive: Receive, send: Send, body: bytes, owner: Principal) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ConnectionResetError

    client = Client()
    async with WorkerLink(tmp_path, 1).listening(OtherWorker(serve)):
        await passed(tmp_path, client)
    assert client.body == b"half"
    assert not client.finished


async def test_nobody_there_is_not_found(tmp_path: Path) -> None:
    client = Client()
    await passed(tmp_path, client)
    assert client.sent[0]["status"] == 404


async def test_what_one_worker_announces_every_other_hears(tmp_path: Path) -> None:
    workers = [OtherWorker() for _ in range(3)]
    links = [WorkerLink(tmp_path, number) for number in range(3)]
    news = [("resourceSubscriptions", f"shop://order/{number}") for number in range(250)]
    async with AsyncExitStack() as stack:
        for link, worker in zip(links, workers, strict=True):
            await stack.enter_async_context(link.listening(worker))
        await asyncio.to_thread(lambda: [workers[0].changes.announce(*one) for one in news])
        for worker in workers[1:]:
            async with asyncio.timeout(20):
                while len(worker.news) < len(news):
                    worker.told.clear()
                    await worker.told.wait()
            assert worker.news == news
    assert workers[0].news == news, "what others hear is not announced back"


async def test_a_change_is_told_although_a_worker_has_died(tmp_path: Path) -> None:
    dead = tmp_path / "2.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(dead))
    heard, teller = OtherWorker(), OtherWorker()
    async with (
        WorkerLink(tmp_path, 1).listening(heard),
        WorkerLink(tmp_path, 0).listening(teller),
    ):
        teller.changes.announce(TASK, "found in the store instead")
        teller.changes.announce("toolsListChanged")
        async with asyncio.timeout(20):
            await heard.told.wait()
    assert heard.news == [("toolsListChanged", "")]
