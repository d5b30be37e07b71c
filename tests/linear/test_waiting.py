"""Calls that wait for something that is no answer fit into the rounds that clients allow."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Accept, Answers, Client, Context, Server
from antiphon.engine.delivery import HOLD
from antiphon.testing import Rounds
from tests.simulated_time import LoopClock, SimulatedLoop

CLIENT_ROUNDS = 10
"""Rounds after which the official clients end a call."""

PROXY = 30.0
"""Seconds after which common proxies end a request."""


class Visit:
    """A visit that takes its time, and who has looked whether it is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, takes: float) -> None:
        self._loop = loop
        self._takes = takes
        self.looks: list[float] = []

    async def is_over(self) -> bool:
        self.looks.append(self._loop.time())
        return self._loop.time() >= self._takes


def simulated(story: Callable[[SimulatedLoop], Any]) -> Any:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        return runner.run(story(loop))


def serving_one(tool: Callable[..., Any], **options: Any) -> Callable[..., Server]:
    def make(**world: Any) -> Server:
        server = Server("wait", **world)
        server.tool(**options)(tool)
        return server

    return make


async def count_rounds(loop: SimulatedLoop, make: Callable[..., Server]) -> tuple[str, list[float]]:
    """Call the one tool to its end; return its text and how long each round was held."""
    held: list[float] = []
    async with Rounds(make, clock=LoopClock(loop), fresh=False) as world:
        step = await world.begin("tool")
        while step.waiting:
            begun = loop.time()
            step = await world.answer(step, {"url": True} if step.asks else {})
            held.append(loop.time() - begun)
    return step.text, held


@pytest.mark.parametrize("options", [{}, {"park": 600}, {"timeout": 5.0}, {"concurrency": 1}])
@pytest.mark.parametrize("takes", [50.0, 190.0])
def test_a_visit_of_minutes_fits_into_ten_rounds(takes: float, options: dict[str, Any]) -> None:
    async def story(loop: SimulatedLoop) -> None:
        visit = Visit(loop, takes)

        async def tool(ctx: Context) -> str:
            await ctx.elicit_url("Sign in", "https://shop.example/in", until=visit.is_over)
            return "signed in"

        text, held = await count_rounds(loop, serving_one(tool, name="tool", **options))
        assert text == "signed in"
        assert len(held) <= CLIENT_ROUNDS
        assert max(held) < PROXY
        assert takes <= loop.time() < takes + 3.0
        gaps = [after - before for before, after in zip(visit.looks, visit.looks[1:], strict=False)]
        assert max(gaps) <= 3.0

    simulated(story)


@pytest.mark.parametrize("options", [{}, {"park": 600}, {"timeout": 5.0}])
def test_a_loop_that_pauses_for_a_while_fits_into_ten_rounds(options: dict[str, Any]) -> None:
    async def story(loop: SimulatedLoop) -> None:
        async def tool(ctx: Context) -> str:
            while loop.time() < 120.0:
                await ctx.pause(hold=1.5)
            return "over"

        text, held = await count_rounds(loop, serving_one(tool, name="tool", **options))
        assert text == "over"
        assert len(held) <= CLIENT_ROUNDS
        assert max(held) < PROXY

    simulated(story)


def test_a_long_hold_is_cut_to_what_proxies_allow() -> None:
    async def story(loop: SimulatedLoop) -> None:
        async def tool(ctx: Context) -> str:
            await ctx.pause(hold=3_600)
            return "over"

        await count_rounds(loop, serving_one(tool, name="tool"))
        assert loop.time() == pytest.approx(HOLD, abs=0.5)

    simulated(story)


def test_our_client_waits_for_as_long_as_a_call_may_take() -> None:
    async def story(loop: SimulatedLoop) -> None:
        visit = Visit(loop, 2_000.0)
        server = Server("wait", clock=LoopClock(loop))

        @server.tool
        async def tool(ctx: Context) -> str:
            await ctx.elicit_url("Sign in", "https://shop.example/in", until=visit.is_over)
            return "signed in"

        async with Client(server, answers=Answers(elicit_url=lambda ask: Accept())) as client:
            done: Any = await client.call_tool("tool")
        assert done.content[0].text == "signed in"

    simulated(story)
