"""How far a call travels in the client: what somebody who reads it has to follow."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import antiphon
from antiphon import Client, Context, Scripted, Server

PACKAGE = Path(antiphon.__file__).parent
FOLDERS = (str(PACKAGE / "client"), str(PACKAGE / "core"))
SERVER = "exchange"
"""The function by which an in-process client enters the server; what it calls is not counted."""


class CallPath:
    """Counts the frames that are entered, by file."""

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self._inside_server = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        server = code.co_name == SERVER and code.co_filename.endswith("server.py")
        if event == "call" and server:
            self._inside_server += 1
        elif event == "return" and server:
            self._inside_server -= 1
        elif event == "call" and not self._inside_server and code.co_filename.startswith(FOLDERS):
            self.frames[code.co_filename] += 1


@contextmanager
def counted() -> Iterator[CallPath]:
    path = CallPath()
    sys.setprofile(path)
    try:
        yield path
    finally:
        sys.setprofile(None)


@dataclass
class Placement:
    region: str


def make() -> Server:
    server = Server("cloud")

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        placement = await ctx.elicit("Where?", Placement, key="placement")
        return f"{name} in {placement.region}"

    return server


async def test_a_call_of_two_rounds_enters_few_frames_and_few_files():
    answers = Scripted(placement={"region": "eu-west"})
    async with Client(make(), answers=answers) as client:
        await client.call_tool("provision", {"name": "orders"})
        with counted() as path:
            result: Any = await client.call_tool("provision", {"name": "orders"})
    assert result.content[0].text == "orders in eu-west"
    assert sum(path.frames.values()) <= 110, path.frames.most_common()
    assert len(path.frames) <= 12, sorted(path.frames)
    assert sum(path.frames.values()) >= 30, "the profile saw the call"
