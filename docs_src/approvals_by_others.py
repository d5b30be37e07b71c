"""Approvals by somebody else: a refund that a person with a role decides on a page."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from antiphon import Approval, Approve, Console, Context, InputRequired, Principal, Server
from antiphon.console import OIDC, Webhook

ISSUER = "https://id.example.com"


def who(scope: Any) -> Principal:
    """Say who calls; a real server checks a bearer token here."""
    headers = dict(scope["headers"])
    return Principal(ISSUER, headers[b"x-user"].decode())


def make_console() -> Console:
    console = Console(
        url="https://mcp.example.com/console",  # links are made from this, never from a Host header
        login=OIDC("https://id.example.com", client_id="antiphon", roles="groups"),
        roles={"finance": "grp-finance", "operator": "grp-sre"},
        notify=[Webhook("https://itsm.example.com/antiphon", secret="env:HOOK_SECRET")],
    )
    return console


@dataclass
class Sale:
    customer: str
    cents: int
    refunded: bool = False


def euros(cents: int) -> str:
    return f"{cents / 100:.2f} EUR"


def make_server(
    console: Console, sales: dict[str, Sale], store: str = "postgresql://", **kit: Any
) -> Server:
    server = Server("shop", store=store, principal=who, console=console, **kit)

    async def load_sale(order: str) -> Sale:
        return sales[order]

    async def pay_back(order: str, cents: int, approver: str) -> str:
        sales[order].refunded = True
        return f"R-{order}-{cents}-{approver}"

    @server.tool(holds=True)
    async def refund(ctx: Context, order: str, cents: int, reason: str) -> str:
        """Refund an order."""
        sale = await ctx.memo("sale", load_sale, order)
        approval = await ctx.approve(
            f"Refund {euros(cents)} for order {order}?",
            details={"Customer": sale.customer, "Paid": euros(sale.cents)},
            why=reason,
            by="finance",
            within=timedelta(hours=8),
        )
        if not approval:
            return f"Not refunded: {approval.outcome}."
        # A read that decides whether an effect is reached must be the same in every run.
        if (await ctx.memo("sale now", load_sale, order)).refunded:
            return "Already refunded."
        assert approval.by is not None
        receipt = await ctx.once("refund", pay_back, order, cents, approval.by.subject)
        return f"Refunded, receipt {receipt}, approved by {approval.role}."

    @server.tool(approve=Approve("Delete the order {order}?", by="finance", need=2))
    async def delete(order: str) -> str:
        """Delete an order."""
        del sales[order]
        return f"Deleted {order}."

    @server.tool(holds=True)
    async def cancel_order(ctx: Context, order: str) -> str | InputRequired:
        """Cancel an order."""
        approval = ctx.answers.get("ok", Approval)
        if approval is None:
            return InputRequired({"ok": Approve(f"Cancel order {order}?", by="finance")})
        return f"Order {order}: {approval.outcome}."

    return server
