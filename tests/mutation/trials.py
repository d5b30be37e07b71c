"""Runs tests against mutants: a process is forked for each, from one that has collected the tests.

pytest imports and collects once. In the forked process, the functions that a mutant changes get
their changed code, and the chosen tests run until one fails. What runs when a module is imported
cannot be changed afterwards: such a mutant is tried by a pytest of its own (`at_import.py`).
"""

import gc
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import NoReturn

import pytest

from tests.mutation.lines import Lines
from tests.mutation.mutants import Mutant

PYTEST = (
    "-x", "-q", "-s", "--tb=native", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist",
    "--rootdir=.",
)  # fmt: skip
"""Other tracebacks parse the sources: slow, and Python 3.11 fails at it deep in a stack."""

_START = 10.0
"""Seconds until a forked process begins its first test."""

_NOT_PLACED = 98
_ENDS = {0: "passed", 1: "failed"}


@dataclass(frozen=True)
class Trial:
    """What came of some tests."""

    end: str
    """`passed`, `failed`, `hung` or `broken`."""

    test: str = ""
    """The one that failed or hung."""


class Trials:
    """A plugin of pytest that does its work where pytest would run the tests."""

    def __init__(self, paths: Iterable[Path], work: Callable[["Trials"], None]) -> None:
        self._paths = frozenset(map(str, paths))
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._functions: list[FunctionType] = []
        """Those of the files that are changed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work; no test runs in this process."""
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions_of(self._paths)
        gc.collect()
        gc.freeze()  # a forked process need not look at what was imported
        self._work(self)
        return True

    @property
    def tests(self) -> list[str]:
        """The names of the tests that were collected."""
        return [*self._items]

    def learn(self, file: str, lines: Lines) -> None:
        """Run the tests of a file and write down what they execute."""
        pid = os.fork()
        if pid == 0:
            tests = [name for name in self._items if name.partition("::")[0] == file]
            self._run_in_child(tests, lines, after=lines.write)
        os.waitpid(pid, 0)

    def run(self, tests: dict[str, float], mutant: Mutant | None = None) -> Trial:
        """Run tests until one fails; each may take so many seconds."""
        if mutant is not None and mutant.at_import:
            return _run_anew(tests, mutant)
        codes = {} if mutant is None else _codes(mutant.code())
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            if mutant is not None and not self._place(str(mutant.path), codes):
                os._exit(_NOT_PLACED)
            self._run_in_child([*tests], _Progress(writer), after=lambda: None)
        os.close(writer)
        try:
            return _follow(pid, reader, tests)
        finally:
            os.close(reader)

    def _place(self, path: str, codes: dict[tuple[str, int], CodeType]) -> bool:
        """Give every function of a file its changed code; tells if one has changed."""
        placed = False
        for function in self._functions:
            old = function.__code__
            new = codes.get((old.co_qualname, old.co_firstlineno), old)
            if old.co_filename == path and new != old:
                function.__code__ = new
                placed = True
        return placed

    def _run_in_child(
        self, tests: Sequence[str], plugin: object, after: Callable[[], None]
    ) -> NoReturn:
        """Run tests in this forked process, which ends then."""
        code = 99
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            items = [self._items[name] for name in tests]
            items[0].config.pluginmanager.register(plugin)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            after()
            code = 0
        finally:
            os._exit(code)


class _Progress:
    """Says which test begins, and ends the process with the first that fails."""

    def __init__(self, writer: int) -> None:
        self._writer = writer

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.write(self._writer, f"{nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(1)


def _follow(pid: int, reader: int, tests: dict[str, float]) -> Trial:
    """Wait for the end of a forked process; a test that takes too long has hung."""
    text, test, ends = "", "", time.monotonic() + _START
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, ends - time.monotonic()))
        data = os.read(reader, 65_536) if ready else b""
        if data:
            text = (text + data.decode())[-4_096:]
            test = text.rstrip("\n").rpartition("\n")[2]
            ends = time.monotonic() + tests.get(test, _START)
            continue
        if ready:  # it has ended, but its number is kept until it is waited for
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)  # with what its tests have started
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Trial(_ENDS.get(code, "broken") if ready else "hung", test)


def _run_anew(tests: dict[str, float], mutant: Mutant) -> Trial:
    """Run tests in a new process that imports the mutant."""
    environment = {
        **os.environ, "MUTANT_PATH": str(mutant.path), "MUTANT_NAME": mutant.name,
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.at_import", *PYTEST, *tests]
    try:
        ended = subprocess.run(
            command, env=environment, check=False, capture_output=True,
            timeout=60 + sum(tests.values()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Trial("hung")
    # 2: the mutant, or a file of tests, could not be imported
    return Trial({**_ENDS, 2: "failed"}.get(ended.returncode, "broken"))


def _functions_of(paths: Collection[str]) -> list[FunctionType]:
    """Return all functions that were made from the code of some files."""
    return [
        one
        for one in gc.get_objects()
        if type(one) is FunctionType and one.__code__.co_filename in paths
    ]


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of all functions of a module, nested ones too."""
    found: dict[tuple[str, int], CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found |= _codes(constant)
    return found
