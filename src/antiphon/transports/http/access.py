"""Who may use the endpoint over HTTP: Host, Origin, media types, size of the head.

A page in a browser can reach a server on the same machine under a name that it makes the browser
resolve to it. The Host that such a page sends is its own name, so only known names are accepted;
its Origin is not the server's, so only known origins are. Both checks hold for both eras.

Clients repeat the same few headers in every request, so what they mean is computed once for each
set of values and looked up afterwards. Headers that differ in every request, such as a trace, a
credential or a number that a proxy adds, decide nothing here: a request that carries some is looked
up by those that decide.
"""

import re
import sys
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

import msgspec

from antiphon.protocol.headers import METHOD, NAME, VERSION, Mirrors, read_mirrors
from antiphon.protocol.request import LEGACY
from antiphon.transports.http1.head import may_be_credential

HEAD_BYTES = 64 * 1024
"""All header names and values of one request; a mirrored name or argument fits many times."""

HEAD_FIELDS = 200
"""Headers of one request."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

ANY = "*"

_SESSION = b"mcp-session-id"
_SINGLE = (b"host", b"origin", b"content-type", b"content-length", b"authorization", _SESSION)
_LEGACY_VERSIONS = frozenset({*(version.encode() for version in LEGACY), b""})
_KEPT, _KEPT_BYTES = 256, 1024
"""Sets of header values that are remembered, and the size of the largest."""

_KEPT_HEADS = 512
_CREDENTIALS = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
"""Not looked at here, and kept nowhere."""

_AUTHORIZATION = b"authorization"
_LEFT_BYTES = HEAD_BYTES - _KEPT_BYTES - len(_AUTHORIZATION)
"""Room for a credential beside the largest set of headers that is remembered."""

_OF_ONE_REQUEST = frozenset({b"traceparent", b"tracestate"})
"""What makes a set of headers one that no second request repeats."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORT = {"http": "80", "https": "443"}


class HttpRefusal(NamedTuple):
    """A plain-text answer that ends a request before its body is read as JSON-RPC."""

    status: int
    text: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Accepts(msgspec.Struct, frozen=True):
    """Which kinds of answer a client accepts."""

    json: bool
    stream: bool


class Admission(NamedTuple):
    """What the headers of a request allow, and what they mirror of its body."""

    refused: HttpRefusal | None
    """Why no request with these headers is served; None when it may go on."""

    media: HttpRefusal | Accepts
    """For a POST: which answers the client accepts, or why its body is not read."""

    maybe_legacy: bool
    """Whether the version header is absent or names a revision of the earlier era."""

    mirrors: Mirrors
    accepts: Accepts | None = None
    """Which answers the client accepts, when nothing speaks against reading its body."""


class CheckedHeaders(msgspec.Struct, frozen=True, gc=False):
    """The headers of one request and what they allow. Requests may share one."""

    admission: Admission
    headers: dict[bytes, bytes]
    """All of them but credentials."""

    doubled: frozenset[bytes]
    """Names that were sent more than once."""

    accepts: Accepts | None
    """Which answers the client accepts, when nothing speaks against reading its body."""

    mirrors: Mirrors
    """What the headers that mirror the body say; nothing where one of them was sent twice."""

    body_bytes: int
    """How long the body is by its head; 0 when it is not said."""


_NO_MEDIA = Accepts(json=False, stream=False)
_NO_MIRRORS = Mirrors(None, None, None)
_TOO_LARGE = Admission(
    HttpRefusal(431, "The headers are too large."), _NO_MEDIA, False, _NO_MIRRORS
)
_DOUBLED = Admission(
    HttpRefusal(400, "A header that may stand once was sent twice."), _NO_MEDIA, False, _NO_MIRRORS
)
_BAD_HOST = HttpRefusal(
    403,
    "This Host is not allowed. Whoever runs the server allows it with `--allow-host`, or with "
    "allowed_hosts= in server.asgi().",
)
_BAD_ORIGIN = HttpRefusal(
    403,
    "This Origin is not allowed. Whoever runs the server allows it with `--allow-origin`, or with "
    "allowed_origins= in server.asgi().",
)

Pairs: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Names and values of the headers of one request."""

Facts: TypeAlias = tuple[bytes | None, ...]
"""Values of the headers that decide, in the order of their names; None for one that is absent."""

_FACTS = (
    b"host", b"origin", b"content-type", b"accept", b"content-encoding", VERSION, METHOD, NAME,
)  # fmt: skip

_NONE: frozenset[bytes] = frozenset()


class AccessPolicy(dict[Pairs, CheckedHeaders]):
    """The checks of one endpoint: what the headers of a request allow, computed when missing."""

    def __init__(
        self, *, hosts: Iterable[str] | None = None, origins: Iterable[str] | None = None
    ) -> None:
        """Allow these besides loopback hosts and origins of the same host."""
        super().__init__()
        self._names = LOOPBACK | {host.lower() for host in hosts or ()}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins or ())
        self._admissions: dict[Facts, Admission] = {}

    def __missing__(self, pairs: Pairs) -> CheckedHeaders:
        """Check headers that are not known; forget all when full, as clients choose the values."""
        headers = dict(pairs)
        doubled = _NONE if len(headers) == len(pairs) else doubled_names(pairs)
        shared = pairs
        if _AUTHORIZATION in headers and not doubled and _OF_ONE_REQUEST.isdisjoint(headers):
            # It decides nothing here: those who send different ones share what the rest means.
            shared = _without(pairs, headers[_AUTHORIZATION])
            known = self.get(shared)
            if known is not None and len(headers[_AUTHORIZATION]) <= _LEFT_BYTES:
                return known
        return self._check_new(pairs, headers, doubled, shared)

    def _check_new(
        self, pairs: Pairs, headers: dict[bytes, bytes], doubled: frozenset[bytes], shared: Pairs
    ) -> CheckedHeaders:
        size = sum(map(len, chain.from_iterable(pairs)))
        if len(pairs) > HEAD_FIELDS or size > HEAD_BYTES:
            return _checked(_TOO_LARGE, headers, doubled)
        if doubled and not doubled.isdisjoint(_SINGLE):
            return _checked(_DOUBLED, headers, doubled)
        head = _checked(self._admit(tuple(map(headers.get, _FACTS))), headers, doubled)
        if shared is not pairs:
            size -= len(_AUTHORIZATION) + len(headers.pop(_AUTHORIZATION))
        if not _CREDENTIALS.isdisjoint(headers):
            for name in _CREDENTIALS:
                headers.pop(name, None)
        elif (
            size <= _KEPT_BYTES
            and len(pairs) < HEAD_FIELDS
            and _OF_ONE_REQUEST.isdisjoint(headers)
            and not any(map(may_be_credential, headers))
        ):
            if len(self) >= _KEPT_HEADS:
                self.clear()
            self[shared] = head
        return head

    def _admit(self, facts: Facts) -> Admission:
        """Return what the headers allow that requests of one client have in common."""
        known = self._admissions.get(facts)
        if known is not None:
            return known
        host, origin, content_type, accept, encoding, version, method, name = facts
        refused = None
        if host is None or not self._host_allowed(host):
            refused = _BAD_HOST
        elif origin is not None and not self._origin_allowed(origin, host):
            refused = _BAD_ORIGIN
        media = _media(content_type, accept, encoding)
        admission = Admission(
            refused,
            media,
            version is None or version.strip() in _LEGACY_VERSIONS,
            read_mirrors(version, method, name),
            media if refused is None and isinstance(media, Accepts) else None,
        )
        if sum(len(value) for value in facts if value is not None) <= _KEPT_BYTES:
            if len(self._admissions) >= _KEPT:
                self._admissions.clear()
            self._admissions[facts] = admission
        return admission

    def _host_allowed(self, value: bytes) -> bool:
        if ANY in self._names:
            return True
        authority = _AUTHORITY.fullmatch(value.decode("latin-1").lower())
        return authority is not None and bool(self._names & {authority[0], authority[1]})

    def _origin_allowed(self, value: bytes, host: bytes) -> bool:
        text = value.decode("latin-1").lower()
        if ANY in self._origins or text in self._origins:
            return True
        origin = _ORIGIN.fullmatch(text)
        authority = _AUTHORITY.fullmatch(host.decode("latin-1").lower())
        if origin is None or authority is None:
            return False
        default = _DEFAULT_PORT[origin[1]]
        same_port = (origin[3] or default) == (authority[2] or default)
        return origin[2] == authority[1] and same_port


def _checked(
    admission: Admission, headers: dict[bytes, bytes], doubled: frozenset[bytes]
) -> CheckedHeaders:
    announced = headers.get(b"content-length", b"0")
    return CheckedHeaders(
        admission,
        headers,
        doubled,
        admission.accepts,
        _NO_MIRRORS if doubled else admission.mirrors,
        int(announced) if announced.isdigit() and len(announced) <= 18 else sys.maxsize,
    )


def _without(pairs: Pairs, credential: bytes) -> Pairs:
    rest = list(pairs)
    rest.remove((_AUTHORIZATION, credential))
    return tuple(rest)


def _media(
    content_type: bytes | None, accept: bytes | None, encoding: bytes | None
) -> HttpRefusal | Accepts:
    if encoding is not None:
        return HttpRefusal(415, "Content-Encoding is not supported: send the body as it is.")
    if (content_type or b"").partition(b";")[0].strip().lower() != b"application/json":
        return HttpRefusal(415, "Content-Type must be application/json.")
    types = {
        part.partition(b";")[0].strip().lower()
        for part in (b"*/*" if accept is None else accept).split(b",")
    }
    anything = b"*/*" in types
    accepts = Accepts(
        json=anything or not types.isdisjoint({b"application/json", b"application/*"}),
        stream=anything or not types.isdisjoint({b"text/event-stream", b"text/*"}),
    )
    if not (accepts.json or accepts.stream):
        return HttpRefusal(406, "Accept must list application/json and text/event-stream.")
    return accepts


def doubled_names(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the header names that stand more than once."""
    seen: set[bytes] = set()
    twice: set[bytes] = set()
    for name, _ in headers:
        (twice if name in seen else seen).add(name)
    return frozenset(twice)


def is_old(head: CheckedHeaders) -> bool:
    """Whether a request may belong to the earlier era, by its headers."""
    return head.admission.maybe_legacy and VERSION not in head.doubled


def in_session(head: CheckedHeaders) -> bool:
    """Whether a request belongs to a session of the earlier era."""
    return is_old(head) and _SESSION in head.headers
