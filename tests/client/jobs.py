"""A server of ours whose tools become tasks; run by the tests over HTTP and over stdio."""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from antiphon import Context, Elicit, InvalidRequest, Server, ToolError

server = Server("jobs")


class Named(BaseModel):
    """A name."""

    name: str


class Sure(BaseModel):
    """A yes or a no."""

    sure: bool


def note(word: str) -> None:
    """Leave a line where the test can read it."""
    with Path(os.environ["JOBS_NOTES"]).open("a") as file:
        file.write(word + "\n")


@server.tool(task="allowed")
async def work(ctx: Context, label: str = "it") -> str:
    """Say something on the way, then end."""
    await ctx.report(1, 2, f"working on {label}")
    await asyncio.sleep(1.5)
    return f"{label} is done"


@server.tool(task="required")
async def spoil() -> str:
    """Report an error of the tool."""
    raise ToolError("the milk is sour")


@server.tool(task="required")
async def breach() -> str:
    """End in a JSON-RPC error."""
    raise InvalidRequest("no such thing", code=-32007, data={"hint": "look again"})


@server.tool(task="required")
async def ask(ctx: Context) -> str:
    """Ask two things, one after the other."""
    one = await ctx.elicit("Who?", Named, key="who")
    two = await ctx.elicit(f"Is {one.name} right?", Sure, key="sure")
    return f"{one.name}: {'yes' if two.sure else 'no'}"


@server.tool(task="required")
async def ask_both(ctx: Context) -> str:
    """Ask two things at once."""
    answers = await ctx.gather(first=Elicit("First?", Named), second=Elicit("Second?", Named))
    return f"{answers['first'].name} and {answers['second'].name}"


@server.tool(detach="refuse")
async def phases(ctx: Context) -> str:
    """Ask in a round, go on in the background, ask there once more."""
    one = await ctx.elicit("Who?", Named, key="who")
    await ctx.detach(f"calling {one.name}")
    two = await ctx.elicit("Answered?", Sure, key="sure")
    return f"{one.name} {'answered' if two.sure else 'did not answer'}"


@server.tool(task="required")
async def hold(ctx: Context) -> str:
    """Wait until cancelled."""
    await ctx.report(1, 2, "held")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "never"


@server.tool
async def everything(ctx: Context) -> str:
    """Ask for every kind of thing, each under a key."""
    answers = await ctx.gather(first=Elicit("First?", Named), second=Elicit("Second?", Named))
    verse = await ctx.sample("A verse?", max_tokens=20, key="verse")
    roots = await ctx.roots(key="where")
    names = f"{answers['first'].name} and {answers['second'].name}"
    return f"{names}: {verse.text}, {len(roots)} roots"


def released() -> bool:
    """Return whether the test has let `rest` go on."""
    return Path(os.environ["JOBS_NOTES"]).with_name("released").exists()


@server.tool(task="required")
async def rest(ctx: Context) -> str:
    """Rest until the test lets it go on, then ask for a name and for a completion."""
    times = 0
    while not await ctx.memo(f"released {times}", released):
        await ctx.pause(hold=0.1)
        times += 1
    one = await ctx.elicit("Who?", Named, key="who")
    verse = await ctx.sample(f"A verse on {one.name}?", max_tokens=20, key="verse")
    return f"{one.name}: {verse.text}"
