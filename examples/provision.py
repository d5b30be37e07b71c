"""A database in three rounds: where, create once, start after approval. Run it; it checks itself.

python examples/provision.py            plays both sides in this process and exits 0
antiphon serve examples.provision:server --http 127.0.0.1:8400
antiphon call http://127.0.0.1:8400/mcp provision name=orders
"""

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel, Field

from antiphon import Accept, Client, Context, Decline, Scripted, Server

server = Server("cloud", version="1.0.0")
created: list[str] = []
started: list[str] = []


class Placement(BaseModel):
    """Where a database should live."""

    region: Literal["eu-west", "us-east", "ap-south"]
    size: int = Field(default=2, ge=1, le=16, description="Gigabytes of memory.")


async def create(name: str, region: str) -> str:
    """Stand in for a cloud."""
    created.append(f"{name}.{region}")
    return created[-1]


async def start(machine: str) -> None:
    """Stand in for a cloud."""
    started.append(machine)


@server.tool
async def provision(ctx: Context, name: str) -> str:
    """Create a database, ask where it should live, and start it after approval."""
    place = await ctx.elicit(f"Where should {name} live?", Placement)
    machine = await ctx.once("create", create, name, place.region)
    if not await ctx.approve(f"Start {machine} with {place.size} GB?"):
        return f"{machine} left stopped."
    await ctx.once("start", start, machine)
    return f"{machine} is running."


async def main() -> int:
    """Play the other side: a yes, a no, and a call that is put away and taken up again."""
    place = Accept({"region": "eu-west"})
    yes = Scripted(placement=place, approve=Accept({"approve": True}))
    async with Client(server, answers=yes) as client:
        print(text := said(await client.call_tool("provision", {"name": "orders"})))
        assert text == "orders.eu-west is running."

    no = Scripted(placement=place, approve=Decline())
    async with Client(server, answers=no) as client:
        print(text := said(await client.call_tool("provision", {"name": "bills"})))
        assert text == "bills.eu-west left stopped."

    async with Client(server) as client:
        step = await client.begin("provision", {"name": "mails"})
        while step.waiting:
            kept = step.dump()
            answers = {"placement": place, "approve": Accept({"approve": True})}
            step = await client.resume(kept, {key: answers[key] for key in step.asks})
        print(said(step.result))

    # Each handler ran from its top in every round; each effect happened once.
    assert created == ["orders.eu-west", "bills.eu-west", "mails.eu-west"]
    assert started == ["orders.eu-west", "mails.eu-west"]
    return 0


def said(result: object) -> str:
    """Return the text of a result."""
    return result.content[0].text  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
