"""The server that other people's clients call: one tool of two questions, in two shapes.

Served as `tests.peers.booking_server:server`.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from antiphon import Context, Elicit, InputRequired, ListRoots, Sample, Server


class Room(BaseModel):
    room: Literal["Elm", "Oak"]
    seats: int = Field(default=4, ge=1)


class Sure(BaseModel):
    sure: bool


server = Server("rooms", version="1.0.0")


@server.tool
async def book(ctx: Context, day: str) -> str:
    """Book a room after two questions."""
    place = await ctx.elicit(f"Which on {day}?", Room)
    await ctx.report(1, 2, "one question is left")
    if not (await ctx.elicit(f"Book {place.room}?", Sure)).sure:
        return "nothing"
    return f"{place.room} for {place.seats} on {day}"


@server.tool
async def native(ctx: Context, day: str) -> Any:
    """Book a room after two questions, round by round."""
    place = ctx.answers.get("room", Room)
    if place is None:
        return InputRequired({"room": Elicit(f"Which on {day}?", Room)})
    sure = ctx.answers.get("sure", Sure)
    if sure is None:
        return InputRequired({"sure": Elicit(f"Book {place.room}?", Sure)}, state=place.room)
    return f"{ctx.state} for {place.seats} on {day}" if sure.sure else "nothing"


@server.tool
async def survey(ctx: Context) -> str:
    """Ask for everything but a visit in one round."""
    found = await ctx.gather(
        room=Elicit("Which?", Room), motto=Sample("A motto", max_tokens=20), where=ListRoots()
    )
    return f"{found['room'].room}, {found['motto'].text!r}, {len(found['where'])} roots"
