"""What a server has at hand for its handlers: the example of docs/services.md."""

import logging
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from antiphon import CallInfo, Context, Depends, Next, Principal, Server, ToolError

log = logging.getLogger("shop")


# --- open while the server runs ------------------------------------------------------------------


@dataclass
class Shop:
    database: sqlite3.Connection
    closed: bool = False


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[Shop]:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("create table orders (item text, buyer text)")
    try:
        yield Shop(database)
    finally:
        database.close()


# --- provided to handlers ------------------------------------------------------------------------


class Orders:
    def __init__(self, database: sqlite3.Connection, buyer: str) -> None:
        self.database, self.buyer = database, buyer

    def add(self, item: str) -> None:
        self.database.execute("insert into orders values (?, ?)", (item, self.buyer))

    def all(self) -> list[str]:
        rows = self.database.execute("select item from orders where buyer = ?", (self.buyer,))
        return [item for (item,) in rows]


async def transaction(ctx: Context) -> AsyncGenerator[sqlite3.Connection]:
    database = ctx.lifespan(Shop).database
    try:
        yield database
    except BaseException:  # an error, or the end of a round that asks
        database.rollback()
        raise
    database.commit()


async def orders_of_caller(
    ctx: Context, database: Annotated[sqlite3.Connection, Depends(transaction)]
) -> Orders:
    return Orders(database, ctx.principal.subject or "somebody")


OwnOrders = Annotated[Orders, Depends(orders_of_caller)]


# --- around every handler ------------------------------------------------------------------------


async def audit(call: CallInfo, next: Next) -> Any:
    try:
        return await next()
    finally:
        log.info("%s %s round %d: %s", call.id, call.name, call.round, call.outcome)


async def opening_hours(call: CallInfo, next: Next) -> Any:
    if call.kind == "tool" and call.name == "order" and CLOSED:
        raise ToolError("The shop is closed. Try again tomorrow.")
    return await next()


CLOSED: list[str] = []
server = Server("shop", lifespan=lifespan, middleware=[audit, opening_hours])


@server.tool
async def order(ctx: Context, item: str, orders: OwnOrders) -> str:
    """Order something."""
    if not await ctx.approve(f"Order {item}?"):
        return "Nothing was ordered."
    orders.add(item)
    return f"{item} is ordered."


@server.tool
async def ordered(orders: OwnOrders) -> list[str]:
    """List what you have ordered."""
    return orders.all()


# --- limits and visibility -----------------------------------------------------------------------


@server.tool(rate="10/minute", concurrency=8, timeout=5)
async def search(words: str) -> list[str]:
    """Search the catalogue."""
    return [item for item in ("green tea", "black tea") if words in item]


def is_staff(principal: Principal) -> bool:
    return principal.issuer == "staff"


@server.tool(visible=is_staff)
async def close() -> str:
    """Close the shop."""
    CLOSED.append("today")
    return "The shop is closed."


if __name__ == "__main__":
    server.run()  # stdio; server.run("http", port=8400) serves HTTP
