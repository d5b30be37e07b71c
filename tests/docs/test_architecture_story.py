"""What the page for contributors says of `await ctx.elicit(...)` is what happens, by a trace."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.testing import Rounds
from tests.legacy.wire import accept, old, serving
from tests.tasks.task_client import Peer
from tests.tasks.task_client import accept as accepted

ROOT = Path(__file__).parents[2]
SOURCE = f"{(ROOT / 'src' / 'antiphon').as_posix()}/"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
FUNCTION = re.compile(r"`([a-z_0-9/]+\.py):((?:[A-Z]\w*\.)?[a-z_]\w*)`")

Entered = set[tuple[str, str]]


class Name(BaseModel):
    name: str


def make_server(**world: Any) -> Server:
    server = Server("traced", **world)

    @server.tool
    async def greet(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name)).name

    @server.tool(task="allowed")
    async def work(ctx: Context) -> str:
        return (await ctx.elicit("Who?", Name)).name

    return server


def named(paragraph: str) -> Entered:
    """The functions that a paragraph of the page names."""
    text = PAGE.partition(f"**{paragraph}**")[2].partition("\n\n")[0]
    found = {(match[1], match[2]) for match in FUNCTION.finditer(text)}
    assert found, paragraph
    return found


@contextmanager
def entered() -> Iterator[Entered]:
    """Collect the functions of the package that are entered in this thread."""
    functions: Entered = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename.replace(os.sep, "/")
        if event == "call" and file.startswith(SOURCE):
            functions.add((file.removeprefix(SOURCE), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield functions
    finally:
        sys.setprofile(None)


async def test_rounds_one_and_two_go_as_told() -> None:
    async with Rounds(make_server) as world:
        with entered() as one:
            step = await world.begin("greet", {})
        with entered() as two:
            step = await world.answer(step, {"name": {"name": 7}})
        assert step.waiting  # the answer did not fit
        step = await world.answer(step, {"name": {"name": "Ada"}})
    assert step.text == "Ada"
    assert named("Always first.") - one == set()
    assert named("Round one.") - one == set()
    assert named("Round two.") - two == set()


async def test_a_legacy_session_goes_as_told() -> None:
    async with serving(make_server()) as url, old(url) as client:
        client.answer = accept(name="Ada")
        with entered() as functions:
            assert await client.text("greet") == "Ada"
    assert named("In a legacy session.") - functions == set()
    assert not {file for file, _ in functions} & {"engine/tokens.py", "engine/redemption.py"}


async def test_a_run_of_a_task_goes_as_told() -> None:
    server = make_server()
    async with server.running():
        peer = Peer(server)
        with entered() as functions:
            id = await peer.begin("work")
            await peer.asked(id, "name")
            await peer.answer(id, name=accepted(name="Ada"))
            task = await peer.ended(id)
    assert task["result"]["content"][0]["text"] == "Ada"
    assert named("In a run of a task.") - functions == set()
    assert ("engine/delivery.py", "Delivery.ask") in functions
