"""Who may use the endpoint over HTTP: Host, Origin, media types, size of the head.

A page in a browser can reach a server on the same machine under a name that it makes the browser
resolve to it. The Host that such a page sends is its own name, so only known names are accepted;
its Origin is not the server's, so only known origins are. Both checks hold for both eras.

Clients repeat the same few headers in every request, so what they mean is computed once for each
set of values and looked up afterwards.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

Headers: TypeAlias = Mapping[bytes, bytes]

HEAD_BYTES = 64 * 1024
"""All header values of one request; a mirrored name or argument fits many times."""

HEAD_FIELDS = 200
"""Headers of one request."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

ANY = "*"

_SINGLE = (b"host", b"origin", b"content-type", b"content-length", b"mcp-session-id")
_KEPT, _KEPT_BYTES = 64, 1024
"""Sets of header values that are remembered, and the size of the largest."""

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORT = {"http": "80", "https": "443"}


class HttpRefusal(NamedTuple):
    """A plain-text answer that ends a request before its body is read as JSON-RPC."""

    status: int
    text: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Accepts(NamedTuple):
    """Which kinds of answer a client accepts."""

    json: bool
    stream: bool


class Admission(NamedTuple):
    """What the headers of a request allow."""

    refused: HttpRefusal | None
    """Why no request with these headers is served; None when it may go on."""

    media: HttpRefusal | Accepts
    """For a POST: which answers the client accepts, or why its body is not read."""


_NO_MEDIA = Accepts(json=False, stream=False)
_TOO_LARGE = Admission(HttpRefusal(431, "The headers are too large."), _NO_MEDIA)
_DOUBLED = Admission(HttpRefusal(400, "A header that may stand once was sent twice."), _NO_MEDIA)
_BAD_HOST = HttpRefusal(
    403, "This Host is not allowed. The server's author names it in allowed_hosts."
)
_BAD_ORIGIN = HttpRefusal(
    403, "This Origin is not allowed. The server's author names it in allowed_origins."
)

Facts: TypeAlias = tuple[bytes | None, bytes | None, bytes | None, bytes | None, bool]
"""Host, Origin, Content-Type, Accept, and whether there is a Content-Encoding."""


class AccessPolicy(dict[Facts, Admission]):
    """The checks of one endpoint: what each set of header values allows, computed when missing."""

    def __init__(
        self, *, hosts: Iterable[str] | None = None, origins: Iterable[str] | None = None
    ) -> None:
        """Allow these besides loopback hosts and origins of the same host."""
        super().__init__()
        self._names = LOOPBACK | {host.lower() for host in hosts or ()}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins or ())

    def check(self, headers: Headers, doubled: frozenset[bytes]) -> Admission:
        """Return what the headers of one request allow."""
        if len(headers) > HEAD_FIELDS or sum(map(len, headers.values())) > HEAD_BYTES:
            return _TOO_LARGE
        if doubled and any(name in doubled for name in _SINGLE):
            return _DOUBLED
        get = headers.get
        return self[
            get(b"host"),
            get(b"origin"),
            get(b"content-type"),
            get(b"accept"),
            b"content-encoding" in headers,
        ]

    def __missing__(self, facts: Facts) -> Admission:
        """Compute and keep; forget everything when full, because clients choose the values."""
        host, origin, content_type, accept, encoded = facts
        refused = None
        if host is None or not self._host_allowed(host):
            refused = _BAD_HOST
        elif origin is not None and not self._origin_allowed(origin, host):
            refused = _BAD_ORIGIN
        admission = Admission(refused, _media(content_type, accept, encoded))
        if sum(len(value) for value in facts[:4] if value is not None) <= _KEPT_BYTES:
            if len(self) >= _KEPT:
                self.clear()
            self[facts] = admission
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


def _media(
    content_type: bytes | None, accept: bytes | None, encoded: bool
) -> HttpRefusal | Accepts:
    if encoded:
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
