"""The example of docs/audit.md: a till whose calls are written down."""

from datetime import timedelta

from pydantic import BaseModel

from antiphon import Audit, Context, Server

server = Server(
    "till",
    store="sqlite:///till.db",
    audit=Audit(keep=timedelta(days=3650)),
)


class Refund(BaseModel):
    amount: int


def pay(order: str, amount: int) -> str:
    return f"paid {amount} for {order}"


@server.tool
async def refund(ctx: Context, order: str) -> str:
    """Refund an order after approval."""
    what = await ctx.elicit(f"How much of {order}?", Refund)
    if not await ctx.approve(f"Refund {what.amount} for {order}?"):
        return "Not refunded."
    return await ctx.once("pay", pay, order, what.amount)
