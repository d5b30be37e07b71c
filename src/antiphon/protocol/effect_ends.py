"""How the function of an effect ended, judged by what it raised.

A wrong guess costs money in one direction only: an effect that happened and is taken for one that
did not is done again. So an exception means "nothing happened" only if it says so (`NotDone`), or
if it cannot have reached the other side: a refused connection, an unknown host, a time-out while
connecting. Everything that a network can do to a request on its way leaves its end unknown.

The exceptions of HTTP libraries are recognised by module and name over the whole MRO, so that none
of them is imported. Subclasses count as their bases, and a wrapper counts as its cause.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, cast

from antiphon.errors import ConfigError, NotDone, OutcomeUnknown, ToolError

_CHAIN = 32
"""How many exceptions of one chain are looked at."""


class EffectEnd(Enum):
    """What an exception says of an effect."""

    NOT_DONE = "nothing happened"
    REFUSED = "the author refuses: nothing is left open"
    UNKNOWN = "it may have happened"
    FAILED = "it raised an error that says nothing about this"


NOT_DONE, REFUSED = EffectEnd.NOT_DONE, EffectEnd.REFUSED
UNKNOWN, FAILED = EffectEnd.UNKNOWN, EffectEnd.FAILED

UnknownTypes = tuple[type[BaseException], ...]

_WORST_FIRST = (UNKNOWN, FAILED, REFUSED, NOT_DONE)

_SAID: tuple[tuple[type[BaseException], EffectEnd], ...] = (
    (OutcomeUnknown, UNKNOWN),
    (NotDone, NOT_DONE),
)
"""What the author says counts before anything that the exception holds."""

_BUILT_IN: tuple[tuple[type[BaseException], EffectEnd], ...] = (
    (ConnectionRefusedError, NOT_DONE),
    (socket.gaierror, NOT_DONE),
    (socket.herror, NOT_DONE),
    (ssl.SSLCertVerificationError, NOT_DONE),
    (TimeoutError, UNKNOWN),
    (ConnectionError, UNKNOWN),
    (ssl.SSLError, UNKNOWN),
    (EOFError, UNKNOWN),
    (asyncio.CancelledError, UNKNOWN),
)
"""The first that fits counts."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONNECTING = _words("ConnectError ConnectTimeout PoolTimeout ProxyError")

_NOT_SENT: Mapping[str, frozenset[str]] = {
    "httpx": _CONNECTING,
    "httpcore": _CONNECTING,
    "requests": frozenset(["ConnectTimeout"]),
    "urllib3": _words(
        "NewConnectionError NameResolutionError ConnectTimeoutError EmptyPoolError ClosedPoolError"
    ),
    "aiohttp": _words(
        "ClientConnectorError ClientConnectorCertificateError ConnectionTimeoutError"
    ),
    "botocore": _words(
        "ConnectTimeoutError EndpointConnectionError ProxyConnectionError NoCredentialsError "
        "PartialCredentialsError CredentialRetrievalError NoRegionError "
        "ParamValidationError"
    ),
}
"""Exceptions before a request can have left, by library. A wrong URL is not one of them: it may be
where the reply to a request has sent the client next."""

_LOST: Mapping[str, frozenset[str]] = {
    "httpx": _words("TransportError HTTPError StreamError"),
    "httpcore": _words("TimeoutException NetworkError ProtocolError ReadError WriteError"),
    "requests": frozenset(["RequestException"]),
    "urllib3": frozenset(["HTTPError"]),
    "aiohttp": _words("ClientError ServerDisconnectedError WebSocketError"),
    "botocore": _words("HTTPClientError ConnectionError"),
    "grpclib": _words("StreamTerminatedError ProtocolError"),
    "http": frozenset(["HTTPException"]),
    "urllib": frozenset(["ContentTooShortError"]),
    "anyio": _words("BrokenResourceError ClosedResourceError EndOfStream"),
    "h2": frozenset(["ProtocolError"]),
    "h11": frozenset(["ProtocolError"]),
    "websockets": frozenset(["ConnectionClosed"]),
    "smtplib": frozenset(["SMTPServerDisconnected"]),
    "concurrent": frozenset(["CancelledError"]),
    "subprocess": frozenset(["TimeoutExpired"]),
}
"""Exceptions of a request that may have arrived, by library: bases of all but `_NOT_SENT`."""

_SAME_LIBRARY = {"httpx2": "httpx", "httpcore2": "httpcore", "aiobotocore": "botocore"}

_LOST_WORDS = ("Timeout", "TimedOut", "DeadlineExceeded", "Disconnected", "ConnectionLost")
_LOST_NAMES = _words(
    "ConnectionError APIConnectionError ConnectionResetError ConnectionClosed "
    "ConnectionClosedError ConnectionAborted RemoteDisconnected AutoReconnect"
)
"""Names that libraries without an entry here give to a lost connection or a time-out."""

_ANSWERED = frozenset(range(400, 500)) - {408, 409, 423, 425, 499}
"""Statuses by which the other side says that it has refused the request. 408 and 499 are time-outs;
409, 423 and 425 are also said while an equal request is being worked on."""

_GRPC_ANSWERED = _words(
    "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED "
    "FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED RESOURCE_EXHAUSTED"
)


def end_of(error: BaseException, unknown: UnknownTypes = ()) -> EffectEnd:
    """Say what an exception of an effect's function means.

    Args:
        error: What the function raised.
        unknown: The author's own exceptions after which the effect may have happened.
    """
    if isinstance(error, NotDone):
        return NOT_DONE
    return _judge(error, unknown, set())


def unknown_types(given: object) -> UnknownTypes:
    """Return the author's exceptions after which an effect may have happened.

    Raises:
        ConfigError: It is no exception class, and no sequence of them.
    """
    several = cast("Iterable[object]", given) if isinstance(given, list | tuple) else (given,)
    return tuple(_exception_class(kind) for kind in several)


def _exception_class(kind: object) -> type[BaseException]:
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind
    raise ConfigError(
        f"unknown_after= takes exception classes, not {kind!r}. Write "
        "unknown_after=(GatewayError,)."
    )


def worst(ends: Iterator[EffectEnd]) -> EffectEnd:
    """Return the end that rules out least: of several tries, or of a group of exceptions."""
    seen = set(ends)
    return next((end for end in _WORST_FIRST if end in seen), FAILED)


def _judge(error: BaseException, unknown: UnknownTypes, seen: set[int]) -> EffectEnd:
    seen.add(id(error))
    if isinstance(error, unknown):
        return UNKNOWN
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return worst(_judge(one, unknown, seen) for one in inner)
    own = _by_type(error)
    refused = isinstance(error, ToolError)
    if own is UNKNOWN or (own is not None and not refused):
        return own
    behind = [_judge(one, unknown, seen) for one in _behind(error, seen)]
    if UNKNOWN in behind:
        return UNKNOWN
    if refused:
        return REFUSED
    caused = error.__cause__ is not None and bool(behind) and behind[0] is NOT_DONE
    return NOT_DONE if caused else FAILED


def _behind(error: BaseException, seen: set[int]) -> list[BaseException]:
    """Return what an exception was raised from, or while handling, the explicit cause first.

    Also where `from None` hides it: the request was lost all the same.
    """
    chain = (error.__cause__, error.__context__)
    found = [one for one in chain if one is not None and id(one) not in seen]
    return found if len(seen) < _CHAIN else []


def _by_type(error: BaseException) -> EffectEnd | None:
    """Judge an exception by what it is; None if that says nothing."""
    for kind, end in _SAID:
        if isinstance(error, kind):
            return end
    names = [(_library(kind), kind.__name__) for kind in type(error).__mro__]
    for judge in (_by_status, _by_reason):
        end = judge(error, names)
        if end is not None:
            return end
    if any(name in _NOT_SENT.get(library, ()) for library, name in names):
        return NOT_DONE
    if any(name in _LOST.get(library, ()) for library, name in names):
        return UNKNOWN
    for kind, end in _BUILT_IN:
        if isinstance(error, kind):
            return end
    if any(_sounds_lost(name) for _, name in names):
        return UNKNOWN
    return None


def _library(kind: type) -> str:
    root = str(kind.__module__).partition(".")[0]
    return _SAME_LIBRARY.get(root, root)


def _sounds_lost(name: str) -> bool:
    return name in _LOST_NAMES or any(word in name for word in _LOST_WORDS)


# --- errors that carry a status or a reason ------------------------------------------------------

_Names = list[tuple[str, str]]


def _by_status(error: BaseException, names: _Names) -> EffectEnd | None:
    """Judge an error that the other side has answered with; None if it holds no status."""
    if ("grpc", "RpcError") in names or ("grpclib", "GRPCError") in names:
        return FAILED if _grpc_code(error) in _GRPC_ANSWERED else UNKNOWN
    status = _status(error)
    if status is None:
        return None
    return FAILED if status in _ANSWERED else UNKNOWN


def _grpc_code(error: Any) -> str:
    code = getattr(error, "code", None)
    try:
        found: Any = code() if callable(code) else getattr(error, "status", None)
    except Exception:  # noqa: BLE001 - a method of somebody else's class
        return ""
    return str(getattr(found, "name", ""))


def _status(error: Any) -> int | None:
    """Return the HTTP status that an exception carries, as the libraries name it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        meta = cast("Mapping[str, Any]", response).get("ResponseMetadata")
        response = None
        if isinstance(meta, Mapping):
            return _number(cast("Mapping[str, Any]", meta).get("HTTPStatusCode"))
    held = [getattr(response, name, None) for name in ("status_code", "status")]
    own = [getattr(error, name, None) for name in ("status_code", "http_status", "status")]
    if isinstance(error, OSError):  # urllib
        own.append(getattr(error, "code", None))
    return next((number for one in (*held, *own) if (number := _number(one)) is not None), None)


def _number(value: object) -> int | None:
    if isinstance(value, int) and 100 <= value <= 599:
        return value
    return None


def _by_reason(error: Any, names: _Names) -> EffectEnd | None:
    """Judge an error by the one it was made of, where a library wraps several in one type."""
    if ("requests", "ConnectionError") in names and not any(
        name in _NOT_SENT["requests"] for _, name in names
    ):
        return _reason(next(iter(error.args), None))
    if ("urllib3", "MaxRetryError") in names:
        return _reason(getattr(error, "reason", None))
    if ("urllib", "URLError") in names:
        return _reason(getattr(error, "reason", None))
    return None


def _reason(reason: object) -> EffectEnd:
    if not isinstance(reason, BaseException):
        return UNKNOWN
    return NOT_DONE if _by_type(reason) is NOT_DONE else UNKNOWN
