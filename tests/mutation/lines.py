"""Writes down which lines of the chosen files each test executes, and how long it takes.

A plugin of pytest. Only what runs in the test's own process is seen.
"""

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest


class Lines:
    """What the tests that have run executed."""

    def __init__(self, files: Iterable[Path], kept: Path) -> None:
        self._files = frozenset(map(str, files))
        self._kept = kept
        self._now: dict[str, set[int]] = defaultdict(set)
        self._tests: dict[str, dict[str, Any]] = {}

    def _trace_call(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        self._now[frame.f_code.co_filename].add(frame.f_lineno)
        return self._trace_line

    def _trace_line(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            self._now[frame.f_code.co_filename].add(frame.f_lineno)
        return self._trace_line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Trace one test."""
        self._now.clear()
        threading.settrace(self._trace_call)
        sys.settrace(self._trace_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # pyright: ignore[reportArgumentType]
            lines = {file: sorted(lines) for file, lines in self._now.items()}
            self._test(item.nodeid)["lines"] = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long a test took and whether it passed."""
        test = self._test(report.nodeid)
        test["seconds"] += report.duration
        test["passed"] = report.passed and (test["passed"] or report.when == "setup")

    def _test(self, name: str) -> dict[str, Any]:
        return self._tests.setdefault(name, {"seconds": 0.0, "passed": False, "lines": {}})

    def write(self) -> None:
        """Keep what was learned."""
        self._kept.write_text(json.dumps(self._tests))
