"""A server under development; copied into a folder, where tests edit it."""

import asyncio
import logging
import os
import subprocess
import time
from contextlib import suppress
from typing import Literal

from pydantic import BaseModel, Field

from antiphon import Context, Elicit, ElicitUrl, Server

server = Server("workshop")
log = logging.getLogger("workshop")
charged: list[str] = []


class Placement(BaseModel):
    region: Literal["eu-west", "us-east"] = Field(description="Where the machine stands.")
    size: int = 2


class Switch(BaseModel):
    target: str


def euros(cents: int) -> str:
    return f"{cents / 100:.2f} EUR"


async def charge(name: str) -> None:
    charged.append(name)


async def create(name: str, region: str) -> str:
    return f"{name}.{region}"


@server.tool
async def provision(ctx: Context, name: str, cents: int = 1200) -> str:
    """Create a virtual machine, and start it after approval."""
    price = euros(cents)
    await charge(name)
    place = await ctx.elicit(f"Where should {name} live?", Placement)
    machine = await ctx.once("create", create, name, place.region)
    if not await ctx.approve(f"Start {name} for {price}?"):
        return f"{machine} was left stopped."
    return f"{machine} is running."


@server.tool
async def interview(ctx: Context) -> str:
    """Ask in every way there is."""
    both = await ctx.gather(
        switch=Elicit("Which target?", Switch),
        page=ElicitUrl("Please sign in.", "https://id.example/login"),
    )
    word = await ctx.sample("Say one word.")
    roots = await ctx.roots()
    refusals: list[str] = []
    for key in ("first", "second"):
        said = await ctx.outcome(Elicit(f"The {key} of two?", Switch), key=key)
        refusals.append(said.status)
    await ctx.report(2, 2, "asked everything")
    await ctx.log("the interview is over")
    target = both["switch"].target
    return f"{target}, {word.text}, {len(roots)} roots, {' and '.join(refusals)}."


@server.tool
async def guess(ctx: Context) -> str:
    """Ask what nobody asks twice."""
    moment = time.monotonic()
    await ctx.elicit(f"Go on at {moment}?", Switch)
    return "Never reached."


@server.tool
async def stubborn(ctx: Context) -> str:
    """Catch what ends the round."""
    with suppress(BaseException):
        await ctx.elicit("Which target?", Switch)
    return "Done without an answer."


@server.tool
async def flood(ctx: Context, letters: int) -> str:
    """Print, log, report and return more than anybody reads."""
    os.write(1, b"\xff\x1b[31m" + b"x" * 500_000 + b"\n")
    for number in range(300):
        await ctx.report(number, 300, "<b>far</b>")
        await ctx.log("l" * 1_000)
    return "<script>alert(1)</script>" * letters


def vanish(target: str) -> None:
    """End the process in the middle of an effect, and leave a child behind that holds its pipes."""
    subprocess.Popen(["sleep", "20"])
    os._exit(9)


@server.tool
async def pay(ctx: Context) -> str:
    """Pay, and never come back."""
    switch = await ctx.elicit("Whom?", Switch)
    await ctx.report(1, 2, "pays")
    await ctx.once("pay", vanish, switch.target)
    return "Paid."


@server.tool
async def watch(ctx: Context) -> str:
    """Say how far it is, and take its time."""
    await ctx.report(1, 2, "half way")
    await ctx.log("still here")
    await asyncio.sleep(6)
    return "Seen."


@server.tool(park=60)
async def parked(ctx: Context) -> str:
    """Wait in memory, and fail."""
    print("long " * 2_000)
    answer = await ctx.elicit("Which one is parked?", Switch)
    raise ValueError(f"no {answer.target}")


class Counter:
    """A handler with a state of its own."""

    def __init__(self) -> None:
        self.count = 0

    async def tally(self, ctx: Context) -> str:
        """Count, tidy up, and ask in a loop."""
        self.count += 1
        self._note("begun")
        try:
            for number in range(2):
                await ctx.elicit(f"Number {number}?", Switch, key=f"number{number}")
        finally:
            self._note("ended")
        return "Counted."

    def _note(self, text: str) -> None:
        charged.append(text)


server.tool(Counter().tally)


@server.tool(task="required")
async def migrate(ctx: Context) -> str:
    """Copy, ask, and switch over, as a task."""
    await ctx.once("copy", asyncio.sleep, 0)
    switch = await ctx.elicit("Where to?", Switch)
    return f"Runs in {switch.target}."


@server.tool
async def sort_out(
    ctx: Context, tags: dict[str, list[int]], note: str | None = None, fast: bool = False
) -> str:
    """Take arguments that are no plain fields."""
    return f"{sorted(tags)} {note} {fast}"


@server.tool(holds=True)
async def refund(ctx: Context, order: str) -> str:
    """Refund an order, if somebody else agrees."""
    approval = await ctx.approve(f"Refund order {order}?", by="finance")
    return f"Order {order}: {approval.outcome} by {approval.role}."


@server.prompt
async def greet(ctx: Context, name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("notes://today")
async def today(ctx: Context) -> str:
    """The notes of today."""
    return "Nothing happened."


@server.resource("notes://{day}")
async def notes(ctx: Context, day: str) -> str:
    """The notes of a day."""
    return f"Nothing on {day}."
