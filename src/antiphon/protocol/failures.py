"""How failures are logged: an unexpected exception once, refused requests by their number.

The text of an exception often repeats what was being worked on (`int("...")` does), and that may be
an answer of a person. Where the values of the call are known, the log has the text without them;
elsewhere it has types, files and lines. With `expose_errors` the whole traceback is logged. A line
that is due with every refused request is written now and then.
"""

import linecache
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from traceback import walk_tb
from typing import cast

from antiphon.protocol.private_values import PrivateValues
from antiphon.protocol.text import safe

_CHAIN = 8
"""Exceptions of one chain that are described; the rest is counted."""

_PLACES = 40
"""Places of one exception that are described: the last ones."""

EVERY = 10.0
"""Seconds between two lines of the same cause."""

_CAUSES = 64
"""Different causes that are remembered."""


_TEXT = 2_000
"""Characters of the text of one exception."""

_NOTES = 8


def log_failure(
    log: logging.Logger,
    error: BaseException,
    message: str,
    *args: object,
    private: PrivateValues | None = None,
    expose: bool = False,
) -> None:
    """Log an unexpected exception.

    Args:
        log: The logger.
        error: The exception.
        message: What has failed, as for `logging`.
        *args: What the message names.
        private: What is removed from the texts of the exception; without it they are left out.
        expose: Log the traceback as Python writes it.
    """
    if expose:
        log.error(message, *args, exc_info=error)
    else:
        log.error("%s: %s", message % args, failure_text(error, private))


def failure_text(error: BaseException, private: PrivateValues | None = None) -> str:
    """Describe an exception and those that led to it: types, places, and texts without values."""
    chain = list(_chain(error))
    lines = [line for one, joint in chain[:_CHAIN] for line in _described(one, joint, private)]
    if len(chain) > _CHAIN:
        lines.append(f"and {len(chain) - _CHAIN} more exceptions")
    return "\n".join(lines)


def _described(error: BaseException, joint: str, private: PrivateValues | None) -> Iterator[str]:
    kind = type(error)
    name = f"{joint}{kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
    text = "" if private is None else _text(error, private)
    yield f"{name}: {text}" if text else name
    places = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    for code, line in places[-_PLACES:]:
        yield f'  File "{code.co_filename}", line {line}, in {code.co_name}'
        source = linecache.getline(code.co_filename, line or 0).strip()
        if source:
            yield f"    {source}"


def _text(error: BaseException, private: PrivateValues) -> str:
    """Return the text of an exception and its notes without the values, later lines indented."""
    try:
        notes: Iterable[object] = vars(error).get("__notes__", ())
        text = "\n".join([str(error), *map(str, islice(notes, _NOTES))])
    except Exception:  # noqa: BLE001 - an exception of an author may have a text that fails
        return "(its text cannot be read)"
    return private.hide(safe(text, _TEXT)).replace("\n", "\n  | ")


def _chain(error: BaseException, joint: str = "") -> Iterator[tuple[BaseException, str]]:
    """Walk from an exception to those that it holds or came from, each once."""
    seen: set[int] = set()
    stack = [(error, joint)]
    while stack:
        one, joint = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one, joint
        if one.__cause__ is not None:
            stack.append((one.__cause__, "caused by "))
        elif one.__context__ is not None and not one.__suppress_context__:
            stack.append((one.__context__, "raised while handling "))
        if isinstance(one, BaseExceptionGroup):
            inner = cast("BaseExceptionGroup[BaseException]", one).exceptions
            stack.extend((held, "which holds ") for held in reversed(inner))


class OccasionalLog:
    """Writes one line for many requests that were refused for the same cause."""

    __slots__ = ("_clock", "_log", "_seen")

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        """Write to a logger, at a rate that the clock bounds."""
        self._log = log
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}
        """When each cause was last written, and how many requests it has refused since."""

    def warning(self, cause: str) -> None:
        """Note a refused request; write a warning if none of this cause was written lately."""
        self._note(logging.WARNING, cause)

    def error(self, cause: str) -> None:
        """Note a refused request; write an error if none of this cause was written lately."""
        self._note(logging.ERROR, cause)

    def _note(self, level: int, cause: str) -> None:
        now = self._clock()
        written, count = self._seen.get(cause, (float("-inf"), 0))
        count += 1
        if now - written < EVERY:
            self._seen[cause] = (written, count)
            return
        if len(self._seen) >= _CAUSES:
            self._seen.clear()
        self._seen[cause] = (now, 0)
        refused = "1 request" if count == 1 else f"{count} requests"
        self._log.log(level, "%s (%s refused)", cause, refused)
