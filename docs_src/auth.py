"""A server whose callers present access tokens."""

import os

from antiphon import Context, OAuth, Server

server = Server(
    "shop",
    auth=OAuth(
        issuer=os.environ.get("SHOP_ISSUER", "https://id.example.com"),
        audience="https://mcp.example.com/mcp",
        scopes=["shop"],
    ),
)


@server.tool
async def orders(ctx: Context) -> str:
    """List the orders of whoever calls."""
    return f"the orders of {ctx.principal.subject}"


@server.tool(scopes=["refunds:write"])
async def refund(ctx: Context, order: str) -> str:
    """Refund an order."""
    if not await ctx.approve(f"Refund order {order}?"):
        return "Nothing was refunded."
    agent = ctx.principal.actor
    return f"Refunded order {order}" + (f", through {agent}." if agent else ".")


app = server.asgi(allowed_hosts=["mcp.example.com"])
