"""The benchmark goes on without a server that fails, and says which one that was."""

import sys

import pytest

from bench import growth, procs
from bench.__main__ import HttpRuns


@pytest.mark.timeout(180)
def test_servers_that_fail_are_left_out_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = [sys.executable, "-c", "pass"]
    # Says that it listens where nobody does.
    lies = [sys.executable, "-c", "print(1, flush=True); input()"]
    monkeypatch.setattr(procs, "COMMANDS", {**procs.COMMANDS, "node": ends, "fastmcp": lies})
    measuring = HttpRuns(seconds=0.05, repeats=1)
    measuring.all(["node", "bare", "fastmcp"])
    assert {name for name, _ in measuring.runs} == {"bare"}
    assert len(measuring.runs["bare", "mrtr"]) == 1
    assert set(measuring.failed) == {"node", "fastmcp"}


def test_a_line_that_grows_has_its_slope():
    assert growth.slope({0: 10.0, 100: 60.0, 200: 110.0}) == pytest.approx(0.5)
