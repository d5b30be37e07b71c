"""Fixtures for pytest, available as soon as Antiphon is installed; there is nothing to configure.

    async def test_provision(antiphon_rounds):
        done = await antiphon_rounds(make_server).call("provision", {"name": "x"}, answers={...})

A test that takes `antiphon_rounds` runs twice: with a new server for every round, and with one
server for all of them. A coroutine test that takes one of the fixtures is run on an event loop of
its own, unless another plugin (pytest-asyncio, anyio) runs it.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from antiphon.testing.doubles import FakeClock, Tally
from antiphon.testing.harness import Factory, Rounds

MakeRounds: TypeAlias = Callable[..., Rounds]
"""The value of the fixture `antiphon_rounds`: makes `Rounds` for a factory, with its options."""

_FIXTURES = frozenset({"antiphon_clock", "antiphon_rounds", "antiphon_tally"})
_OTHER_LOOPS = ("anyio", "asyncio", "trio")
"""Marks by which a test belongs to another plugin."""


@pytest.fixture
def antiphon_clock() -> FakeClock:
    """A clock that stands still until it is advanced."""
    return FakeClock()


@pytest.fixture
def antiphon_tally(tmp_path: Path) -> Tally:
    """Counts in a file how often something happened."""
    return Tally(tmp_path / "tally.txt")


@pytest.fixture(params=["fresh", "kept"])
def antiphon_rounds(
    request: pytest.FixtureRequest, antiphon_clock: FakeClock
) -> Iterator[MakeRounds]:
    """Make rounds: first with a new server for every round, then with one for all of them."""
    # A kept server that nobody holds would be stopped by the collector, in the midst of the test.
    made: list[Rounds] = []

    def make(factory: Factory, **options: Any) -> Rounds:
        options.setdefault("clock", antiphon_clock)
        made.append(Rounds(factory, fresh=request.param == "fresh", **options))
        return made[-1]

    yield make
    made.clear()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test that takes our fixtures and that no other plugin runs."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test) or _FIXTURES.isdisjoint(pyfuncitem.fixturenames):
        return None
    if any(pyfuncitem.get_closest_marker(mark) is not None for mark in _OTHER_LOOPS):
        return None
    taken = inspect.signature(test).parameters
    values = {name: value for name, value in pyfuncitem.funcargs.items() if name in taken}
    asyncio.run(test(**values))
    return True
