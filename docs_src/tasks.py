"""Rounds, then a task, then a question in the task."""

from typing import Any

from pydantic import BaseModel

from antiphon import Context, Server


class Placement(BaseModel):
    region: str


class Window(BaseModel):
    hour: int


class Cloud:
    """Stands for what costs money."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def reserve(self, name: str, region: str) -> str:
        self.log.append(f"reserve {name}")
        return f"{region}-{name}"

    async def copy(self, machine: str) -> int:
        self.log.append(f"copy to {machine}")
        return 3

    async def switch(self, machine: str, hour: int) -> None:
        self.log.append(f"switch {machine} at {hour}")

    async def free(self, name: str) -> None:
        self.log.append(f"free {name}")


def make_server(cloud: Cloud, **kit: Any) -> Server:
    server = Server("cloud", version="1.0.0", **kit)

    @server.tool(task_ttl=14 * 24 * 3600)
    async def migrate(ctx: Context, name: str) -> str:
        """Move a database."""
        # 1. Rounds: the client waits, and a person answers at once.
        place = await ctx.elicit("Where should it live?", Placement)
        machine = await ctx.once("reserve", cloud.reserve, name, place.region)

        # 2. A task: the client has its answer and comes back when it likes.
        await ctx.detach(f"copying {name}")
        tables = await ctx.once("copy", cloud.copy, machine)
        await ctx.report(tables, tables, "copied")

        # 3. A question in the task, hours later, perhaps on another machine.
        window = await ctx.elicit("At which hour may it be switched?", Window)
        await ctx.once("switch", cloud.switch, machine, window.hour)
        return f"{name} lives on {machine}."

    @migrate.on_cancel
    async def give_back(name: str) -> None:
        await cloud.free(name)

    @server.tool(task="allowed", max_concurrent=2)
    async def report(ctx: Context, month: str) -> str:
        """A task from its first line, where the client takes one; two at a time."""
        return f"report of {month}"

    @server.tool(task="required")
    async def rebuild(ctx: Context) -> str:
        """Never in the call: clients without the extension are refused."""
        return "rebuilt"

    return server
