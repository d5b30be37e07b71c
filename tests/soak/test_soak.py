"""Days of calls in simulated time: nothing repeated, nothing lost, nothing left behind.

The short form; `make soak` makes a hundred thousand calls.
"""

from pathlib import Path

import pytest

from tests.soak.report import soak


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "calls", "lanes"), [("memory", 600, 5), ("sqlite", 240, 3)])
def test_nothing_is_repeated_lost_or_left_behind(
    kind: str, calls: int, lanes: int, tmp_path: Path
) -> None:
    done = soak(kind, tmp_path, calls=calls, lanes=lanes, seed=7)
    assert done.wrong == [], "\n".join(done.lines)
    assert done.ends["done"] > 0.75 * calls
    for trouble in ("hung up", "sent twice", "servers dropped", "settled by an operator"):
        assert done.counts[trouble] > 3, done.counts
