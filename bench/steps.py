"""Steps of the interpreter: how many instructions of bytecode a request takes.

Not time, but the same number on every machine and in every run, so that a change can be judged
while the machine is busy, and a test can hold it. In our servers nearly all time is bytecode.
"""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any


class Steps:
    """Counts the instructions of everything that is run inside it, by file and function."""

    def __init__(self) -> None:
        self.by_function: Counter[tuple[str, str]] = Counter()

    @property
    def total(self) -> int:
        """All of them."""
        return self.by_function.total()

    async def of(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run something and count."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return await work()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            code = frame.f_code
            self.by_function[code.co_filename, code.co_name] += 1
        return self._trace
