"""Effects: what happens once, however often the code re-runs."""

import asyncio
from typing import Any

from pydantic import BaseModel

from antiphon import Context, EffectFailed, NotDone, Server


class Placement(BaseModel):
    region: str


class Cloud:
    """Stands for the outside world."""

    def __init__(self) -> None:
        self.machines: list[str] = []
        self.mails: list[str] = []

    async def create(self, name: str, idempotency_key: str) -> str:
        self.machines.append(name)
        return f"{name}-{idempotency_key[:4]}"

    async def price(self, region: str) -> float:
        return 0.25 + len(self.machines)

    def mail(self, text: str) -> None:
        self.mails.append(text)

    async def charge(self, amount: int, idempotency_key: str) -> str:
        return f"charge {idempotency_key[:4]} of {amount}"

    async def find_charge(self, amount: int, idempotency_key: str) -> str:
        raise NotDone("there is no charge under this key")

    async def reserve(self, name: str) -> str:
        if name == "taken":
            raise NotDone("the name is taken")
        raise ValueError("no such zone")


def make_server(cloud: Cloud, **kit: Any) -> Server:
    server = Server("cloud", **kit)

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Create a machine once, at the price that was shown."""
        place = await ctx.elicit("Where should it live?", Placement)
        price = await ctx.memo("price", cloud.price, place.region)
        machine = await ctx.once("create", cloud.create, name)
        ctx.on_commit("mail", cloud.mail, f"{machine} is ready")
        if not await ctx.approve(f"Start it for {price:.2f} an hour?"):
            return f"{machine} left stopped."
        return f"{machine} runs for {price:.2f} since {ctx.now():%Y}."

    @server.tool
    async def pay(ctx: Context, amount: int) -> str:
        """Charge once, also where the service knows idempotency keys or can be asked."""
        first = await ctx.once("deposit", cloud.charge, amount, retry=True)
        rest = await ctx.once("rest", cloud.charge, amount, verify=cloud.find_charge)
        return f"{first}, {rest}"

    async def charge_in_time(amount: int, idempotency_key: str) -> str:
        async with asyncio.timeout(5):
            return await cloud.charge(amount, idempotency_key)

    @server.tool
    async def pay_soon(ctx: Context, amount: int) -> str:
        """Charge once, and give up waiting after five seconds."""
        return await ctx.once("charge", charge_in_time, amount, verify=cloud.find_charge)

    @server.tool(restarts="adopt")
    async def move(ctx: Context, name: str) -> str:
        """Create a machine between two questions; a client that starts over finds it again."""
        place = await ctx.elicit("Where should it live?", Placement)
        machine = await ctx.once("create", cloud.create, f"{name}.{place.region}")
        if not await ctx.approve(f"Move everything to {machine}?"):
            return f"{machine} stays empty."
        return f"{name} is on {machine}."

    @server.tool
    async def reserve(ctx: Context, name: str) -> str:
        """Show how an effect ends badly."""
        try:
            return await ctx.once("reserve", cloud.reserve, name)
        except NotDone as nothing_happened:
            return f"Not done: {nothing_happened}."
        except EffectFailed as failed:
            return f"It failed, in every run: {failed.error}."

    return server
