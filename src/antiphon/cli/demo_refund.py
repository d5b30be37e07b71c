"""The second part of `antiphon demo`: a refund that needs a yes from somebody else.

A person decides in a browser. Where there is none, both sides are played over HTTP.
"""

import time
from collections.abc import Callable
from typing import Any

from antiphon import Console, Context, Principal, Server
from antiphon.cli import output
from antiphon.cli.connect import interactive
from antiphon.cli.demo_person import PlayedPerson
from antiphon.cli.local_server import LocalServer, local_server
from antiphon.cli.output import say
from antiphon.cli.private_link import open_privately
from antiphon.client.answers import Deny
from antiphon.client.terminal import find_browser
from antiphon.console import Person
from antiphon.errors import ConfigError
from antiphon.protocol.identities import LINK_ISSUER

REFUND = {"order": "4711", "cents": 12000, "reason": "The parcel was damaged."}
WAITING = "Not done yet"


def refund_server(console: Console) -> Server:
    """Return a shop whose refunds somebody of finance approves; carl calls it."""
    server = Server(
        "shop",
        version="1.0.0",
        store="memory://",
        environ={},
        principal=lambda _: Principal(LINK_ISSUER, "carl"),
        console=console,
    )

    async def pay_back(order: str, cents: int) -> str:
        """Stand in for a bank: return the number of a receipt."""
        return f"R-{order}"

    @server.tool(holds=True)
    async def refund(ctx: Context, order: str, cents: int, reason: str) -> str:
        """Refund an order, after somebody of finance has approved it."""
        approval = await ctx.approve(
            f"Refund {cents / 100:.2f} EUR for order {order}?",
            details={"Customer": "ACME Ltd", "Paid": "240.00 EUR"},
            why=reason,
            by="finance",
            within=600,
            grace=0.2,
        )
        if not approval:
            return f"Not refunded: {approval.outcome}."
        receipt = await ctx.once("refund", pay_back, order, cents)
        return f"Refunded order {order}, receipt {receipt}, approved by {approval.role}."

    return server


_LAST_PAGE = 2.0
"""Seconds in which a browser fetches the page that follows a decision, before the server ends."""


def lead_through_refund() -> bool:
    """Call the tool, have it decided, and call it again; tell whether the refund was made."""
    # Loaded here: it brings the official SDK.
    from antiphon.client.blocking import BlockingClient

    servers: list[Server] = []

    def application(origin: str) -> Any:
        servers.append(refund_server(Console(f"{origin}/console")))
        return servers[0].asgi()

    say("")
    say(
        "Now a refund that needs a yes from somebody else, with a client that can show no question."
    )
    try:
        with local_server(application) as local:
            url = f"{local.origin}/mcp"
            with BlockingClient(url, answers=Deny(), tasks=False) as client:
                say(f"server:  {url}")
                say("call:    refund order=4711 cents=12000, by carl")
                first = _text(client)
                say(f"told:    {first}")
                in_browser = _have_it_decided(local, servers[0])
                last = _ended(lambda: client.call_tool("refund", REFUND))
                if in_browser:
                    time.sleep(_LAST_PAGE)
    except ConfigError as error:
        say(f"This part was left out: {error}")
        return True
    output.result(last)
    return last["content"][0]["text"].startswith("Refunded")


def _text(client: Any) -> str:
    return client.call_tool("refund", REFUND).content[0].text


def _ended(call: Callable[[], Any]) -> dict[str, Any]:
    """Call again until the outcome is there; the server holds each request back for a while."""
    while True:
        result = call().model_dump(by_alias=True, mode="json", exclude_none=True)
        if not result["content"][0]["text"].startswith(WAITING):
            return result


def _have_it_decided(local: LocalServer, server: Server) -> bool:
    """Have two people see the question; tell whether they do so in a browser."""
    links = [
        _link(local, server, "carl", "Carl"),
        _link(local, server, "anna", "Anna", "finance"),
    ]
    say(f"carl:    {links[0]}")
    say(f"anna:    {links[1]}")
    browser = find_browser() if interactive() else None
    if browser is None:
        _play(*links)
        return False
    say("Carl made the call and may only watch. Anna is of finance: sign in as her and decide.")
    say("One browser is one person: open one of the links in a private window.")
    for link in links:
        open_privately(browser, link)
    return True


def _link(local: LocalServer, server: Server, subject: str, name: str, *roles: str) -> str:
    pages = server.pages()
    assert pages is not None
    return local.run(pages.make_link(Person(LINK_ISSUER, subject, name, roles, time.time())))


def _play(callers: str, approvers: str) -> None:
    """Be both people."""
    carl, anna = PlayedPerson(callers), PlayedPerson(approvers)
    may = "can" if "approve" in carl.question("mine").buttons else "cannot"
    say(f"Carl opens his request: he {may} approve it.")
    question = anna.question("for-me")
    decided = anna.press(question, "approve", "Seen the photos.")
    say(f"Anna opens the question and presses Approve: {decided.status}")
    say("call:    the same call again")
