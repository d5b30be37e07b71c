"""Heads are looked up where they repeat, and parsed alike whether they are known or not."""

import gc
import random
from typing import Any

import pytest

from antiphon.transports.http1.head import (
    HEAD_FIELDS,
    KEPT_HEADS,
    KEPT_LINES,
    HeadParser,
    RequestHead,
    RequestRefused,
)

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
        head = parser.parse(raw)
    except RequestRefused as refused:
        return refused.status, refused.reason
    said = {name: getattr(head, name) for name in RequestHead.__slots__}
    # An Authorization may stand anywhere; it is one field that two of its kind are refused for.
    return {**said, "headers": sorted(head.headers), "framing": None, "shared": None}


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
    assert heads[-1].shared == ((b"host", b"x"), (b"content-length", b"3"))
    assert [dict(head.headers)[b"authorization"] for head in heads] == [
        b"Bearer 0", b"Bearer 1", b"Bearer 2", b"Bearer 3",
    ]  # fmt: skip
    twice = start + b"\r\nAuthorization: Bearer 1\r\nAuthorization: Bearer 2" + end
    for _ in range(3):
        assert [name for name, _ in parser.parse(twice).shared].count(b"authorization") == 2


def test_a_field_too_many_is_refused_whatever_is_known():
    parser = HeadParser()
    start = b"POST /mcp HTTP/1.1" + b"\r\na:" * (HEAD_FIELDS - 1)
    for more in (b"", b"\r\nAuthorization: x"):
        for _ in range(3):
            assert parser.parse(start + more).length == 0
    for more in (b"\r\nb:", b"\r\nb:", b"\r\nAuthorization: x"):
        for _ in range(3):
            with pytest.raises(RequestRefused):
                parser.parse(start + b"\r\na:" + more)


def test_no_credential_stays_in_a_parser():
    parser = HeadParser()
    start = b"POST /mcp HTTP/1.1\r\nHost: x"
    names = (b"Authorization", b"cookie", b"PROXY-authorization", b"Mcp-Session-Id")
    for name in names:
        for _ in range(3):
            head = parser.parse(start + b"\r\n" + name + b": open-sesame")
            assert (name.lower(), b"open-sesame") in head.headers
    del head
    assert not [one for one in reachable(parser) if isinstance(one, bytes) and b"sesame" in one]


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
            assert parser.parse(head).length == number
    kept = [one for one in reachable(parser) if isinstance(one, RequestHead)]
    assert len(kept) <= KEPT_HEADS
