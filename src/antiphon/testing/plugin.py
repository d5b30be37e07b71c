"""Fixtures for pytest, there as soon as Antiphon is installed. Nothing to configure.

    async def test_provision(rounds):
        done = await rounds(make_server).call("provision", {"name": "x"}, answers={...})

A test that takes `rounds` runs twice: with a new server for every round, and with a kept one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from antiphon.testing.doubles import FakeClock, Tally
from antiphon.testing.harness import Factory, Rounds

MakeRounds: TypeAlias = Callable[..., Rounds]
"""What the fixture `rounds` gives: makes `Rounds` for a factory, with the same options."""


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that stands until it is told to go on."""
    return FakeClock()


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    """Counts in a file what happened."""
    return Tally(tmp_path / "tally.txt")


@pytest.fixture(params=["fresh", "kept"])
def rounds(request: pytest.FixtureRequest, fake_clock: FakeClock) -> MakeRounds:
    """Make rounds: first with a new server for every round, then with one that is kept."""

    def make(factory: Factory, **options: Any) -> Rounds:
        options.setdefault("clock", fake_clock)
        return Rounds(factory, fresh=request.param == "fresh", **options)

    return make
