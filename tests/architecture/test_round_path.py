"""How many files, function calls and packages one HTTP round passes through, counted by a trace.

Warm, in process: the first calls of a server fill its caches and are not counted.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from antiphon import Context, Server
from tests.architecture.source import PACKAGE, SOURCE
from tests.transports.wire import META, call, mirrored, request

CEILINGS = {
    "round 1: asks": {"frames": 53, "files": 20, "package changes": 19},
    "round 2: answers and completes": {"frames": 60, "files": 22, "package changes": 26},
}
"""What holds today. Numbers may only be lowered."""

FORM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}
OURS = str(SOURCE / PACKAGE)

Entered = Counter[tuple[str, str]]


def make_server() -> Server:
    server = Server("traced")

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Ask once."""
        where = await ctx.elicit("Where?", FORM, key="where")
        return f"{name} in {where['region']}"

    return server


class Trace:
    """Counts the functions of the package that are entered; resuming one is not entering it."""

    def __init__(self) -> None:
        self.entered: Entered = Counter()
        self.package_changes = 0
        """How often a function is of another package than the one that was entered before it."""

        self._package: str | None = None
        self._seen: set[int] = set()
        self._alive: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(OURS) or id(frame) in self._seen:
            return
        if _is_inline(code):
            return
        # Kept alive, so that no later frame has the same id.
        self._seen.add(id(frame))
        self._alive.append(frame)
        file = code.co_filename.removeprefix(OURS + "/")
        self.entered[file, code.co_qualname] += 1
        package = file.partition("/")[0]
        self.package_changes += self._package not in (None, package)
        self._package = package

    @property
    def frames(self) -> int:
        return sum(self.entered.values())

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.entered}


def _is_inline(code: CodeType) -> bool:
    """Comprehensions are calls in older versions of Python only."""
    return code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


async def traced(app: Any, message: dict[str, Any]) -> tuple[Trace, dict[str, Any]]:
    sent = call(app, message, mirrored(message))
    trace = Trace()
    sys.setprofile(trace)
    try:
        answer = await sent.run()
    finally:
        sys.setprofile(None)
    return trace, json.loads(answer.body)["result"]


async def two_rounds(app: Any) -> dict[str, Trace]:
    arguments = {"name": "orders"}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    first, asked = await traced(app, request(name="provision", arguments=arguments, meta=meta))
    assert asked["resultType"] == "input_required"
    second, done = await traced(
        app,
        request(
            name="provision",
            arguments=arguments,
            meta=meta,
            requestState=asked["requestState"],
            inputResponses={"where": {"action": "accept", "content": {"region": "eu"}}},
        ),
    )
    assert done["content"][0]["text"] == "orders in eu"
    return dict(zip(CEILINGS, (first, second), strict=True))


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    async def warm() -> dict[str, Trace]:
        app = make_server().asgi()
        for _ in range(3):
            await two_rounds(app)
        return await two_rounds(app)

    return asyncio.run(warm())


@pytest.mark.parametrize("which", CEILINGS)
@pytest.mark.parametrize("measure", ["frames", "files", "package changes"])
def test_a_round_passes_through_no_more_than(
    which: str, measure: str, traces: dict[str, Trace]
) -> None:
    trace = traces[which]
    counted = {
        "frames": trace.frames,
        "files": len(trace.files),
        "package changes": trace.package_changes,
    }[measure]
    listing = "\n".join(f"{n} {file} {name}" for (file, name), n in trace.entered.items())
    assert counted <= CEILINGS[which][measure], f"{counted} {measure}:\n{listing}"


def test_the_trace_sees_a_round_from_the_transport_to_the_handler(
    traces: dict[str, Trace],
) -> None:
    entered: Callable[[str], bool] = lambda name: any(  # noqa: E731 - read three times
        qualname == name for trace in traces.values() for _, qualname in trace.entered
    )
    assert entered("App.__call__")
    assert entered("Engine.call")
    assert entered("HttpRequest.answer")
