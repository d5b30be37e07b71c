"""A travel desk: three steps to a trip, and a page that takes money only from its traveller.

The page and the tools are one application: `uvicorn examples.travel.server:app`. TRAVEL_URL is
where it is reached, and TRAVEL_DATA the folder of its files.

A link in a chat can be sent to anybody. So the page trusts no link: who pays must be signed in to
the page, and be the person for whom the trip was planned.
"""

import os
import secrets
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from antiphon import Context, Elicit, Principal, Server

DATA = Path(os.environ.get("TRAVEL_DATA", "."))
URL = os.environ.get("TRAVEL_URL", "http://127.0.0.1:8400")

PEOPLE = {"Bearer paula": "paula", "Bearer mallory": "mallory"}
"""Who calls, by credential; the same people sign in to the page."""


def who(scope: Mapping[str, Any]) -> Principal:
    """Say who calls."""
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Principal(issuer="travel", subject=PEOPLE[sent])


server = Server("travel", store=f"sqlite:///{DATA / 'travel.db'}", principal=who)
plan = server.flow("plan_trip")


class Where(BaseModel):
    """The first step."""

    city: Literal["Lisbon", "Porto", "Faro"]


class When(BaseModel):
    """The second."""

    start: date
    nights: int


class How(BaseModel):
    """The third."""

    hotel: Literal["plain", "fine"]


@plan.step
async def where() -> Elicit:
    """Ask for the city."""
    return Elicit("Where would you like to go?", Where)


@plan.step
async def when(where: Where) -> Elicit:
    """Ask for the days."""
    return Elicit(f"When, and for how long, in {where.city}?", When)


@plan.step
async def how(where: Where, when: When) -> Elicit:
    """Ask for the hotel."""
    return Elicit(f"Which hotel for {when.nights} nights in {where.city}?", How)


@plan.finish
async def plan_trip(ctx: Context, where: Where, when: When, how: How) -> str:
    """Plan a trip, and book it when it is paid."""
    euros = when.nights * (60 if how.hotel == "plain" else 140)
    bill = await ctx.once("bill", make_bill, ctx.principal.subject, euros)
    await ctx.elicit_url(
        f"Pay {euros} EUR for {where.city}.",
        f"{URL}/pay/{bill}",
        until=lambda: is_paid(bill),
        every=0.2,
    )
    return f"Booked: {when.nights} nights in {where.city} from {when.start}, paid {euros} EUR."


# --- the page ------------------------------------------------------------------------------------


def bills() -> sqlite3.Connection:
    """Open the table of bills."""
    table = sqlite3.connect(DATA / "bills.db", isolation_level=None)
    table.execute(
        "CREATE TABLE IF NOT EXISTS bill (id TEXT PRIMARY KEY, person TEXT, euros INT, paid INT)"
    )
    return table


def make_bill(person: str, euros: int) -> str:
    """Make a bill for a person."""
    id = secrets.token_urlsafe(16)
    bills().execute("INSERT INTO bill VALUES (?, ?, ?, 0)", (id, person, euros))
    return id


def is_paid(id: str) -> bool:
    """Tell whether a bill is paid."""
    return bool(bills().execute("SELECT paid FROM bill WHERE id = ?", (id,)).fetchone()[0])


async def pay(request: Request) -> PlainTextResponse:
    """Take the money: only from the person whose bill it is, and who is signed in here."""
    person = PEOPLE.get(request.headers.get("authorization", ""))
    found = (
        bills()
        .execute("SELECT person FROM bill WHERE id = ?", (request.path_params["id"],))
        .fetchone()
    )
    if found is None or person != found[0]:
        return PlainTextResponse("This bill is not yours.", 403)
    bills().execute("UPDATE bill SET paid = 1 WHERE id = ?", (request.path_params["id"],))
    return PlainTextResponse("Thank you. You can close this page.")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open and close the store with the application."""
    async with server.running():
        yield


app = Starlette(
    routes=[Route("/pay/{id}", pay, methods=["POST"]), Mount("/", server.asgi())], lifespan=lifespan
)
