"""Runs tests against mutants: a process is forked for each, from one that has imported the rest.

The process that forks has imported pytest and the libraries, but nothing of ours; the mutant is put
in place of its module before the tests import it.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
LIBRARIES = (
    "pytest", "pytest_asyncio", "pytest_timeout", "hypothesis", "hypothesis.strategies", "pydantic",
    "pydantic_core", "msgspec", "anyio", "httpx2", "uvicorn", "cryptography", "jsonschema",
)  # fmt: skip


_EARLY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Plugins are imported before pytest starts, so their asserts are not rewritten."""


def import_libraries() -> None:
    """Import what every test needs and no mutant changes."""
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a library that is not used any more
    assert not any(name.split(".")[0] == "antiphon" for name in sys.modules)


class _Mutated(importlib.machinery.SourceFileLoader):
    """Loads a mutant in place of its module."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        return self._mutant.code()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(SOURCE).with_suffix("").parts
        self.name = ".".join(parts)
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        loader = _Mutated(fullname, self._mutant)
        return importlib.util.spec_from_file_location(fullname, self._mutant.path, loader=loader)


@dataclass
class Trial:
    """A mutant whose tests run in a process."""

    mutant: Mutant
    pid: int
    ends: float
    """When it is taken for one that hangs."""


def begin(mutant: Mutant, tests: Sequence[str], seconds: float) -> Trial:
    """Start the tests of a mutant."""
    pid = os.fork()
    if pid == 0:
        _try(mutant, tests)
    return Trial(mutant, pid, time.monotonic() + seconds)


def _try(mutant: Mutant, tests: Sequence[str]) -> None:
    """Run tests in this forked process; never returns. The exit code is that of pytest."""
    code = 99
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        code = _import(mutant)
        if code:
            return
        import pytest

        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *_EARLY]
        # Other styles parse the sources: slow, and Python 3.11 fails at it deep in a stack.
        code = int(pytest.main([*quiet, "--tb=native", f"--rootdir={ROOT}", *tests]))
    finally:
        os._exit(code)


def _import(mutant: Mutant) -> int:
    """Import the mutant before pytest takes over imports; 2 when it cannot be imported."""
    finder = _Finder(mutant)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(finder.name)
    except Exception:
        return 2
    return 0


def ended(trial: Trial) -> int | None:
    """Return the exit code of a trial, None while it runs; one that hangs is killed."""
    pid, status = os.waitpid(trial.pid, os.WNOHANG)
    if pid:
        return os.waitstatus_to_exitcode(status)
    if time.monotonic() < trial.ends:
        return None
    os.killpg(trial.pid, signal.SIGKILL)
    os.waitpid(trial.pid, 0)
    return -signal.SIGKILL
