"""Refusing wrong input costs at most ten times as much as accepting right input of the same size.

Measured in processor time of this thread, the least of several tries; the whole way from the bytes
of a request to those of its answer.
"""

import gc
import json
import time
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from antiphon import Context, Limits, Server
from tests.requirements.demo_server import CAPABILITIES, EVERYTHING, Peer
from tests.transports.wire import mirrored, post, request

SIZE = 200_000
"""Bytes of a request, about."""

MOST = 10
TRIES = 3

Choice = Literal[tuple(f"choice-{number}" for number in range(500))]  # type: ignore[valid-type]
KINDS: list[Any] = [
    create_model(f"Kind{number}", kind=(Literal[f"k{number}"], ...), size=(int, ...))  # type: ignore[valid-type]
    for number in range(20)
]
Either = KINDS[0] | KINDS[1] | KINDS[2] | KINDS[3] | KINDS[4] | KINDS[5] | KINDS[6] | KINDS[7]


class Answer(BaseModel):
    text: str = Field(max_length=1_000_000)
    number: int = 0


server = Server("desk", limits=Limits(state_bytes=1_000_000))


@server.tool
async def integers(values: list[int]) -> str:
    return str(len(values))


@server.tool
async def floats(values: list[float]) -> str:
    return str(len(values))


@server.tool
async def anything(values: Any) -> str:
    return "ok"


@server.tool
async def choices(values: list[Choice]) -> str:  # type: ignore[valid-type]
    return str(len(values))


@server.tool
async def mapped(values: dict[str, int]) -> str:
    return str(len(values))


@server.tool
async def eithers(values: list[Either]) -> str:  # type: ignore[valid-type]
    return str(len(values))


@server.tool
async def asks(ctx: Context) -> str:
    return (await ctx.elicit("What?", Answer, key="what")).text[:10]


def body_of(tool: str, values: str) -> bytes:
    """Write a request with these bytes as its argument."""
    message = request("tools/call", name=tool, arguments={"values": 4711})
    return json.dumps(message).replace("4711", values).encode()


def many(item: str) -> str:
    return "[" + ",".join([item] * (SIZE // (len(item) + 1))) + "]"


def members(count: int, *more: str) -> str:
    names = [f'"name-{number}":0' for number in range(count)]
    return "{" + ",".join([*names, *more]) + "}"


def nested(depth: int) -> str:
    one = "[" * depth + "]" * depth
    return "[" + ",".join([one] * (1_500 // depth)) + "]"


ROWS = {
    "wrong items of a list": ("integers", many('"x"'), many("123")),
    "wrong items, each of them long": ("integers", many(f'"{"x" * 1000}"'), many("123")),
    "floats for integers": ("integers", many("1.5"), many("123")),
    "integers of many digits": ("integers", many("9" * 5_000), many("9" * 18)),
    "floats of many digits": ("floats", many('"x"'), many("1e5")),
    "escapes": ("integers", many('"\\u0041"'), many("123")),
    "an escape and a name twice": (
        "anything",
        members(SIZE // 14, '"name-1":"\\u0041"', '"name-1":1'),
        members(SIZE // 14),
    ),
    "a name twice among many": ("anything", members(SIZE // 14, '"name-1":1'), members(SIZE // 14)),
    "nested too deeply": ("anything", nested(70), nested(50)),
    "too many brackets": ("anything", many("[]"), many("123")),
    "no value of a long enumeration": ("choices", many('"choice-x"'), many('"choice-7"')),
    "no member of a union": (
        "eithers",
        many('{"kind":"x"}'),
        many('{"kind":"k3","size":1}'),
    ),
    "wrong values of many members": (
        "mapped",
        members(SIZE // 14).replace(":0", ":[]"),
        members(SIZE // 14),
    ),
    "cut off": ("anything", many('"x"')[:-1] + "x", many('"x"')),
}


async def cost(body: bytes, *, refused: bool) -> float:
    """Return the processor seconds that a request takes."""
    app, message = server.asgi(), json.loads(body_of(json_name(body), "0"))
    headers = mirrored(message)
    seconds: list[float] = []
    for _ in range(TRIES):
        gc.collect()
        began = time.thread_time()
        answer = await post(app, body, headers)
        seconds.append(time.thread_time() - began)
        failed = "error" in answer.json or answer.result.get("isError", False)
        assert failed == refused, answer.body[:300]
    return min(seconds)


def json_name(body: bytes) -> str:
    """Find the name of the tool in a body that may be no JSON."""
    return body.partition(b'"name": "')[2].partition(b'"')[0].decode()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ROWS)
async def test_refusing_arguments_costs_little_more_than_accepting_some(what: str) -> None:
    tool, wrong, right = ROWS[what]
    accepted = await cost(body_of(tool, right), refused=False)
    refused = await cost(body_of(tool, wrong), refused=True)
    assert refused <= MOST * accepted, f"{refused:.4f} s against {accepted:.4f} s"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "content",
    [
        {"text": "x" * SIZE, "number": "no number"},
        {"text": "x" * SIZE, **{f"more-{number}": "x" for number in range(5_000)}},
        {"text": ["x"] * (SIZE // 5)},
        {f"more-{number}": [] for number in range(SIZE // 20)},
    ],
    ids=["a wrong member", "members nobody asked for", "a list for a text", "only unknown members"],
)
async def test_refusing_an_answer_costs_little_more_than_accepting_one(content: Any) -> None:
    peer = Peer(server.asgi())

    async def answered(given: Any) -> float:
        seconds: list[float] = []
        for _ in range(TRIES):
            step = await peer.call("asks")
            params = {
                "name": "asks",
                "requestState": step.result["requestState"],
                "inputResponses": {"what": {"action": "accept", "content": given}},
            }
            message = request("tools/call", 2, {CAPABILITIES: EVERYTHING}, **params)
            body, headers = json.dumps(message).encode(), mirrored(message)
            gc.collect()
            began = time.thread_time()
            await post(server.asgi(), body, headers)
            seconds.append(time.thread_time() - began)
        return min(seconds)

    accepted = await answered({"text": "x" * SIZE})
    refused = await answered(content)
    assert refused <= MOST * accepted + 0.02, f"{refused:.4f} s against {accepted:.4f} s"
