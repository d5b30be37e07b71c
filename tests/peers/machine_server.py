"""Machines that are created between two questions, in the shapes that authors write.

Whoever has a bearer token is the person it names. What happened is counted in the file `MACHINES`.
"""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from antiphon import Context, Principal, Server
from antiphon.testing import Tally

tally = Tally(os.environ["MACHINES"])


async def who(scope: Mapping[str, Any]) -> Principal:
    """Tell callers apart by their token."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode()
    if not header.startswith("Bearer "):
        raise PermissionError("no token")
    return Principal(issuer="tests", subject=header.removeprefix("Bearer "))


server = Server("cloud", version="1.0.0", principal=who)


class Placement(BaseModel):
    """Where a machine should live."""

    region: str
    size: int = 2


async def create_vm(name: str, region: str) -> str:
    """Stand in for a cloud."""
    tally.mark(f"create {name}")
    return f"{name}.{region}"


async def start_vm(vm: str) -> None:
    """Stand in for a cloud."""
    tally.mark(f"start {vm}")


async def _provision(ctx: Context, name: str) -> str:
    place = await ctx.elicit("Where should it live?", Placement)
    vm = await ctx.once("create", create_vm, name, place.region)
    if not await ctx.approve(f"Start {vm} in {place.region}?"):
        return f"{vm} left stopped."
    await ctx.detach("starting")
    await ctx.once("start", start_vm, vm)
    return f"{vm} is running."


@server.tool(restarts="adopt")
async def provision(ctx: Context, name: str) -> str:
    """Create a machine between two questions."""
    return await _provision(ctx, name)


@server.tool
async def provision_unguarded(ctx: Context, name: str) -> str:
    """Create a machine between two questions, whoever starts over."""
    return await _provision(ctx, name)


@server.tool
async def provision_last(ctx: Context, name: str) -> str:
    """Ask everything first."""
    place = await ctx.elicit("Where should it live?", Placement)
    if not await ctx.approve(f"Create {name} in {place.region}?"):
        return f"{name} was not created."
    vm = await ctx.once("create", create_vm, name, place.region)
    await ctx.once("start", start_vm, vm)
    return f"{vm} is running."
