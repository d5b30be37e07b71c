"""The shop whose pages the browsers look at: what it asks, who calls it, and how people sign in."""

import json
from collections.abc import Mapping
from typing import Any

from antiphon import Console, Context, Principal, Server
from antiphon.console import OIDC, OneTimeLink, Person

ISSUER = "https://id.example"
NAME, STORE, URL, LOGIN, PAID = "SHOP_NAME", "SHOP_STORE", "SHOP_URL", "SHOP_LOGIN", "SHOP_PAID"
"""Variables of the environment in which the shop is served."""

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "minLength": 2, "maxLength": 40},
        "mail": {"type": "string", "format": "email", "title": "E-mail"},
        "site": {"type": "string", "format": "uri", "title": "Web page"},
        "day": {"type": "string", "format": "date", "title": "Day"},
        "when": {
            "type": "string",
            "format": "date-time",
            "title": "Pick-up",
            "default": "2026-11-20T14:30:00+02:00",
        },
        "size": {
            "type": "integer",
            "title": "Size",
            "description": "In litres, 1 to 9.",
            "minimum": 1,
            "maximum": 9,
            "default": 3,
        },
        "price": {"type": "number", "title": "Price"},
        "gift": {"type": "boolean", "title": "Gift"},
        "call": {"type": "boolean", "title": "Call first"},
        "colour": {"type": "string", "title": "Colour", "enum": ["red", "blue"]},
        "plan": {
            "type": "string",
            "title": "Plan",
            "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}],
        },
        "tags": {
            "type": "array",
            "title": "Tags",
            "minItems": 1,
            "items": {"type": "string", "enum": ["fragile", "cold", "urgent"]},
        },
        "extra": {
            "type": "array",
            "title": "Extras",
            "items": {
                "anyOf": [{"const": "w", "title": "Wrapping"}, {"const": "c", "title": "Card"}],
            },
            "default": ["c"],
        },
    },
    "required": [
        "name", "mail", "site", "day", "when", "size", "price", "gift", "colour", "plan", "tags",
    ],
}  # fmt: skip
"""Every kind of field that a form can have."""


def caller(scope: Any) -> Principal:
    """The caller whom a header names."""
    who = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Principal(ISSUER, who, client_id="Night job") if who else Principal()


def from_proxy(request: Any) -> Person | None:
    """Who a proxy in front of the pages says has signed in."""
    who = request.headers.get("x-signed-in-as", "")
    subject, _, roles = who.partition(":")
    return Person(ISSUER, subject, subject.title(), tuple(roles.split())) if subject else None


def console(environ: Mapping[str, str]) -> Console:
    login = environ.get(LOGIN, "")
    if login == "function":
        return Console(environ[URL], login=from_proxy)
    if login:
        oidc = OIDC(login, client_id="console", client_secret="a-secret-for-one-address")
        return Console(environ[URL], login=oidc, roles={"finance": "grp-finance"})
    return Console(environ[URL], login=OneTimeLink())


def make_shop(environ: Mapping[str, str]) -> Server:
    """Return the server, as every process of it makes it."""
    server = Server(
        environ[NAME],
        store=environ[STORE],
        principal=caller,
        environ={"ANTIPHON_KEYS": environ["ANTIPHON_KEYS"]},
        console=console(environ),
    )

    def pay_back(order: str) -> str:
        with open(environ[PAID], "a") as book:
            book.write(f"{order}\n")
        return f"R-{order}"

    @server.tool(holds=True)
    async def refund(
        ctx: Context,
        order: str,
        role: str = "finance",
        reason: str = "",
        rules: dict[str, Any] | None = None,
    ) -> str:
        """Refund an order."""
        options: dict[str, Any] = rules or {}
        approval = await ctx.approve(
            f"Refund 120.00 EUR for order {order}?",
            details={"Customer": "ACME Ltd", "Paid": "240.00 EUR", "After": "120.00 EUR"},
            why=reason,
            by=role,
            **options,
        )
        if not approval:
            return f"Not refunded: {approval.outcome}."
        receipt = await ctx.once("refund", pay_back, order)
        return f"Refunded, receipt {receipt}, note {approval.note or '-'}."

    @server.tool(holds=True)
    async def delete(ctx: Context, message: str, role: str, labels: list[str]) -> str:
        """Ask in the words of the test."""
        words = (labels[0], labels[1])
        approval = await ctx.approve(message, by=role, why=message, labels=words)
        return approval.outcome

    @server.tool(holds=True)
    async def own(ctx: Context, order: str) -> str:
        """Ask the caller, on the page."""
        approval = await ctx.approve(f"Close order {order}?", fallback="inbox")
        return approval.outcome

    @server.tool(task="required")
    async def parcel(ctx: Context, order: str) -> str:
        """Ask the caller a form, in a task."""
        answer = await ctx.elicit(f"How do we send order {order}?", FORM)
        return json.dumps(answer)

    return server
