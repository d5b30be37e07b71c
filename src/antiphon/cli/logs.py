"""The log of a command that serves: where it goes, how much of it, and in which form."""

import json
import logging
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from antiphon.errors import AntiphonError


class LogFormat(StrEnum):
    """How lines of the log are written."""

    TEXT = "text"
    JSON = "json"


VERBOSE = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Log a line for each HTTP request; -vv also logs what the server itself does.",
    ),
]
LOG_FORMAT = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        show_default=False,
        help="Write the log as text (default) or as one JSON object per line.",
    ),
]


class LogOptions(msgspec.Struct, frozen=True):
    """What the options of a command say about the log."""

    verbose: int = 0
    format: LogFormat | None = None

    @property
    def access(self) -> bool:
        """Whether each request is logged."""
        return self.verbose > 0


def log_to_stderr(options: LogOptions | None = None) -> None:
    """Show the log, unless the server's own module has configured logging and no option is set."""
    options = options or LogOptions()
    if logging.getLogger().handlers and options == LogOptions():
        return
    handler = logging.StreamHandler()
    handler.addFilter(_is_not_reported_otherwise)
    if options.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    level = logging.DEBUG if options.verbose > 1 else logging.INFO
    logging.getLogger("antiphon").setLevel(level)


def _is_not_reported_otherwise(record: logging.LogRecord) -> bool:
    """Leave out an error of ours that prevented the start: the command prints it, with its cure."""
    cause = record.exc_info[1] if record.exc_info else None
    return record.funcName != "_live" or not isinstance(cause, AntiphonError)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON, with the facts of its message and its `extra`."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.args, Mapping):
            line |= {key: value for key, value in record.args.items() if value != ""}
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
