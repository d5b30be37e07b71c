"""The server that is fuzzed: handlers of every shape, both eras, callers named by their header.

`python -m tests.fuzz.fuzzed_server http PORT` or `stdio`. Its log holds errors only, so that a run
that went well has written nothing.
"""

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, Field

from antiphon import (
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    Limits,
    ListRoots,
    Principal,
    Resolve,
    Sample,
    Seal,
    Server,
)
from antiphon.transports.processes.event_loop import run_loop
from antiphon.transports.processes.http_server import run_http

KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0"
UNWANTED = "unwanted"
"""Begins the name of every payment that nobody ever approves."""


class Room(BaseModel):
    room: str = Field(max_length=40)
    seats: int = Field(default=2, ge=1, le=9)


class Sure(BaseModel):
    sure: bool


def who(scope: Mapping[str, Any]) -> Principal:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme != "Bearer":
                raise PermissionError
            return Principal(issuer="fuzz", subject=token)
    return Principal()


server = Server(
    "fuzz",
    seal=Seal(keys=[KEY], ttl=timedelta(seconds=60)),
    principal=who,
    limits=Limits(
        task=timedelta(seconds=60),
        legacy_ask=timedelta(seconds=5),
        session_idle=timedelta(seconds=20),
    ),
)
payments: Counter[str] = Counter()
wrong: list[str] = []


def do_pay(name: str, call: str) -> str:
    payments[call] += 1
    if payments[call] > 1:
        wrong.append(f"paid twice in call {call}")
    if name.startswith(UNWANTED):
        wrong.append(f"paid {name} without approval")
    return "paid"


@server.tool
async def pay(ctx: Context, name: str, amount: float = 1.0) -> str:
    if not await ctx.approve(f"Pay {amount}?", details={"to": name}):
        return "not paid"
    return await ctx.once("pay", do_pay, name, ctx.call_id)


@server.tool
async def verdict() -> dict[str, Any]:
    return {"payments": len(payments), "wrong": wrong[:20]}


@server.tool
async def wizard(ctx: Context, name: str, options: dict[str, Any] | None = None) -> str:
    room = await ctx.elicit("Which room?", Room)
    number = await ctx.memo("number", lambda: 5)
    sure = await ctx.elicit(f"Sure about {room.room}?", Sure)
    return f"{name} {room.seats} {sure.sure} {number}"


@server.tool
async def everything(ctx: Context) -> Any:
    asks: dict[str, Any] = {
        "room": Elicit("Which room?", Room),
        "visit": ElicitUrl("Pay", "https://pay.example.com/1"),
        "haiku": Sample("A haiku", max_tokens=10),
        "where": ListRoots(),
    }
    missing = {key: ask for key, ask in asks.items() if key not in ctx.answers}
    if missing:
        return InputRequired(missing, state={"seen": sorted(ctx.answers)})
    return {key: ctx.answers.outcome(key).status for key in asks}


@server.tool(unasked="accept")
async def unasked(ctx: Context) -> Any:
    room = ctx.answers.get("room", Room)
    return InputRequired({"room": Elicit("Which?", Room)}) if room is None else room.room


@server.tool(park=20)
async def parked(ctx: Context, name: str) -> str:
    room = await ctx.elicit("Room?", Room)
    sure = await ctx.elicit("Sure?", Sure)
    return f"{name} {room.room} {sure.sure}"


@server.tool
async def paused(ctx: Context) -> str:
    await ctx.pause()
    return f"round {ctx.round}"


@server.tool
async def gathered(ctx: Context) -> str:
    got = await ctx.gather(
        room=Elicit("Which?", Room), plan=Sample("p", max_tokens=3), where=ListRoots()
    )
    return str(got["room"].room)


@server.tool
async def tell(ctx: Context, text: str = "x") -> str:
    await ctx.report(1, 2, text)
    await ctx.log(text, level="warning")
    return text


@server.tool
async def mirror(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "",
    size: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Size"})] = 0,
) -> str:
    return f"{region} {size}"


@server.tool(task="allowed")
async def job(ctx: Context, number: int = 1) -> str:
    return (await ctx.elicit("Room?", Room)).room


@server.tool
def numbers(a: int, b: float = 1.0, c: list[int] | None = None) -> str:
    return f"{a % 7} {b > 1} {len(c or ())}"


def ask_room() -> Elicit:
    return Elicit("Which room?", Room)


@server.tool
async def resolved(room: Annotated[Room, Resolve(ask_room)], note: str = "") -> str:
    return f"{room.room} {len(note)}"


flow = server.flow("order")


@flow.step
def place(ctx: Context) -> Elicit:
    return Elicit("Where?", Room)


@flow.step
def sure(place: Room) -> Elicit:
    return Elicit(f"Sure about {place.room}?", Sure)


@flow.finish
def order(item: str, place: Room, sure: Sure) -> str:
    return f"{item} {place.room} {sure.sure}"


@server.prompt
async def greet(ctx: Context, name: str) -> str:
    room = await ctx.elicit("Where?", Room)
    return f"Greet {name} in {room.room}."


@server.resource("fuzz://rooms")
async def rooms() -> str:
    return "a"


@server.resource("fuzz://rooms/{name}-{number}/{+part}")
async def one_room(ctx: Context, name: str, number: str, part: str) -> str:
    await ctx.elicit("Who?", Room)
    return f"{name} {number} {len(part)}"


@server.completion("greet", "name")
def names(value: str) -> list[str]:
    return [name for name in ("ada", "alan") if name.startswith(value)]


def main(transport: str, port: int = 0) -> None:
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    if transport == "stdio":
        run_loop(server.serve_stdio())
    else:
        run_http(server.asgi(), port=port)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
