"""Days of calls in simulated time: nothing repeated, nothing lost, nothing left behind.

The short form; `make soak` makes a hundred thousand calls.
"""

from pathlib import Path

import pytest

from tests.soak.report import soak


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_nothing_is_repeated_lost_or_left_behind(kind: str, tmp_path: Path) -> None:
    done = soak(kind, tmp_path, calls=600, lanes=5, seed=7)
    assert done.wrong == [], "\n".join(done.lines)
    assert done.ends["done"] > 450
    for trouble in ("hung up", "sent twice", "servers dropped", "settled by an operator"):
        assert done.counts[trouble] > 3, done.counts
