"""What the recipes call: a machine is created before the first question.

So it shows when a call is begun twice. What happened is counted in the file `MACHINES`.
"""

import os

from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.testing import Tally

tally = Tally(os.environ["MACHINES"])
server = Server("cloud", version="1.0.0")


class Placement(BaseModel):
    """Where a machine should live."""

    region: str


async def create(name: str) -> str:
    """Stand in for a cloud."""
    tally.mark(f"create {name}")
    return name


async def start(machine: str) -> None:
    """Stand in for a cloud."""
    tally.mark(f"start {machine}")


@server.tool
async def provision(ctx: Context, name: str) -> str:
    """Create a machine, ask where to put it, and start it after approval."""
    machine = await ctx.once("create", create, name)
    place = await ctx.elicit(f"Where should {machine} live?", Placement)
    if not await ctx.approve(f"Start {machine} in {place.region}?"):
        return f"{machine} left stopped."
    await ctx.once("start", start, f"{machine}.{place.region}")
    return f"{machine}.{place.region} is running."
