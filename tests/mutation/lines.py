"""A pytest plugin that writes down which lines of the chosen files each test executes.

Used as `pytest -p tests.mutation.lines`; reads MUTATION_FILES (paths, one per line) and writes
MUTATION_MAP. Only what runs in the test's own process is seen.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

_files = frozenset(os.environ["MUTATION_FILES"].splitlines())
_map = Path(os.environ["MUTATION_MAP"])
_now: dict[str, set[int]] = defaultdict(set)
_tests: dict[str, dict[str, Any]] = {}


def _trace_call(frame: Any, event: str, _: Any) -> Any:
    if frame.f_code.co_filename not in _files:
        return None
    _now[frame.f_code.co_filename].add(frame.f_lineno)
    return _trace_line


def _trace_line(frame: Any, event: str, _: Any) -> Any:
    if event == "line":
        _now[frame.f_code.co_filename].add(frame.f_lineno)
    return _trace_line


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Trace one test."""
    _now.clear()
    threading.settrace(_trace_call)
    sys.settrace(_trace_call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
        test = _tests.setdefault(item.nodeid, {"seconds": 0.0, "passed": False})
        test["lines"] = {file: sorted(lines) for file, lines in _now.items()}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long a test took and whether it passed."""
    test = _tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": False})
    test["seconds"] += report.duration
    if report.when == "call":
        test["passed"] = report.passed


def pytest_sessionfinish() -> None:
    """Write the map."""
    _map.write_text(json.dumps(_tests))
