"""Approvals: true only after an explicit yes to this very question."""

from typing import Any

from antiphon import Context, Server


def make_server(paid: list[int], **kit: Any) -> Server:
    server = Server("payments", **kit)

    async def transfer(cents: int, to: str) -> str:
        paid.append(cents)
        return f"tx-{len(paid)}"

    @server.tool
    async def pay(ctx: Context, cents: int, to: str) -> str:
        """Pay after an approval."""
        approval = await ctx.approve("Pay this bill?", details={"To": to, "Cents": cents})
        if approval.outcome == "unavailable":
            return "This client cannot ask anybody; nothing was paid."
        if not approval:
            return f"Not paid: {approval.outcome}."
        receipt = await ctx.once("transfer", transfer, cents, to)
        return f"Paid, {receipt}."

    return server
