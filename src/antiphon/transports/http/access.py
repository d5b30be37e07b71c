"""Who may come in over HTTP: Host, Origin, media types, header size. Reads headers, no body.

A page in a browser can reach a server on the same machine, under a name it makes the browser
resolve to it. The Host such a page sends is its own name, so only known names are let in; its
Origin is not the server's, so only known origins are. Both checks hold for both eras (S7-1).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

Headers: TypeAlias = Mapping[bytes, bytes]
T = TypeVar("T")

HEAD_BYTES = 64 * 1024
"""All header values of one request; a mirrored name or argument fits many times."""

HEAD_FIELDS = 200
"""Headers of one request."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

ANY = "*"

_SINGLE = (b"host", b"origin", b"content-type", b"content-length", b"mcp-session-id")
_REMEMBERED = 64
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORT = {"http": "80", "https": "443"}


class Refusal(NamedTuple):
    """An answer that ends a request before its body counts."""

    status: int
    text: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Accepts(NamedTuple):
    """What kinds of answer a client takes."""

    json: bool
    stream: bool


class Remembered(dict[bytes, T]):
    """What a header value means, computed once; forgets everything when it grows too large."""

    def __init__(self, compute: Callable[[bytes], T]) -> None:
        """Keep results of a pure function of one header value."""
        super().__init__()
        self._compute = compute

    def __missing__(self, value: bytes) -> T:
        """Compute and keep; clients repeat themselves, and attackers must not fill memory."""
        if len(self) >= _REMEMBERED:
            self.clear()
        computed = self._compute(value)
        if len(value) <= _REMEMBERED * 4:
            self[value] = computed
        return computed


class Door:
    """The checks of one endpoint."""

    def __init__(
        self, *, hosts: Iterable[str] | None = None, origins: Iterable[str] | None = None
    ) -> None:
        """Allow these besides loopback hosts and origins of the same host."""
        self._names = LOOPBACK | {host.lower() for host in hosts or ()}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins or ())
        self._known_host: Remembered[bool] = Remembered(self._host_allowed)
        self._json: Remembered[bool] = Remembered(_is_json)
        self._accepts: Remembered[Accepts] = Remembered(_read_accept)

    def check(self, headers: Headers, doubled: frozenset[bytes]) -> Refusal | None:
        """Check what every request must fulfil, whatever its method and era."""
        if len(headers) > HEAD_FIELDS or sum(map(len, headers.values())) > HEAD_BYTES:
            return Refusal(431, "The headers are too large.")
        if doubled and any(name in doubled for name in _SINGLE):
            return Refusal(400, "A header that may stand once was sent twice.")
        host = headers.get(b"host")
        if host is None or not self._known_host[host]:
            return Refusal(
                403, "This Host is not allowed. The server's author names it in allowed_hosts."
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._origin_allowed(origin, host):
            return Refusal(
                403, "This Origin is not allowed. The server's author names it in allowed_origins."
            )
        return None

    def check_media(self, headers: Headers) -> Refusal | Accepts:
        """Check the media types of a POST, and read which answers its client takes."""
        if b"content-encoding" in headers:
            return Refusal(415, "Content-Encoding is not supported: send the body as it is.")
        if not self._json[headers.get(b"content-type", b"")]:
            return Refusal(415, "Content-Type must be application/json.")
        accepts = self._accepts[headers.get(b"accept", b"*/*")]
        if not (accepts.json or accepts.stream):
            return Refusal(406, "Accept must list application/json and text/event-stream.")
        return accepts

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


def doubled_names(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Give the header names that stand more than once."""
    seen: set[bytes] = set()
    twice: set[bytes] = set()
    for name, _ in headers:
        (twice if name in seen else seen).add(name)
    return frozenset(twice)


def relative_path(scope: Mapping[str, Any]) -> str:
    """Give the path below the place where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


def _is_json(value: bytes) -> bool:
    return value.partition(b";")[0].strip().lower() == b"application/json"


def _read_accept(value: bytes) -> Accepts:
    types = {part.partition(b";")[0].strip().lower() for part in value.split(b",")}
    anything = b"*/*" in types
    return Accepts(
        json=anything or not types.isdisjoint({b"application/json", b"application/*"}),
        stream=anything or not types.isdisjoint({b"text/event-stream", b"text/*"}),
    )
