"""Strangers at both entrances: whatever comes in, a well-formed answer or none goes out.

Never a traceback, never a 500, never a hang, never an unexpected failure in the log. The cases
come from seeded generators, which are quick, and from Hypothesis, which shrinks what it finds.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.protocol.limits import Limits
from antiphon.transports.http.app import App
from antiphon.transports.stdio import StdioConnection
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import call, mirrored, read_events, request

CASES = 4_000
"""Of each kind, at each entrance: three kinds, two entrances."""

STATUSES = {200, 202, 400, 403, 404, 406, 413, 415, 431}
CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}

VALID: list[dict[str, Any]] = [
    request(id="v", arguments={"day": "2026-09-03"}, inputResponses={"a": {}}, requestState="s"),
    request(name="region", arguments={"region": "eu", "size": 1, "deep": {"dry": True}}),
    request(name="tell", meta={"progressToken": 0}),
    request("prompts/get", name="p", arguments={"a": "b"}),
    request("resources/read", uri="room://elm"),
    request("tools/list", cursor=""),
    request("server/discover"),
    request(
        "completion/complete",
        ref={"type": "ref/prompt", "name": "p"},
        argument={"name": "a", "value": ""},
    ),
    request("subscriptions/listen", notifications={"toolsListChanged": True, "taskIds": ["t"]}),
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "v"}},
    {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "x"}},
    {"jsonrpc": "2.0", "id": 1, "result": {}},
]
SCALARS: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**53, 2**64, "", "a", "\x00", "é\u2028\U0001f600",
    "=?base64?x?=", "tools/call", "2026-07-28", "../../etc", "\x1b[2J", "x" * 5000,
]  # fmt: skip


# --- generators -----------------------------------------------------------------------------------


def arbitrary_bytes(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(200))


def arbitrary_json(dice: random.Random) -> bytes:
    return json.dumps(value(dice, 5), ensure_ascii=dice.random() < 0.5).encode()


def value(dice: random.Random, depth: int) -> Any:
    if depth == 0 or dice.random() < 0.4:
        return dice.choice(SCALARS)
    if dice.random() < 0.4:
        return [value(dice, depth - 1) for _ in range(dice.randrange(4))]
    names = [
        "jsonrpc",
        "id",
        "method",
        "params",
        "_meta",
        "name",
        "a",
        "result",
        *request()["params"],
    ]
    return {dice.choice(names): value(dice, depth - 1) for _ in range(dice.randrange(6))}


def mutated_request(dice: random.Random) -> bytes:
    message = json.loads(json.dumps(dice.choice(VALID)))
    for _ in range(dice.randrange(3)):
        mutate_tree(dice, message)
    raw = json.dumps(message, indent=dice.choice([None, None, 2])).encode()
    for _ in range(dice.choice([0, 0, 0, 1, 2])):
        raw = mutate_bytes(dice, raw)
    return raw


def mutate_tree(dice: random.Random, message: Any) -> None:
    places = list(containers(message))
    place = dice.choice(places)
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return
    key = dice.choice(keys)
    if dice.random() < 0.3:
        del place[key]
    else:
        place[key] = value(dice, 2)


def containers(node: Any) -> Iterator[Any]:
    if isinstance(node, dict | list):
        yield node
        for inner in node.values() if isinstance(node, dict) else node:
            yield from containers(inner)


def mutate_bytes(dice: random.Random, raw: bytes) -> bytes:
    at, size = dice.randrange(len(raw) + 1), dice.randrange(8)
    kind = dice.randrange(5)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + raw[at + size :]
    if kind == 2:
        return raw[:at] + dice.randbytes(size) + raw[at:]
    if kind == 3:
        return raw[: at + size] + raw[at:]
    deep = dice.choice([10, 70, 3000])
    return raw.replace(b'"a"', b"[" * deep + b"]" * deep, 1)


def headers_for(dice: random.Random, raw: bytes) -> list[tuple[bytes, bytes]]:
    """The headers that fit, mostly; sometimes mutated, dropped or doubled."""
    try:
        message = json.loads(raw)
        headers = mirrored(message if isinstance(message, dict) else {})
    except (ValueError, AttributeError, RecursionError, TypeError):
        headers = mirrored(request())
    if dice.random() < 0.6:
        return headers
    at = dice.randrange(len(headers))
    name, old = headers[at]
    kind = dice.randrange(4)
    if kind == 0:
        del headers[at]
    elif kind == 1:
        headers.append((name, old))
    elif kind == 2:
        headers[at] = (name, mutate_bytes(dice, old))
    else:
        headers.append((b"mcp-param-region", dice.randbytes(5)))
    return headers


KINDS: list[Callable[[random.Random], bytes]] = [arbitrary_bytes, arbitrary_json, mutated_request]


# --- judges ---------------------------------------------------------------------------------------


def judge_message(message: Any) -> None:
    assert isinstance(message, dict)
    assert message["jsonrpc"] == "2.0"
    if "method" in message:
        assert "id" not in message
        assert message["method"].startswith("notifications/")
        return
    assert ("result" in message) != ("error" in message)
    if "id" in message:
        assert type(message["id"]) in (str, int)
    if "error" in message:
        error = message["error"]
        assert error["code"] in CODES
        assert isinstance(error["message"], str)
        assert "Traceback" not in error["message"]
        assert error["message"] != "Internal error"
    else:
        assert message["result"]["resultType"] == "complete"
        assert "id" in message


def judge_answer(status: int, headers: dict[bytes, bytes], body: bytes) -> None:
    assert status in STATUSES
    assert b"Traceback" not in body
    kind = headers.get(b"content-type")
    if kind == b"application/json":
        judge_message(msgspec.json.decode(body))
    elif kind == b"text/event-stream":
        for event in read_events(body):
            judge_message(event)
    else:
        assert (status == 202) == (not body)


def limits() -> Limits:
    return Limits(body_bytes=20_000)


async def knock(app: App, raw: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """One request whose client does not stay: a stream that waits must end by itself."""
    one = call(app, raw, headers)
    one.disconnect()
    async with asyncio.timeout(10):
        answer = await one.run()
    judge_answer(answer.status, answer.headers, answer.body)


# --- the HTTP entrance ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_http_answers_every_stranger(
    kind: Callable[[random.Random], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(kind.__name__)
    rooms = Rooms(limits())
    app = App(rooms)
    for _ in range(CASES):
        raw = kind(dice)
        await knock(app, raw, headers_for(dice, raw))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(rooms.subscriptions) == 0
    if kind is mutated_request:
        assert len(rooms.rounds) > CASES // 20, "hardly any request got through to the server"


# --- the stdio entrance ---------------------------------------------------------------------------


class Kept:
    """An output that keeps everything."""

    broken = False
    waiting = 0
    taken = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self, below: int = 0) -> None:
        return None

    def close(self) -> None:
        return None


async def talk(raw: bytes, dice: random.Random) -> list[bytes]:
    """Feed bytes in random pieces to a session that then ends; gives the lines that came back."""
    session, output = StdioConnection(Rooms(limits())), Kept()
    running = asyncio.create_task(session.run(output, grace=1))
    at = 0
    while at < len(raw):
        size = dice.choice([1, 7, 1000, 60_000])
        session.data_received(raw[at : at + size])
        at += size
        await asyncio.sleep(0)
    session.eof_received()
    async with asyncio.timeout(30):
        await running
    return output.written


@pytest.mark.parametrize("kind", KINDS)
async def test_stdio_answers_every_stranger(
    kind: Callable[[random.Random], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(kind.__name__)
    lines = [kind(dice).replace(b"\n", b" ") for _ in range(CASES)]
    written = await talk(b"\n".join(lines), dice)
    assert len(written) > CASES // 4
    for line in written:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        judge_message(msgspec.json.decode(line))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# --- Hypothesis -----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.integers() | st.text() | JSON,
        "method": st.sampled_from([one["method"] for one in VALID if "method" in one]) | JSON,
        "params": st.fixed_dictionaries(
            {"_meta": st.just(request()["params"]["_meta"])},
            optional=dict.fromkeys(
                ("name", "uri", "arguments", "cursor", "requestState", "notifications"), JSON
            ),
        )
        | JSON,
    },
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(message=MEMBERS | JSON, blanks=st.booleans())
def test_anything_shaped_like_a_request_is_answered_at_both_entrances(
    message: Any, blanks: bool
) -> None:
    raw = json.dumps(message, separators=None if blanks else (",", ":")).encode()

    async def both() -> None:
        dice = random.Random(1)
        await knock(App(Rooms(limits())), raw, headers_for(dice, raw))
        for line in await talk(raw, dice):
            judge_message(msgspec.json.decode(line))

    asyncio.run(both())
