"""The story of `docs_src/shapes` in each of its tellings, and exchanges that can be compared."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from antiphon import Server
from antiphon.testing import RoundTrip
from docs_src.shapes import linear, native, parked, resolvers, steps
from docs_src.shapes.story import Cloud

SHAPES: dict[str, Callable[..., Server]] = {
    "linear": linear.build,
    "native": native.build,
    "steps": steps.build,
    "resolvers": resolvers.build,
    "parked": parked.build,
}
ANSWERS = {"placement": {"region": "eu"}, "size": {"gb": 4}, "confirm": {"go": True}}
ASKED = ["placement", "size", "confirm"]
MADE = "Made orders@eu/4GB."


class Story:
    """One telling of the story, with its cloud."""

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.cloud = Cloud()
        self.build = partial(SHAPES[shape], self.cloud)

    @property
    def made(self) -> list[str]:
        return list(self.cloud.made.values())


@pytest.fixture(params=SHAPES)
def story(request: pytest.FixtureRequest) -> Story:
    return Story(request.param)


def exchange(step: RoundTrip) -> list[dict[str, Any]]:
    """Everything that went over the wire in a call, without the tokens themselves."""
    return [{"sent": _masked(s.request), "came": _came(s)} for s in step.trail]


def _came(step: RoundTrip) -> dict[str, Any]:
    if step.error is not None:
        return {"code": step.error.code, "message": step.error.message, "data": step.error.data}
    return _masked(step.result or {})


def _masked(message: Any) -> Any:
    masked = {**message}
    if "params" in masked:
        masked["params"] = _masked(masked["params"])
    if "requestState" in masked:
        masked["requestState"] = "…"
    return masked
