"""Counts which lines of the author's files run, per run of a handler. Only in `antiphon dev`.

Python 3.12 and newer tell it by `sys.monitoring`, older ones by `sys.settrace`. What is counted is
found by a context variable, so that branches, child tasks and threads of a handler count for it.
"""

import sys
import sysconfig
import threading
from collections.abc import Callable
from contextvars import ContextVar
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

Lines: TypeAlias = dict[str, dict[int, int]]

counting: ContextVar[Lines | None] = ContextVar("antiphon_lines", default=None)
"""The counts of the run that this code belongs to."""

MOST_LINES = 20_000
"""Different lines of one run; what comes after is not counted."""


class AuthorFiles:
    """Tells the author's files from those of Python and of installed packages."""

    def __init__(self, root: Path, loaded: Callable[[str, str], None]) -> None:
        """Take the folder of the author's files, and whom to give each as it is loaded."""
        self._root = root.resolve()
        self._loaded = loaded
        paths = sysconfig.get_paths()
        self._foreign = tuple(
            Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
        )
        self._known: dict[str, bool] = {}

    def __contains__(self, file: str) -> bool:
        """Whether a file is the author's."""
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._look(file)
            if known:
                self._loaded(file, _text(file))
        return known

    def _look(self, file: str) -> bool:
        if file.startswith("<"):
            return False
        path = Path(file).resolve()
        if not path.is_relative_to(self._root) or "site-packages" in path.parts:
            return False
        return not any(path.is_relative_to(folder) for folder in self._foreign)


def _text(file: str) -> str:
    """Return a file as Python reads it: with its encoding, its mark at the start and its lines."""
    try:
        data = Path(file).read_bytes()
    except OSError:
        return ""
    try:
        return decode_source(data)
    except (SyntaxError, UnicodeDecodeError):  # Python forgives it in comments
        return data.decode("utf-8", "replace")


def count(file: str, line: int) -> None:
    """Count a line for the run that is going on, if one is."""
    lines = counting.get()
    if lines is None:
        return
    of_file = lines.setdefault(file, {})
    if line in of_file or len(of_file) < MOST_LINES:
        of_file[line] = of_file.get(line, 0) + 1


def start_counting(files: AuthorFiles) -> None:
    """Count from now on, in this process."""
    if sys.version_info >= (3, 12):
        _monitor(files)
    else:
        _trace(files)


def _monitor(files: AuthorFiles) -> None:
    monitoring = vars(sys)["monitoring"]  # not there before Python 3.12
    # The numbers that no kind of tool has by convention come first: a profiler may run as well.
    tool = next(id for id in (4, 3, *range(6)) if monitoring.get_tool(id) is None)
    events = monitoring.events
    monitoring.use_tool_id(tool, "antiphon dev")

    def entered(code: CodeType, offset: int) -> Any:
        if code.co_filename in files:
            monitoring.set_local_events(tool, code, events.LINE)
        return monitoring.DISABLE

    def ran(code: CodeType, line: int) -> None:
        count(code.co_filename, line)

    monitoring.register_callback(tool, events.PY_START, entered)
    monitoring.register_callback(tool, events.LINE, ran)
    monitoring.set_events(tool, events.PY_START)


def _trace(files: AuthorFiles) -> None:
    def ran(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            count(frame.f_code.co_filename, frame.f_lineno)
        return ran

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return ran if frame.f_code.co_filename in files else None

    sys.settrace(entered)
    threading.settrace(entered)
