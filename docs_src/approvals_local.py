from antiphon import Console, Context, Server
from antiphon.console import OneTimeLink

server = Server(
    "shop",
    store="sqlite:///shop.db",
    console=Console(url="http://127.0.0.1:8400/console", login=OneTimeLink()),
)


async def pay_back(order: str, cents: int) -> str:
    return f"R-{order}-{cents}"  # your bank pays it here


@server.tool(holds=True)
async def refund(ctx: Context, order: str, cents: int) -> str:
    """Refund an order."""
    details = {"Order": order, "Cents": cents}
    if not await ctx.approve("Refund this order?", details=details, by="finance"):
        return "Not refunded."
    return f"Refunded, receipt {await ctx.once('refund', pay_back, order, cents)}."
