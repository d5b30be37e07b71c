"""The example that the README opens with."""

from typing import Any

from pydantic import BaseModel

from antiphon import Context, Server

happened: list[str] = []


async def create_vm(name: str, region: str) -> str:
    happened.append(f"create {name}")
    return f"{name}.{region}"


async def start_vm(vm: str) -> None:
    happened.append(f"start {vm}")


class Placement(BaseModel):
    region: str
    size: int = 2


def make_server(**kit: Any) -> Server:
    server = Server("cloud", version="1.0.0", **kit)

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Create a database, ask where it should live, and start it after approval."""
        place = await ctx.elicit("Where should it live?", Placement)
        vm = await ctx.once("create", create_vm, name, place.region)
        if not await ctx.approve(f"Start {vm} in {place.region}?"):
            return f"{vm} left stopped."
        await ctx.detach("starting")
        await ctx.once("start", start_vm, vm)
        return f"{vm} is running."

    return server
