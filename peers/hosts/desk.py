"""The server of the page on hosts: it asks two questions, one of them about hostile text.

Served as `peers.hosts.desk:server`.
"""

from typing import Literal

from pydantic import BaseModel

from antiphon import Context, Server

UNABLE = "Ask the person for the reason, then call refund_for(order, reason)."


class Reason(BaseModel):
    reason: Literal["late", "broken"]


server = Server("desk", version="1.0.0")


@server.tool
async def refund(ctx: Context, order: str, memo: str) -> str:
    """Refund an order after two questions."""
    why = await ctx.elicit("Why is it refunded?", Reason)
    details = {"Order": order, "Memo": memo, "Amount": "4.00 EUR"}
    if not await ctx.approve("Pay this refund?", details=details):
        return "Not paid."
    return f"Refunded, because it was {why.reason}."


@server.tool(unable=UNABLE)
async def refund_or_say(ctx: Context, order: str) -> str:
    """Refund an order, or say what to do where nobody can be asked."""
    why = await ctx.elicit("Why is it refunded?", Reason)
    return f"Refunded, because it was {why.reason}."


@server.tool(task="required")
async def migrate() -> str:
    """Move everything; only for clients that take tasks."""
    return "Migrated."
