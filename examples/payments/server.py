"""Pay invoices and refund them: once, whatever becomes of the bank's replies.

antiphon serve examples/payments/server.py --http 127.0.0.1:8000
"""

import os
from typing import Any

import httpx2

from antiphon import Context, NotDone, Server, ToolError


class BankAccount:
    """What the tools need of a bank: to act under a key, and to look that key up."""

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        self._http = {"base_url": url, "timeout": timeout}

    async def pay(self, invoice: str, cents: int, idempotency_key: str) -> str:
        """Pay an invoice; returns the receipt."""
        return await self._book("payments", {"of": invoice, "cents": cents}, idempotency_key)

    async def refund(self, receipt: str, idempotency_key: str) -> str:
        """Take a payment back; returns the receipt of that."""
        return await self._book("refunds", {"of": receipt}, idempotency_key)

    async def find(self, *_: Any, idempotency_key: str) -> str:
        """Look up what was booked under a key."""
        async with httpx2.AsyncClient(**self._http) as http:
            reply = await http.get(f"/bookings/{idempotency_key}")
        if reply.status_code == 404:
            raise NotDone("the bank has booked nothing")
        reply.raise_for_status()
        return reply.json()["receipt"]

    async def _book(self, what: str, content: dict[str, Any], key: str) -> str:
        async with httpx2.AsyncClient(**self._http) as http:
            reply = await http.post(f"/{what}", json=content, headers={"Idempotency-Key": key})
        if reply.status_code == 402:
            raise ToolError("The bank refuses: there is not enough money.")
        reply.raise_for_status()
        return reply.json()["receipt"]


def make_server(bank: BankAccount, **settings: Any) -> Server:
    """Return a server that pays by this bank."""
    server = Server("payments", **settings)

    @server.tool
    async def pay_invoice(ctx: Context, invoice: str, cents: int) -> str:
        """Pay an invoice, after the caller has said yes."""
        if not await ctx.approve(f"Pay {cents / 100:.2f} EUR for invoice {invoice}?"):
            return "Not paid."
        receipt = await ctx.once("pay", bank.pay, invoice, cents, verify=bank.find)
        return f"Paid, receipt {receipt}."

    @server.tool
    async def refund_payment(ctx: Context, receipt: str) -> str:
        """Take a payment back, after the caller has said yes."""
        if not await ctx.approve(f"Take payment {receipt} back?"):
            return "Not refunded."
        given_back = await ctx.once("refund", bank.refund, receipt, verify=bank.find)
        return f"Refunded, receipt {given_back}."

    return server


server = make_server(BankAccount(os.environ.get("BANK_URL", "http://127.0.0.1:8600")))
