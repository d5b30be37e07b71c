"""A shop whose refunds somebody else approves; every request is served by a new server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from antiphon import Approve, Console, Context, Principal, Server
from antiphon.apps.console.inbox_view import authenticated
from antiphon.ports import Inbox, ItemFilter
from antiphon.protocol.identities import identity_of
from antiphon.protocol.inbox import Attempt, Decided, Item, Person, decode_face
from antiphon.protocol.retry import back_off
from antiphon.testing import KEY
from tests.transports.wire import Answer, call, mirrored, request

ISSUER = "https://id.example"
ANNA = Person(ISSUER, "anna", "Anna", ("finance", "ops"))
BO = Person(ISSUER, "bo", "Bo", ("finance",))
CARL = Person(ISSUER, "carl", "Carl", ("finance",))
"""Who calls."""

NOTHING: dict[str, Any] = {}
FORMS = {"elicitation": {"form": {}}}
URLS = {"elicitation": {"url": {}}}
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}

GRACE = 0.1


def caller(scope: Any) -> Principal:
    """The principal that the test names in a header."""
    who = dict(scope["headers"]).get(b"x-user")
    if who is None:
        return Principal()
    actor = dict(scope["headers"]).get(b"x-actor")
    return Principal(
        ISSUER, who.decode(), actor="" if actor is None else identity_of(ISSUER, actor.decode())
    )


class Shop:
    """The shop's file, and what it has paid back."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.paid = folder / "paid.txt"
        self.paid.touch()

    def server(self) -> Server:
        """Make another server on the same file."""
        server = Server(
            "shop",
            store=f"sqlite:///{self.path}",
            environ={"ANTIPHON_KEYS": KEY},
            principal=caller,
            console=Console("http://127.0.0.1:8401/console"),
        )
        paid = self.paid

        def pay_back(order: str) -> str:
            with paid.open("a") as file:
                file.write(f"{order}\n")
            return f"receipt {order}"

        @server.tool(holds=True)
        async def refund(ctx: Context, order: str, reason: str = "") -> str:
            approval = await ctx.approve(
                f"Refund order {order}?",
                details={"Order": order},
                why=reason,
                by="finance",
                within=timedelta(hours=8),
                grace=GRACE,
            )
            if not approval:
                return f"Not refunded: {approval.outcome}."
            assert approval.by is not None
            receipt = await ctx.once("refund", pay_back, order)
            return f"{receipt}, approved by {approval.by.subject}, {approval.note or 'no note'}"

        @server.tool(holds=True)
        async def own(ctx: Context, order: str) -> str:
            approval = await ctx.approve(f"Yours, {order}?", fallback="inbox", grace=GRACE)
            return f"{approval.outcome} {approval.by.how if approval.by else '-'}"

        @server.tool(holds=True)
        async def both(ctx: Context, order: str) -> str:
            two = await ctx.approve("Two?", by="finance", need=2, grace=GRACE)
            return f"{two.outcome} {[each.subject for each in two.approvers]}"

        @server.tool(holds=True)
        async def after_form(ctx: Context) -> str:
            form = {"type": "object", "properties": {"n": {"type": "integer"}}}
            first = await ctx.elicit("How many?", form)
            asked = await ctx.gather(ok=Approve("Go?", by="ops", grace=GRACE))
            return f"{first['n']} {asked['ok'].outcome}"

        @server.tool(holds=True)
        async def brief(ctx: Context) -> str:
            approval = await ctx.approve("Quick?", by="finance", within=0.3, grace=GRACE)
            return approval.outcome

        @server.tool(holds=True)
        async def changed_mind(ctx: Context) -> str:
            asking = asyncio.create_task(ctx.approve("Still?", by="finance", key="still"))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await ctx.pause()
            return "done without"

        @server.tool(holds=True)
        async def visit_after(ctx: Context) -> str:
            await ctx.approve("Go?", by="finance", grace=GRACE)
            await ctx.once("act", pay_back, "acted")
            await ctx.elicit_url("Pay there", "https://pay.example/1")
            return "visited"

        @server.tool(approve=Approve("Delete {name}?", by="ops", grace=GRACE))
        def delete(name: str) -> str:
            return f"deleted {name}"

        return server

    async def send(
        self,
        tool: str = "refund",
        can: dict[str, Any] = NOTHING,
        *,
        user: str | None = "carl",
        actor: str | None = None,
        method: str = "tools/call",
        **params: Any,
    ) -> Any:
        """Send one request to a new server; returns its result."""
        meta = {"io.modelcontextprotocol/clientCapabilities": can}
        if method == "tools/call":
            params = {"name": tool, "arguments": {"order": "4711"}, **params}
        message = request(method, meta=meta, **params)
        server = self.server()
        async with server.running():
            more = {} if user is None else {"x_user": user}
            if actor is not None:
                more["x_actor"] = actor
            if "taskId" in params:
                more["mcp_name"] = params["taskId"]
            sent = call(server.asgi(), message, mirrored(message, **more))
            answer: Answer = await sent.run()
        assert answer.status == 200, answer.body
        return answer.json.get("result") or answer.json

    async def text(self, tool: str = "refund", can: dict[str, Any] = NOTHING, **more: Any) -> str:
        """Send one request and return the text of its result."""
        return (await self.send(tool, can, **more))["content"][0]["text"]

    @asynccontextmanager
    async def inbox(self) -> AsyncIterator[Inbox]:
        """The inbox, as another process sees it."""
        from antiphon.stores.sqlite import SqliteStore

        store = SqliteStore(self.path).for_server("shop")
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def open_items(self) -> list[Item]:
        async with self.inbox() as inbox:
            return list(await inbox.items(ItemFilter("shop", open=True)))

    async def decide(self, choice: Any = "approve", who: Person = ANNA) -> None:
        """Let a person decide what waits."""
        environment = self.server()._services  # pyright: ignore[reportPrivateUsage]
        async with self.inbox() as inbox:
            (item,) = await inbox.items(ItemFilter("shop", open=True))
            note = await environment.protect(b"fine", f"note {item.id}")
            await self.say(inbox, item, who, choice, note=note)

    async def say(self, inbox: Inbox, item: Item, who: Person, choice: Any, **more: Any) -> None:
        """Decide one item as a console with the keys does."""
        environment = self.server()._services  # pyright: ignore[reportPrivateUsage]
        attempt = Attempt(item.id, who, choice, item.digest, **more)
        verdict = await inbox.decide(await authenticated(environment, item, attempt))
        assert isinstance(verdict, Decided), verdict

    async def shown(self) -> Any:
        """What people are shown of the one item."""
        (item,) = await self.open_items()
        environment = self.server()._services  # pyright: ignore[reportPrivateUsage]
        return decode_face(await environment.reveal(item.face, f"item {item.id}"))

    def refunds(self) -> list[str]:
        return self.paid.read_text().split()

    async def work(self) -> None:
        """Run tasks on a new server until a refund was paid."""
        server = self.server()
        async with server.running(), asyncio.timeout(20):
            for pause in back_off(0.02, 0.2):
                if self.refunds():
                    break
                await asyncio.sleep(pause)
