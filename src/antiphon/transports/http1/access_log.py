"""One line in the log for each HTTP request: what was asked, how it was answered, how long it took.

No line holds what a caller sent: of a message only its method and the name of a tool or prompt. The
query is left out, and so is every part of a path that may be a secret.
"""

import logging
import re
import time
from collections.abc import Callable

import msgspec

from antiphon.protocol.methods import METHODS
from antiphon.protocol.text import safe_line
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.http1.runner import ServeExchange

_log = logging.getLogger("antiphon.access")

_NAME = 64
"""Characters that are logged of a method or a name."""

_PATH = 200
_RANDOM = re.compile(r"[\w-]{16,}")
_NAMED = frozenset(name for name, method in METHODS.items() if method.target == "name")


class _LoggedParams(msgspec.Struct):
    name: object = ""


class _LoggedMessage(msgspec.Struct):
    method: str = ""
    params: _LoggedParams = msgspec.field(default_factory=_LoggedParams)


_decode = msgspec.json.Decoder(_LoggedMessage).decode


def log_requests(
    serve: ServeExchange, clock: Callable[[], float] = time.perf_counter
) -> ServeExchange:
    """Return what serves a request as `serve` does, and logs it when it has been answered."""

    async def serve_logged(exchange: HttpExchange) -> None:
        began, message = clock(), _read(exchange.whole_body())
        failed = True
        try:
            await serve(exchange)
            failed = False
        finally:
            _write(exchange, message, (clock() - began) * 1000, failed=failed)

    return serve_logged


def _read(body: bytes | None) -> _LoggedMessage:
    try:
        return _decode(body) if body else _LoggedMessage()
    except (msgspec.DecodeError, RecursionError):
        return _LoggedMessage()


def _write(exchange: HttpExchange, message: _LoggedMessage, taken: float, *, failed: bool) -> None:
    head = exchange.head
    status = exchange.status or (500 if failed and not exchange.disconnected else 499)
    method, name = safe_line(message.method, _NAME), ""
    if message.method in _NAMED and isinstance(message.params.name, str):
        name = safe_line(message.params.name, _NAME)
    facts = {
        "http_method": head.method,
        "path": safe_line(_RANDOM.sub("…", head.path), _PATH),
        "status": status,
        "duration_ms": round(taken, 1),
        "method": method,
        "target": name,
    }
    _log.info(_LINES[bool(method), bool(name)], facts)


_LINE = "%(http_method)s %(path)s %(status)d %(duration_ms).1f ms"
_LINES = {
    (False, False): _LINE,
    (True, False): f"{_LINE} %(method)s",
    (True, True): f"{_LINE} %(method)s %(target)s",
}
"""How a request is logged, by whether its message has a method and a name."""
