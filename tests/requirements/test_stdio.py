"""Standard input and output (STDIO, CANCEL, SUB), spoken to a process of its own."""

import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.child_processes import Stdio, stdio_server
from tests.requirements.demo_server import CAPABILITIES, EVERYTHING, accept
from tests.transports.wire import request

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LISTEN = {"toolsListChanged": True}


@pytest.fixture
async def line() -> AsyncIterator[Stdio]:
    async with stdio_server("tests.requirements.stdio_server:server") as served:
        yield served


def ask(
    method: str, id: Any = 1, meta: Mapping[str, Any] | None = None, **params: Any
) -> dict[str, Any]:
    return request(method, id, {CAPABILITIES: EVERYTHING, **(meta or {})}, **params)


@pytest.mark.requirement("STDIO-01", "STDIO-03", "STDIO-02", "MRTR-S-08")
async def test_a_call_of_several_rounds_is_one_line_for_each_message(line: Stdio) -> None:
    call: dict[str, Any] = {"name": "book", "arguments": {"day": "a\nb"}}
    first = await line.ask(ask("tools/call", 1, **call))
    state = first["result"]["requestState"]
    answers = {"room": accept(room="Oak\r\nElm")}
    await line.send(
        ask(
            "tools/call",
            2,
            {"progressToken": 5},
            **call,
            inputResponses=answers,
            requestState=state,
        )
    )
    progress, second = await line.next(), await line.next()
    assert progress["params"] == {"progressToken": 5, "progress": 1}
    assert second["id"] == 2
    state = second["result"]["requestState"]
    answers = {"sure": accept(sure=True)}
    third = await line.ask(ask("tools/call", 3, **call, inputResponses=answers, requestState=state))
    assert third["result"]["content"][0]["text"].endswith("on a\nb")


@pytest.mark.requirement("STDIO-01")
async def test_what_a_tool_prints_does_not_reach_the_client(line: Stdio) -> None:
    answer = await line.ask(ask("tools/call", name="print_something"))
    assert answer["result"]["content"][0]["text"] == "printed"
    assert await line.close() == (0, b"")


@pytest.mark.requirement("BASE-01", "BASE-03", "BASE-05", "STDIO-02", "BASE-09")
async def test_bad_lines_are_answered_and_good_ones_go_on(line: Stdio) -> None:
    for bad, code in (
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"server/discover"}', -32600),
        (b'{"jsonrpc":"2.0","id":3,"result":{}}', -32600),
    ):
        await line.send(bad)
        answer = await line.next()
        assert (answer["error"]["code"], "id" in answer) == (code, False)
    await line.send(b"")
    await line.send({"jsonrpc": "2.0", "method": "notifications/nobody"})
    assert (await line.ask(ask("server/discover", "last")))["id"] == "last"


@pytest.mark.requirement("WIRE-02", "VER-02", "VER-34", "VER-32")
async def test_envelope_and_version_are_checked_without_headers(line: Stdio) -> None:
    bare = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}
    assert (await line.ask(bare))["error"]["code"] == -32602
    old = ask("server/discover", meta={"io.modelcontextprotocol/protocolVersion": "1"})
    assert (await line.ask(old))["error"]["data"]["supported"] == ["2026-07-28"]
    hello = {**bare, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    assert (await line.ask(hello))["error"]["data"] == {
        "supported": ["2026-07-28"], "requested": "2025-11-25",
    }  # fmt: skip
    assert (await line.ask(ask("initialize")))["error"]["code"] == -32601


@pytest.mark.requirement("BASE-02")
async def test_an_id_that_is_still_running_is_refused(line: Stdio) -> None:
    await line.send(ask("tools/call", 7, name="wait"))
    again = await line.ask(ask("server/discover", 7))
    assert again["error"]["code"] == -32600
    await line.send(cancel(7))
    await nobody_waits(line)
    assert (await line.ask(ask("server/discover", 7)))["result"]["resultType"] == "complete"


async def nobody_waits(line: Stdio) -> None:
    """Ask until the cancelled request has stopped; whatever else comes fails."""
    for turn in range(1_000):
        answer = await line.ask(ask("tools/call", f"turn {turn}", name="waiting"))
        assert answer["id"] == f"turn {turn}"
        if answer["result"]["content"][0]["text"] == "0":
            return
    raise AssertionError("the request was not cancelled")


def cancel(id: Any) -> dict[str, Any]:
    params = {"requestId": id, "reason": "enough"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


@pytest.mark.requirement("CANCEL-03", "CANCEL-05", "WIRE-09")
async def test_a_cancelled_request_stops_and_is_not_answered(line: Stdio) -> None:
    await line.send(ask("tools/call", 1, name="wait"))
    assert (await line.ask(ask("tools/call", 2, name="waiting")))["result"]["content"] == [
        {"type": "text", "text": "1"}
    ]
    await line.send(cancel(1))
    await nobody_waits(line)
    assert await line.close() == (0, b"")


@pytest.mark.requirement("CANCEL-04")
@pytest.mark.parametrize(
    "params", [{}, {"requestId": None}, {"requestId": "nobody"}, {"requestId": {}}, [], None]
)
async def test_a_cancellation_that_fits_nothing_is_ignored(line: Stdio, params: Any) -> None:
    await line.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    assert (await line.ask(ask("server/discover", "next")))["id"] == "next"


@pytest.mark.requirement("SUB-02", "SUB-03", "SUB-04", "SUB-07", "SUB-01")
async def test_subscriptions_share_the_channel_and_are_told_apart_by_their_id(line: Stdio) -> None:
    for id in (0, "zero"):
        first = await line.ask(ask("subscriptions/listen", id, notifications=LISTEN))
        assert first["params"] == {"notifications": LISTEN, "_meta": {SUBSCRIPTION: id}}
    await line.send(ask("tools/call", 5, name="grow"))
    told = [await line.next() for _ in range(3)]
    changed = [note for note in told if "method" in note]
    assert {note["params"]["_meta"][SUBSCRIPTION] for note in changed} == {0, "zero"}
    await line.send(cancel(0))
    await line.send(ask("tools/call", 6, name="grow"))
    told = [await line.next() for _ in range(2)]
    assert [note["params"]["_meta"][SUBSCRIPTION] for note in told if "method" in note] == ["zero"]


@pytest.mark.requirement("SUB-08", "SUB-10", "CANCEL-05", "STDIO-05")
async def test_the_end_of_input_ends_subscriptions_by_the_book_and_the_server(line: Stdio) -> None:
    await line.ask(ask("subscriptions/listen", 4, notifications=LISTEN))
    status, rest = await line.close()
    assert status == 0
    ended, result = rest.splitlines()
    assert b'"method":"notifications/cancelled"' in ended
    assert b'"requestId":4' in ended
    assert b'"id":4,"result":{"resultType":"complete"' in result


@pytest.mark.requirement("STDIO-05")
async def test_a_signal_ends_the_server(line: Stdio) -> None:
    await line.ask(ask("server/discover"))
    line.process.send_signal(signal.SIGTERM)
    await line.process.wait()
