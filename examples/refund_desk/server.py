"""A refund desk: an agent proposes a refund, finance decides, the bank pays once.

DESK_URL is where the pages are reached, and DESK_DATA the folder of the books.
"""

import os
import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from antiphon import Console, Context, Principal, Server
from antiphon.console import OneTimeLink, Person

DATA = Path(os.environ.get("DESK_DATA", "."))
URL = os.environ.get("DESK_URL", "http://127.0.0.1:8400")

AGENTS = {"Bearer support-agent": "support"}
"""Who may call, by credential. In production: tokens that your identity provider signs."""


def who(scope: Mapping[str, Any]) -> Principal:
    """Say who calls; an unknown credential is refused."""
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Principal(issuer="refund-desk", subject=AGENTS[sent])


def same(person: Person, caller: Principal) -> bool:
    """Tell whether an approver made the call: one-time links name people as `who` does."""
    return person.subject == caller.subject


server = Server(
    "refund-desk",
    principal=who,
    store=f"sqlite:///{DATA / 'desk.db'}",
    console=Console(url=f"{URL}/console", login=OneTimeLink(), same_person=same),
)


def bank() -> sqlite3.Connection:
    """Open the books of the bank, which is not ours and knows nothing of rounds."""
    books = sqlite3.connect(DATA / "bank.db", isolation_level=None)
    books.execute(
        "CREATE TABLE IF NOT EXISTS paid (key TEXT PRIMARY KEY, sale TEXT, cents INTEGER)"
    )
    return books


def pay_back(sale: str, cents: int, idempotency_key: str) -> str:
    """Pay. The bank takes an idempotency key: the same key pays once, however often it comes."""
    books = bank()
    books.execute("INSERT OR IGNORE INTO paid VALUES (?, ?, ?)", (idempotency_key, sale, cents))
    books.close()
    return f"R-{sale}-{cents}"


@server.tool(holds=True, annotations={"destructiveHint": True})
async def refund(ctx: Context, sale: str, cents: int, reason: str) -> str:
    """Refund a sale, after somebody in finance has agreed."""
    approval = await ctx.approve(
        f"Refund {cents / 100:.2f} EUR for sale {sale}?",
        details={"Sale": sale, "Amount": f"{cents / 100:.2f} EUR"},
        why=reason,
        by="finance",
        within=timedelta(hours=8),
        grace=0.2,
    )
    if not approval:
        return f"Not refunded: {approval.outcome}."
    receipt = await ctx.once("refund", pay_back, sale, cents, retry=True)
    return f"Refunded, receipt {receipt}."
