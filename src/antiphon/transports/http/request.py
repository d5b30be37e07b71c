"""One HTTP request: its path, its body within a size and a time, and who is calling.

Nobody is authenticated here: what a middleware found out is read. Three sources of the caller, the
first that is there: the author's function, `scope["user"]` as Starlette's authentication middleware
and the official SDK's bearer check leave it, nobody. A source that is there and fails refuses the
request: a caller is never taken for anonymous by accident.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import CoroutineType
from typing import Any, TypeAlias

import msgspec

from antiphon.core.request import Principal
from antiphon.transports.http.access import Headers, HttpRefusal
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.stepping import resume
from antiphon.wire.envelope import RequestHeaders

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
PrincipalOf: TypeAlias = Callable[[Mapping[str, Any]], "Principal | Awaitable[Principal]"]

BODY_SECONDS = 30.0
"""How long a client may take to send a body that its head announced."""

ANONYMOUS = Principal(transport="http")

_COROUTINE: Any = CoroutineType
_LATE = HttpRefusal(408, "The body did not come in time.")

_log = logging.getLogger("antiphon.http")


class HttpRequest(msgspec.Struct, frozen=True):
    """A request whose head has been accepted."""

    scope: Scope
    receive: Receive
    send: Send
    headers: RequestHeaders
    principal: Principal
    maybe_legacy: bool
    """Whether the version header is absent or names a revision of the earlier era."""


def relative_path(scope: Mapping[str, Any]) -> str:
    """Return the path below the place where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


async def refuse(send: Send, refusal: HttpRefusal) -> None:
    """Answer in plain text."""
    body = refusal.text.encode()
    headers = [(b"content-length", b"%d" % len(body)), *refusal.headers]
    if body:
        headers.append((b"content-type", b"text/plain; charset=utf-8"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- the body ---------------------------------------------------------------------------------


async def read_body(
    headers: Headers, receive: Receive, limit: int, whole: HttpExchange | None = None
) -> bytes | HttpRefusal | None:
    """Read the body; None when the client disconnected before it was complete."""
    complete = whole.take_whole() if whole is not None else None
    if complete is not None:
        return complete if len(complete) <= limit else _too_large(limit)
    announced = headers.get(b"content-length")
    if announced is not None and (
        not announced.isdigit() or len(announced) > 18 or int(announced) > limit
    ):
        return _too_large(limit)
    try:
        waiting: Any = receive()
        if type(waiting) is _COROUTINE:
            # Mostly the body is there already, and no time limit is needed.
            try:
                yielded = waiting.send(None)
            except StopIteration as end:
                first = end.value
            else:
                first = await _within(resume(waiting, yielded))
        else:
            first = await _within(waiting)
        if first["type"] != "http.request":
            return None
        body: bytes = first.get("body", b"")
        if first.get("more_body", False):
            return await _rest(body, receive, limit)
    except TimeoutError:
        return _LATE
    return body if len(body) <= limit else _too_large(limit)


async def _within(waiting: Awaitable[Message]) -> Message:
    async with asyncio.timeout(BODY_SECONDS):
        return await waiting


async def _rest(first: bytes, receive: Receive, limit: int) -> bytes | HttpRefusal | None:
    parts, size, more = [first], len(first), True
    async with asyncio.timeout(BODY_SECONDS):
        while more and size <= limit:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
    return b"".join(parts) if size <= limit else _too_large(limit)


def _too_large(limit: int) -> HttpRefusal:
    return HttpRefusal(413, f"The body is larger than {limit} bytes.")


# --- who is calling ---------------------------------------------------------------------------


async def identify(
    scope: Mapping[str, Any], principal_of: PrincipalOf | None
) -> Principal | HttpRefusal:
    """Return who is calling, or a refusal when a source is there and does not tell."""
    if principal_of is not None:
        return await _ask_author(principal_of, scope)
    user = scope.get("user")
    return ANONYMOUS if user is None else _read_user(user)


async def _ask_author(
    principal_of: PrincipalOf, scope: Mapping[str, Any]
) -> Principal | HttpRefusal:
    """Call the author's function. `PermissionError` is 403; everything else it raises is 401."""
    try:
        principal = principal_of(scope)
        if inspect.isawaitable(principal):
            principal = await principal
    except PermissionError:
        return _FORBIDDEN
    except Exception:  # noqa: BLE001 - whatever it is, it must not pass for anonymous
        _log.warning("principal= raised; the request is refused", exc_info=True)
        return _UNKNOWN
    # What the function returns need not be what its annotation says.
    if not isinstance(principal, Principal):  # pyright: ignore[reportUnnecessaryIsInstance]
        _log.warning(
            "principal= gave %s instead of a Principal; the request is refused. Return "
            "Principal() for callers that may stay anonymous",
            type(principal).__name__,
        )
        return _UNKNOWN
    return principal


def _read_user(user: object) -> Principal | HttpRefusal:
    """Read an authenticated user of the scope."""
    authenticated = getattr(user, "is_authenticated", None)
    if authenticated is False:
        return ANONYMOUS
    principal = _of_token(user) or _of_name(user) if authenticated is True else None
    if principal is None or principal.anonymous:
        _log.warning(
            'scope["user"] is a %s without a name that could be bound; the request is refused. '
            "Pass principal= to say who it is",
            type(user).__name__,
        )
        return _UNKNOWN
    return principal


def _of_token(user: object) -> Principal | None:
    """Read the same three parts that the official SDK compares, so that both agree."""
    token = getattr(user, "access_token", None)
    if token is None:
        return None
    claims: Mapping[str, Any] = getattr(token, "claims", None) or {}
    subject = getattr(token, "subject", None) or claims.get("sub")
    return Principal(
        issuer=_text(claims.get("iss")),
        subject=_text(subject),
        client_id=_text(getattr(token, "client_id", None)),
    )


def _of_name(user: object) -> Principal | None:
    for attribute in ("identity", "username"):
        try:
            name = getattr(user, attribute, None)
        except NotImplementedError:  # what Starlette's base class does for each of them
            continue
        if name:
            return Principal(subject=_text(name))
    return None


def _text(value: object) -> str:
    return "" if value is None else str(value)


_UNKNOWN = HttpRefusal(401, "Who is calling?", ((b"www-authenticate", b"Bearer"),))
_FORBIDDEN = HttpRefusal(403, "This caller may not use this server.")
