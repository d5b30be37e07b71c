"""Notices: signed as Standard Webhooks, sent until they are taken, under an id that stays."""

import asyncio
import base64
import hashlib
import hmac
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from antiphon import ConfigError, Console, Context, Server
from antiphon.apps.console.notices import NoticeSender
from antiphon.console import Webhook
from antiphon.ports import Inbox, ItemFilter
from antiphon.protocol.inbox import Attempt, Person
from antiphon.testing import KEY
from antiphon.testing import FakeClock as Clock

SECRET = "whsec_" + base64.b64encode(b"a secret of the receiver").decode()
ANNA = Person("https://id.example", "anna", "Anna", ("finance",))


@pytest.fixture(autouse=True)
def _sent_by_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server's own sender rest: the test sends what is due, when it wants."""

    async def rest(self: NoticeSender) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(NoticeSender, "run", rest)


class Receiver:
    """Takes what is sent, or refuses it."""

    def __init__(self) -> None:
        self.status = 204
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        assert url == "https://hook.example/antiphon"
        content = b".".join(
            [headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body]
        )
        mac = hmac.new(b"a secret of the receiver", content, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
        self.got.append((headers, json.loads(body)))
        return self.status

    @property
    def kinds(self) -> list[str]:
        return [body["type"] for _, body in self.got]


def make(clock: Clock, **options: Any) -> tuple[Server, NoticeSender, Receiver]:
    hook = Webhook("https://hook.example/antiphon", secret=SECRET)
    console = Console("http://127.0.0.1:8401/console", notify=[hook], **options)
    server = Server(
        "shop",
        environ={"ANTIPHON_KEYS": KEY},
        console=console,
        clock=clock,
    )

    @server.tool(holds=True)
    async def refund(ctx: Context) -> str:
        return (await ctx.approve("Pay?", details={"To": "ada"}, by="finance", grace=0.01)).outcome

    receiver = Receiver()
    environment = server._services  # pyright: ignore[reportPrivateUsage]
    inbox: Inbox = environment.store  # pyright: ignore[reportAssignmentType]
    return server, NoticeSender(environment, inbox, console, receiver.post), receiver


async def ask(server: Server) -> None:
    async def ignore(method: str, params: Any) -> None: ...

    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    await server.exchange("tools/call", {"name": "refund", "arguments": {}, "_meta": meta}, ignore)


@pytest.mark.parametrize("details", [False, True])
async def test_a_question_and_its_decision_are_told(details: bool) -> None:
    clock = Clock()
    server, sender, receiver = make(clock, notice_details=details)
    async with server.running():
        await ask(server)
        assert await sender.send_due() == 1
        assert await sender.send_due() == 0
        inbox: Any = server._services.store  # pyright: ignore[reportPrivateUsage]
        (item,) = await inbox.items(ItemFilter("shop", open=True))
        page = server.pages()
        assert page is not None
        (headers, body) = receiver.got[0]
        assert body["type"] == "approval.asked"
        assert body["data"]["url"] == f"http://127.0.0.1:8401/console/ask/{item.id}"
        assert ("message" in body["data"]) is details
        assert ("Pay?" in json.dumps(body)) is details
        assert len(headers["webhook-id"]) >= 32
        await inbox.decide(Attempt(item.id, ANNA, "decline", item.digest))


async def test_a_notice_is_sent_again_under_the_same_id_until_it_is_taken() -> None:
    clock = Clock()
    server, sender, receiver = make(clock)
    async with server.running():
        await ask(server)
        receiver.status = 500
        assert await sender.send_due() == 1
        assert await sender.send_due() == 0, "not at once"
        clock.advance(10)
        receiver.status = 204
        assert await sender.send_due() == 1
        clock.advance(100)
        assert await sender.send_due() == 0
    ids = {headers["webhook-id"] for headers, _ in receiver.got}
    assert len(ids) == 1
    assert receiver.kinds == ["approval.asked"] * 2


async def test_a_target_that_fails_again_and_again_is_logged_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    server, sender, receiver = make(clock)
    async with server.running():
        await ask(server)
        receiver.status = 500
        for _ in range(3):
            assert await sender.send_due() == 1
            clock.advance(3600)
    lines = [record.message for record in caplog.records if "notices to" in record.message]
    assert len(lines) == 1
    assert "status 500" in lines[0]


async def test_people_are_reminded_and_told_when_the_time_is_over() -> None:
    clock = Clock()
    server, sender, receiver = make(clock)
    async with server.running():
        await ask(server)
        await sender.send_due()
        clock.advance(4 * 3600 + 1)
        await sender.send_due()
        assert receiver.kinds == ["approval.asked", "approval.reminded"]
        clock.advance(4 * 3600)
        await ask(server)  # whoever comes back lets the task run, as a worker does by itself
        await sender.send_due()
    assert receiver.kinds[-1] == "approval.expired"
    told = [datetime.fromisoformat(body["timestamp"]) for _, body in receiver.got]
    assert told[1] - told[0] == timedelta(hours=4)
    assert told[2] - told[0] >= timedelta(hours=8)


@pytest.mark.parametrize(
    ("url", "secret", "why"),
    [
        ("hook.example", SECRET, "http or https"),
        ("https://hook.example", "", "must not be empty"),
    ],
)
def test_a_webhook_that_could_not_be_sent_to_is_refused(url: str, secret: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Webhook(url, secret=secret)


def test_a_secret_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = Webhook("https://hook.example", secret="env:HOOK_SECRET")
    with pytest.raises(ConfigError, match="HOOK_SECRET is not set"):
        hook.key()
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    assert hook.key() == b"a secret of the receiver"
