"""Days of calls in simulated time: nothing repeated, nothing lost, nothing left behind.

The short form; `make soak` makes a hundred thousand calls.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import MemoryStore
from tests.soak import broken_stores
from tests.soak.report import soak
from tests.soak.stores import Broken, fast_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="antiphon-soak-", dir=fast_folder()) as place:
        yield Path(place)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "calls", "lanes"), [("memory", 600, 5), ("sqlite", 240, 3)])
def test_nothing_is_repeated_lost_or_left_behind(
    kind: str, calls: int, lanes: int, folder: Path
) -> None:
    done = soak(kind, folder, calls=calls, lanes=lanes, seed=7)
    assert done.wrong == [], "\n".join(done.lines)
    assert done.ends["done"] > 0.75 * calls
    for trouble in ("hung up", "sent twice", "servers dropped", "settled by an operator"):
        assert done.counts[trouble] > 3, done.counts


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("broken", "kind", "found"),
    [
        (broken_stores.ExtendsNoLease, "memory", "a token was refused before it had expired"),
        (broken_stores.SweepsHeldRounds, "sqlite", "a token was refused before it had expired"),
        (broken_stores.ForgetsOutcomes, "memory", "a recorded round was forgotten|effects {"),
        (broken_stores.KeepsWhatCallsLeave, "memory", "rows of _effects"),
        (broken_stores.RunsOnAnotherClock, "memory", "a token was refused before it had expired"),
        (broken_stores.SettlesNothing, "memory", "no outcome after forty tries"),
    ],
)
def test_a_store_that_is_broken_on_purpose_is_noticed(
    broken: Broken, kind: str, found: str, folder: Path
) -> None:
    replaced = {name for name in vars(broken) if not name.startswith("_")}
    assert replaced <= set(dir(MemoryStore)), "a store that is broken in nothing"
    done = soak(kind, folder, calls=300, lanes=20, seed=7, broken=broken)
    assert any(one in text for one in found.split("|") for text in done.wrong), "\n".join(
        done.lines
    )
