"""Heads are looked up where they repeat, and parsed alike whether they are known or not."""

import gc
import random
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.transports.http.access import AccessPolicy, CheckedHeaders
from antiphon.transports.http1.exchange import HttpExchange
from antiphon.transports.http1.head import (
    CHUNKED,
    HEAD_FIELDS,
    KEPT_HEADS,
    KEPT_LINES,
    Credential,
    HeadParser,
    RequestHead,
    RequestRefused,
)
from antiphon.transports.http1.runner import serve_asgi
from antiphon.transports.http1.server import HttpServer
from tests.transports.http_serving import echo

LINES = [
    b"Host: 127.0.0.1:8000",
    b"HOST: example.org",
    b"Content-Length: 30",
    b"Content-Length: 31",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade, close",
    b"Expect: 100-continue",
    b"Expect: miracles",
    b"Accept: application/json",
    b"Authorization: Bearer first",
    b"authorization: Bearer second",
    b"Cookie: a=b",
    b"traceparent: 00-9b1f0c7c2c0e4f5ea1d3b7c95e60aa11-3d5f7a9b1c2d4e60-01",
    b"bad name: x",
    b"no colon",
]
REQUEST_LINES = [
    b"POST /mcp HTTP/1.1",
    b"POST /mcp?a=b HTTP/1.0",
    b"GET /a%20b HTTP/1.1",
    b"GET http://example.org/a HTTP/1.1",
    b"GET / HTTP/2.0",
    b"nonsense",
]


def parsed(parser: HeadParser, raw: bytes) -> Any:
    """Everything that a head says, or why it is refused."""
    try:
        head, credential = parser.parse(raw)
    except RequestRefused as refused:
        return refused.status, refused.reason
    said = {name: getattr(head, name) for name in RequestHead.__slots__}
    return {**said, "headers": fields(head, credential)}


def fields(head: RequestHead, credential: Credential | None) -> list[tuple[bytes, bytes]]:
    """All fields, in the order in which they were sent."""
    exchange = HttpExchange(Wire(), head, credential, b"", True)
    return exchange.scope()["headers"]


class Wire:
    """A connection that nothing is sent on."""

    write_paused = False
    write = print

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.host = HttpServer(serve_asgi(echo))

    async def writable(self) -> None:
        pass

    def wants_body(self) -> None:
        pass

    def over(self, exchange: HttpExchange, *, intact: bool) -> None:
        pass

    def waits(self, exchange: HttpExchange) -> None:
        pass


def reachable(start: object) -> list[object]:
    """Everything that an object holds."""
    found, waiting, seen = [], [start], {id(start)}
    while waiting:
        one = waiting.pop()
        found.append(one)
        for inner in gc.get_referents(one):
            if id(inner) not in seen and not isinstance(inner, type):
                seen.add(id(inner))
                waiting.append(inner)
    return found


def test_a_head_means_the_same_to_a_parser_that_has_seen_many():
    choose = random.Random(5)
    warm = HeadParser()
    for _ in range(5_000):
        lines = [choose.choice(REQUEST_LINES), *choose.choices(LINES, k=choose.randint(0, 5))]
        raw = b"\r\n".join(lines)
        fresh = parsed(HeadParser(), raw)
        assert parsed(warm, raw) == fresh
        assert parsed(warm, raw) == fresh


def test_fields_without_an_authorization_are_shared_by_those_who_send_one():
    parser = HeadParser()
    start, end = b"POST /mcp HTTP/1.1\r\nHost: x", b"\r\nContent-Length: 3"
    heads = [parser.parse(start + b"\r\nAuthorization: Bearer %d" % n + end) for n in range(4)]
    assert heads[-1][0].headers == ((b"host", b"x"), (b"content-length", b"3"))
    assert [dict(fields(*head))[b"authorization"] for head in heads] == [
        b"Bearer 0", b"Bearer 1", b"Bearer 2", b"Bearer 3",
    ]  # fmt: skip
    twice = start + b"\r\nAuthorization: Bearer 1\r\nAuthorization: Bearer 2" + end
    for _ in range(3):
        assert [name for name, _ in parser.parse(twice)[0].headers].count(b"authorization") == 2


def test_a_field_too_many_is_refused_whatever_is_known():
    parser = HeadParser()
    start = b"POST /mcp HTTP/1.1" + b"\r\na:" * (HEAD_FIELDS - 1)
    for more in (b"", b"\r\nAuthorization: x"):
        for _ in range(3):
            assert parser.parse(start + more)[0].length == 0
    for more in (b"\r\nb:", b"\r\nb:", b"\r\nAuthorization: x"):
        for _ in range(3):
            with pytest.raises(RequestRefused):
                parser.parse(start + b"\r\na:" + more)


CREDENTIALS = [
    b"Authorization", b"cookie", b"PROXY-authorization", b"Mcp-Session-Id", b"X-Api-Key",
    b"X-Auth-Token", b"X-Amzn-Oidc-Data", b"X-Goog-Iap-Jwt-Assertion", b"X-Forwarded-Access-Token",
    b"X-Secret", b"X-Ms-Client-Principal-Id-Token", b"X-Hub-Signature-256", b"X-Session",
    b"X-Password",
]  # fmt: skip


def test_no_credential_stays_in_a_table():
    parser = HeadParser()
    start = b"POST /mcp HTTP/1.1\r\nHost: x"
    policy = AccessPolicy()
    for name in CREDENTIALS:
        for more in (b"", b"\r\nAuthorization: open-sesame"):
            for _ in range(3):
                head = parser.parse(start + b"\r\n" + name + b": open-sesame" + more)
                assert (name.lower(), b"open-sesame") in fields(*head)
                assert policy[head[0].headers].doubled == policy[tuple(fields(*head))].doubled
    for target in (b"/mcp?key=open-sesame", b"http://x/mcp?open-sesame"):
        for _ in range(3):
            head = parser.parse(b"POST " + target + b" HTTP/1.1\r\nHost: x")
            assert b"sesame" in head[0].query
    del head
    for table in (parser, policy):
        kept = reachable(table)
        assert not [one for one in kept if isinstance(one, bytes) and b"sesame" in one]


def test_lines_that_differ_in_every_request_fill_no_table():
    parser = HeadParser()
    start = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 30"
    for number in range(3 * KEPT_LINES):
        parser.parse(start + b"\r\ntraceparent: 00-%032x-%016x-01" % (number, number))
    lines = [one for one in reachable(parser) if isinstance(one, bytes) and b"traceparent:" in one]
    assert len(lines) <= KEPT_LINES
    assert not [one for one in lines if b"POST" in one]
    for number in range(3 * KEPT_HEADS):
        head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: %d" % number
        for _ in range(2):
            assert parser.parse(head)[0].length == number
    kept = [one for one in reachable(parser) if isinstance(one, RequestHead)]
    assert len(kept) <= KEPT_HEADS


# --- against a reader without tables ------------------------------------------------------------


class Meaning(NamedTuple):
    """What a head says."""

    method: str
    path: str
    query: bytes
    minor: int
    length: int
    keep_alive: bool
    expects_continue: bool
    headers: list[tuple[bytes, bytes]]


TCHAR = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]"


def by_the_book(raw: bytes) -> Meaning | None:
    """Read a head as RFC 9112 says, line by line, without memory; None where it is refused."""
    first, *lines = raw.split(b"\r\n")
    start = re.fullmatch(rb"(%b{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])" % TCHAR, first)
    if start is None or b"#" in start[2] or len(lines) > HEAD_FIELDS:
        return None
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        field = re.fullmatch(rb"(%b+):[ \t]*(.*?)[ \t]*" % TCHAR, line, re.DOTALL)
        if field is None or re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", field[2]):
            return None
        headers.append((field[1].lower(), field[2]))
    values = {name: [value for one, value in headers if one == name] for name in dict(headers)}
    if any(len(values.get(name, ())) > 1 for name in (b"host", b"content-length")):
        return None
    if any(len(values.get(name, ())) > 1 for name in (b"transfer-encoding", b"expect")):
        return None
    target, minor = start[2], int(start[3])
    if not target.startswith(b"/") and (start[1], target) != (b"OPTIONS", b"*"):
        absolute = re.fullmatch(rb"(?i:https?)://([^/?#]+)(.*)", target)
        host = values.get(b"host", [b""])[0]
        if absolute is None or absolute[1].lower() != host.lower():
            return None
        target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    length = 0
    if b"transfer-encoding" in values:
        coding = values[b"transfer-encoding"][0].lower()
        if coding != b"chunked" or minor == 0 or b"content-length" in values:
            return None
        length = CHUNKED
    elif b"content-length" in values:
        digits = values[b"content-length"][0]
        if re.fullmatch(rb"[0-9]{1,18}", digits) is None:
            return None
        length = int(digits)
    expected = values.get(b"expect", [b""])[0].lower() if minor else b""
    if expected not in (b"", b"100-continue") or (minor and values.get(b"expect") == [b""]):
        return None
    options = b",".join(values.get(b"connection", ())).lower().split(b",")
    path, _, query = target.partition(b"?")
    return Meaning(
        start[1].decode(),
        unquote(path.decode()),
        query,
        minor,
        length,
        minor == 1 and b"close" not in [option.strip() for option in options],
        expected == b"100-continue",
        headers,
    )


def meaning(parser: HeadParser, raw: bytes) -> Meaning | None:
    try:
        head, credential = parser.parse(raw)
    except RequestRefused:
        return None
    said = {name: getattr(head, name) for name in Meaning._fields}
    return Meaning(**{**said, "headers": fields(head, credential)})


NAMES = [
    b"Host", b"host", b"Content-Length", b"CONTENT-LENGTH", b"Transfer-Encoding", b"Connection",
    b"Expect", b"Authorization", b"authorization", b"AUTHORIZATION", b"Proxy-Authorization",
    b"Cookie", b"Mcp-Session-Id", b"traceparent", b"X-Request-Id", b"X-Api-Key", b"Accept",
    b"Content-Type", b"Origin", b"Mcp-Name", b"Authorization ", b" Authorization", b"",
    b"X-Authorization", "Ä".encode(), b"X\0",
]  # fmt: skip
VALUES = [
    b"", b"127.0.0.1", b"example.org", b"0", b"5", b"+5", b"5, 5", b"0x5", b"00005", b"9" * 18,
    b"9" * 19, b"18446744073709551621", b"chunked", b"Chunked", b"gzip, chunked", b"chunked\x0b",
    b"close", b"keep-alive", b"x, CLOSE", b"100-continue", b"Bearer a", b"Bearer b", b"a" * 300,
    b"application/json", b"null", b"\xff\x80", b"\xa05", b"5\0", b"5\x7f", b"a\rb", b"a\nb",
    b"a\r", b"a\n", b"tools/call", b"b\r\n folded", b"b\r\n X-A: b", b"b\r\nContent-Length: 7",
]  # fmt: skip
COLONS = st.sampled_from([b": ", b": ", b": ", b":", b":\t", b" : ", b"\t:", b":  \t", b""])
FIELDS = st.one_of(
    st.builds(
        lambda name, colon, value, end: name + colon + value + end,
        st.sampled_from(NAMES),
        COLONS,
        st.sampled_from(VALUES),
        st.sampled_from([b"", b"", b"", b" ", b"\t"]),
    ),
    st.sampled_from(LINES),
    st.binary(max_size=12),
)
STARTS = st.sampled_from(
    [
        *REQUEST_LINES, b"POST /mcp HTTP/1.1", b"POST /mcp HTTP/1.1", b"POST /mcp HTTP/1.0",
        b"POST http://127.0.0.1/mcp HTTP/1.1", b"OPTIONS * HTTP/1.1", b"POST  /mcp HTTP/1.1",
        b"POST /mcp?key=open HTTP/1.1", b"POST /mcp#a HTTP/1.1", b"POST /mcp HTTP/1.1\r",
    ]
)  # fmt: skip
HEADS = st.builds(
    lambda start, fields, end: end.join([start, *fields]),
    STARTS,
    st.lists(FIELDS, max_size=6),
    st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n"]),
)
ORDINARY = st.builds(
    lambda fields: b"\r\n".join([b"POST /mcp HTTP/1.1", *fields]),
    st.lists(
        st.sampled_from([b"Host: 127.0.0.1", b"Accept: */*", b"Connection: close", b"X-A: b"]),
        unique=True,
    ),
)
CREDENTIAL_LINES = st.builds(
    lambda name, colon, value: name + colon + value,
    st.sampled_from([b"Authorization", b"authorization", b"AUTHORIZATION"]),
    COLONS,
    st.sampled_from(VALUES),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ORDINARY | HEADS, min_size=1, max_size=4),
    st.lists(CREDENTIAL_LINES | FIELDS, min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_a_head_means_what_the_standard_says_however_it_is_looked_up(heads, more, place):
    """The short ways through the tables and a reader without any agree, or both refuse."""
    warm = HeadParser()
    for _ in range(3):  # a line is kept when it is first seen, a head when all its lines are known
        for raw in heads:
            assert meaning(warm, raw) == by_the_book(raw), raw
    for raw in heads:
        lines = raw.split(b"\r\n")
        for line in more:
            at = 1 + place % len(lines)
            changed = b"\r\n".join([*lines[:at], line, *lines[at:]])
            assert meaning(warm, changed) == by_the_book(changed), changed


def decided(checked: CheckedHeaders) -> CheckedHeaders:
    """Everything that was found out of some headers; credentials decide nothing."""
    headers = dict(checked.headers)
    headers.pop(b"authorization", None)
    return msgspec.structs.replace(checked, headers=headers)


@settings(max_examples=100, deadline=None)
@given(st.lists(ORDINARY | HEADS, min_size=1, max_size=6))
def test_who_may_come_in_is_decided_alike_however_a_head_is_looked_up(heads):
    parser, policy = HeadParser(), AccessPolicy()
    for _ in range(3):
        for raw in heads:
            try:
                head, credential = parser.parse(raw)
            except RequestRefused:
                continue
            fresh = AccessPolicy()[tuple(fields(head, credential))]
            for pairs in (head.headers, tuple(fields(head, credential))):
                assert decided(policy[pairs]) == decided(fresh)
