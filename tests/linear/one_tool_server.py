"""What the tests of the linear handler share: forms, and a server of one tool."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from antiphon import Server
from antiphon.testing import RoundTrip


class Place(BaseModel):
    region: str
    size: int = 2


class Plan(BaseModel):
    name: str


EU = {"region": "eu"}
US = {"region": "us"}


def serving(*functions: Callable[..., Any], config: dict[str, Any] | None = None, **options: Any):
    """Give a factory of servers that offer these functions as tools."""

    def make(**world: Any) -> Server:
        server = Server("cloud", **{**world, **(config or {})})
        for function in functions:
            server.tool(**options)(function)
        return server

    return make


def texts(step: RoundTrip) -> list[str]:
    """The texts of a result, block by block."""
    return [block["text"] for block in step.content]
