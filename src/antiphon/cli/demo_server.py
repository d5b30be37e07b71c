"""The server of `antiphon demo`: a call that asks two questions and does its work once.

A real server in small: a form, an effect that happens once however often the code re-runs, an
approval, and only then the second effect.
"""

from typing import Literal

from pydantic import BaseModel, Field

from antiphon import Context, Server

server = Server("cloud", version="1.0.0", instructions="Creates databases that do not exist.")


class Placement(BaseModel):
    """Where a database should live."""

    region: Literal["eu-west", "us-east", "ap-south"] = Field(description="Near its readers.")
    size: int = Field(default=2, ge=1, le=16, description="Gigabytes of memory.")


async def create(name: str, region: str) -> str:
    """Stand in for a cloud: give the machine a name."""
    return f"{name}.{region}"


async def start(machine: str) -> str:
    """Stand in for a cloud: start the machine."""
    return f"{machine} is running"


@server.tool
async def provision(ctx: Context, name: str) -> str:
    """Create a database, ask where it should live, and start it after approval."""
    place = await ctx.elicit(f"Where should {name} live?", Placement)
    machine = await ctx.once("create", create, name, place.region)
    if not await ctx.approve(f"Start {machine} with {place.size} GB?"):
        return f"{machine} was created and left stopped."
    return await ctx.once("start", start, machine)
