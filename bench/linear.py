"""What the linear shape costs: processor time of one round at the dispatcher, in this process.

    python -m bench.linear [seconds per figure]

Ratios are what counts; both sides of each are measured in turns in one run. A handler that asks
nothing is set against one that declares no context, which nothing of the shape is needed for. The
replay of ten answers is set against a first round that asks once.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

import msgspec

from antiphon import Context, Elicit, InputRequired, Server
from antiphon.core.request import Principal, Request
from antiphon.seal.policy import Seal
from antiphon.testing import EVERYTHING, KEY

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TURNS = 15
ANSWERS = 10


def make() -> Server:
    server = Server("bench", seal=Seal(keys=[KEY]), redeem="off")

    @server.tool
    async def bare(name: str) -> str:
        return name

    @server.tool
    async def linear(ctx: Context, name: str) -> str:
        return name

    @server.tool
    async def native(ctx: Context, name: str) -> str | InputRequired:
        if ctx.answers.get("form") is None:
            return InputRequired({"form": Elicit("How many?", SCHEMA)})
        return name

    @server.tool
    async def asks(ctx: Context, name: str) -> str:
        return str((await ctx.elicit("How many?", SCHEMA, key="form"))["n"])

    @server.tool
    async def ten(ctx: Context, name: str) -> str:
        total = 0
        for number in range(ANSWERS):
            total += (await ctx.elicit(f"How many of {number}?", SCHEMA))["n"]
        return str(total)

    return server


def request(tool: str, token: str | None = None, answers: dict | None = None) -> Request:
    return Request(
        method="tools/call",
        target=tool,
        arguments={"name": "x"},
        answers=answers,
        token=token,
        capabilities=dict(EVERYTHING),
        principal=Principal(transport="process"),
    )


async def walk(server: Server, tool: str, rounds: int) -> tuple[str, dict]:
    """Go so many rounds into a call; give the token and the answers of the next."""
    token, answers = None, None
    for _ in range(rounds):
        raw = await server.dispatcher.dispatch(request(tool, token, answers))
        result = msgspec.json.decode(raw)
        token = result["requestState"]
        answers = {
            key: {"action": "accept", "content": {"n": 1}} for key in result["inputRequests"]
        }
    assert token is not None
    assert answers is not None
    return token, answers


async def cost(call: Callable[[], Awaitable[bytes]], span: float) -> float:
    """Processor time of one call in microseconds."""
    count, start = 0, time.process_time()
    while (spent := time.process_time() - start) < span:
        for _ in range(50):
            await call()
        count += 50
    return spent / count * 1e6


async def main(seconds: float) -> None:
    server = make()
    dispatch = server.dispatcher.dispatch
    last = await walk(server, "ten", ANSWERS)
    one = await walk(server, "asks", 1)
    calls: dict[str, Callable[[], Awaitable[bytes]]] = {
        "a tool without a context": lambda: dispatch(request("bare")),
        "a linear tool that asks nothing": lambda: dispatch(request("linear")),
        "a native tool that asks": lambda: dispatch(request("native")),
        "a linear tool that asks": lambda: dispatch(request("asks")),
        "its second round: one answer": lambda: dispatch(request("asks", *one)),
        "the replay of ten answers": lambda: dispatch(request("ten", *last)),
    }
    gc.freeze()
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            figures[name].append(await cost(call, seconds / TURNS))
    found = {name: median(values) for name, values in figures.items()}
    for name, value in found.items():
        print(f"{name:34} {value:8.1f} µs")
    bare, linear, native, asks, second, ten = found.values()
    print(f"asking nothing, over a tool without a context   {linear / bare - 1:+7.1%}")
    print(f"asking once, over a native tool that asks       {asks / native - 1:+7.1%}")
    each = (ten - second) / (ANSWERS - 1)
    print(f"each recorded answer, in µs                     {each:7.1f}")
    print(f"each recorded answer, of a second round         {each / second:+7.1%}")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
