"""What the official SDK logs while it serves our sessions, made fit for our log.

Its tracebacks may repeat what a client sent, and it writes one for every request that meets the end
of its session, which any client can bring about as often as it likes.
"""

import logging
from typing import cast

import anyio

from antiphon.protocol.failures import failure_text

_LOGGERS = ("mcp.server.streamable_http", "mcp.server.runner", "mcp.shared.jsonrpc_dispatcher")
_ENDED = (anyio.ClosedResourceError, anyio.BrokenResourceError)


class SdkLogFilter(logging.Filter):
    """Drops what only says that a session has ended; leaves the text of exceptions out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about one record, and change it."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        if _only_ended(error):
            return False
        record.msg, record.args = f"{record.getMessage()}: {failure_text(error)}", None
        record.exc_info = record.exc_text = None
        return True

    def install(self) -> None:
        """Begin to filter."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        """Stop filtering. Idempotent."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)


def _only_ended(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return all(map(_only_ended, inner))
    return isinstance(error, _ENDED)
