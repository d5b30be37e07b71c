"""For every test: short names of the fixtures, Hypothesis on a busy machine, inherited signals."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from antiphon.testing import FakeClock, Tally
from antiphon.testing.plugin import MakeRounds

# Generated examples are counted, not timed: a slow moment of the machine is no failure. In CI the
# same examples are drawn every time, so that a red run can be run again.
settings.register_profile(
    "antiphon",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("antiphon")

# A shell that runs the tests in the background lets them ignore interrupts, and what is ignored is
# inherited by the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Take what the modules of all tests hold out of the collector's sight: there are millions of
    objects, and every full collection would walk them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fake_clock(antiphon_clock: FakeClock) -> FakeClock:
    return antiphon_clock


@pytest.fixture
def tally(antiphon_tally: Tally) -> Tally:
    return antiphon_tally


@pytest.fixture
def rounds(antiphon_rounds: MakeRounds) -> MakeRounds:
    return antiphon_rounds
