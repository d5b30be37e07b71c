"""A session on stdio: lines in, lines out; and the whole process, over real pipes."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.protocol.limits import Limits
from antiphon.protocol.request import Principal
from antiphon.transports.stdio import LegacyLines, Write, serve_pipes
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import request

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "i",
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18"},
}


class Client:
    """The other end of two real pipes."""

    def __init__(self, to_server: int, from_server: int) -> None:
        self._to = to_server
        self._from = from_server
        self._buffer = b""

    def send(self, *lines: Any) -> None:
        raw = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
        os.write(self._to, b"".join(line + b"\n" for line in raw))

    async def line(self) -> Any:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while b"\n" not in self._buffer:
                readable = asyncio.Event()
                loop.add_reader(self._from, readable.set)
                await readable.wait()
                loop.remove_reader(self._from)
                data = os.read(self._from, 65536)
                assert data, "the server closed its output"
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line)

    async def lines(self, count: int) -> list[Any]:
        return [await self.line() for _ in range(count)]

    def close(self) -> None:
        os.close(self._to)
        self._to = -1


@asynccontextmanager
async def connected(rooms: Any, **options: Any) -> AsyncIterator[tuple[Client, Any]]:
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    client = Client(client_out, client_in)
    served = asyncio.create_task(serve_pipes(rooms, server_in, server_out, **options))
    try:
        yield client, served
    finally:
        if client._to >= 0:
            client.close()
        async with asyncio.timeout(20):
            await served
        for fd in (server_in, client_in, server_out):
            os.close(fd)


def cancel(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


async def test_a_line_is_answered_with_exactly_one_line() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id="a", name="echo"))
        assert await client.line() == {
            "jsonrpc": "2.0", "id": "a", "result": {"resultType": "complete", "said": "echo"},
        }  # fmt: skip
    assert rooms.rounds[0].principal == Principal(transport="stdio")


async def test_a_request_that_waits_does_not_hold_up_the_next() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id=1, name="wait"), request(id=2), request(id=3, name="turn"))
        assert {(await client.line())["id"] for _ in range(2)} == {2, 3}
        rooms.release.set()
        assert (await client.line())["result"]["said"] == "waited"


async def test_notifications_of_a_request_come_before_its_response() -> None:
    async with connected(Rooms()) as (client, _):
        client.send(request(name="tell", meta={"progressToken": 5}))
        first, second, last = await client.lines(3)
        assert first["params"] == {"progressToken": 5, "progress": 1}
        assert second["method"] == "notifications/progress"
        assert last["result"]["said"] == "told"


async def test_a_cancelled_request_is_stopped_and_never_answered() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id="w", name="wait"))
        await rooms.started.wait()
        client.send(cancel("w"), cancel("unknown"), cancel(None), cancel([1]), request(id=2))
        assert (await client.line())["id"] == 2
        await rooms.cancelled.wait()


async def test_the_id_of_a_cancelled_request_is_free_at_once() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id="w", name="wait"))
        await rooms.started.wait()
        client.send(cancel("w"), request(id="w", name="wait"), cancel("w"), request(id="w"))
        assert (await client.line())["result"]["said"] == "echo"
        client.send(request(id="w", name="wait"), request(id="w"))
        assert (await client.line())["error"]["code"] == -32600


async def test_an_id_is_told_apart_from_its_text() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id=1, name="wait"))
        await rooms.started.wait()
        client.send(cancel("1"), request(id="1"))
        assert (await client.line())["id"] == "1"
        assert not rooms.cancelled.is_set()


async def test_an_id_that_is_still_running_is_refused() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id=1, name="wait"), request(id=1))
        assert (await client.line())["error"]["code"] == -32600
        rooms.release.set()
        assert (await client.line())["result"]["said"] == "waited"


async def test_a_round_that_somebody_waits_for_outlives_its_cancellation() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request(id=1, name="wait"))
        await rooms.started.wait()
        channel: Any = rooms.rounds[0].channel
        channel.on_disconnect(lambda: True)
        client.send(cancel(1), request(id=2))
        assert (await client.line())["id"] == 2
        rooms.release.set()
        client.send(request(id=3))
        assert (await client.line())["id"] == 3
    assert not rooms.cancelled.is_set()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{oops", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b"x" * 3000, -32600),
    ],
)
async def test_a_line_that_is_no_message_gets_an_error_and_the_next_is_served(
    line: bytes, code: int
) -> None:
    async with connected(Rooms(Limits(body_bytes=2000))) as (client, _):
        client.send(b"", b"  \r", line, request(id=9))
        refused, served = await client.lines(2)
        assert refused["error"]["code"] == code
        assert served["id"] == 9


async def test_a_failure_of_the_server_is_an_error_and_no_more() -> None:
    async with connected(Rooms()) as (client, _):
        client.send(request(id=1, name="crash"), request(id=2, name="late"))
        assert (await client.line())["error"] == {"code": -32603, "message": "Internal error"}
        assert (await client.lines(3))[-1]["error"]["code"] == -32021


# --- listening --------------------------------------------------------------------------------


async def test_listeners_share_the_output_and_are_told_apart_by_their_id() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(
            request("subscriptions/listen", id=7, notifications={"toolsListChanged": True}),
            request("subscriptions/listen", id="7", notifications={"promptsListChanged": True}),
        )
        acknowledged = await client.lines(2)
        assert [one["params"]["notifications"] for one in acknowledged] == [
            {"toolsListChanged": True},
            {"promptsListChanged": True},
        ]
        client.send(request(id=8, name="change"))
        told = {one["method"]: one for one in await client.lines(3) if "method" in one}
        key = "io.modelcontextprotocol/subscriptionId"
        assert told["notifications/tools/list_changed"]["params"]["_meta"][key] == 7
        assert told["notifications/prompts/list_changed"]["params"]["_meta"][key] == "7"
        client.send(cancel(7), request(id=9, name="change"))
        after = [await client.line(), await client.line()]
        assert {one.get("method") for one in after} == {"notifications/prompts/list_changed", None}
        assert len(rooms.subscriptions) == 1
    assert len(rooms.subscriptions) == 0


async def test_the_server_ends_a_listener_by_notification_and_result() -> None:
    rooms = Rooms()
    async with connected(rooms) as (client, _):
        client.send(request("subscriptions/listen", id="l", notifications={}))
        await client.line()
        rooms.subscriptions.close()
        ended, result = await client.lines(2)
        assert ended["method"] == "notifications/cancelled"
        assert ended["params"]["requestId"] == "l"
        assert result["result"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "l"}


# --- the end ----------------------------------------------------------------------------------


async def test_at_the_end_of_input_running_requests_may_finish() -> None:
    rooms = Rooms()
    async with connected(rooms, grace=5.0) as (client, served):
        client.send(request(name="wait"))
        await rooms.started.wait()
        client.close()
        rooms.release.set()
        assert (await client.line())["result"]["said"] == "waited"
        await served


async def test_what_does_not_finish_in_its_grace_is_cancelled() -> None:
    rooms = Rooms()
    async with connected(rooms, grace=0.05) as (client, served):
        client.send(request(name="wait"))
        await rooms.started.wait()
        client.close()
        await served
        assert rooms.cancelled.is_set()


async def test_a_last_line_without_its_newline_counts() -> None:
    async with connected(Rooms()) as (client, _):
        os.write(client._to, msgspec.json.encode(request(id="last")))
        client.close()
        assert (await client.line())["id"] == "last"


async def test_a_client_that_reads_slowly_loses_nothing_and_is_not_read_meanwhile() -> None:
    rooms = Rooms()
    filler = "x" * 100_000
    async with connected(rooms) as (client, _):
        big = msgspec.json.encode(request(name="big")) + b"\n"
        rooms.tools = {"big": _says(filler)}
        os.set_blocking(client._to, False)
        sent = 0
        while sent < 50_000:
            try:
                if os.write(client._to, big) < len(big):
                    break
            except BlockingIOError:
                break
            sent += 1
            await asyncio.sleep(0)
        assert sent < 50_000, "the server takes requests although nobody reads its answers"
        os.set_blocking(client._to, True)
        answered = 0
        while answered < sent:
            assert (await client.line())["result"]["said"] == filler
            answered += 1
        os.write(client._to, b"\n")


def _says(text: str) -> Any:
    async def tool(round: Any) -> str:
        return text

    return tool


async def test_a_client_that_stops_reading_ends_the_session() -> None:
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    served = asyncio.create_task(serve_pipes(Rooms(), server_in, server_out))
    os.close(client_in)
    os.write(client_out, msgspec.json.encode(request()) + b"\n")
    async with asyncio.timeout(20):
        await served
    for fd in (server_in, client_out, server_out):
        os.close(fd)


async def test_a_regular_file_is_read_by_a_thread(tmp_path: Path) -> None:
    lines = tmp_path / "requests"
    lines.write_bytes(b"".join(msgspec.json.encode(request(id=n)) + b"\n" for n in range(3000)))
    answers = tmp_path / "answers"
    with lines.open("rb") as source, answers.open("wb") as target:
        await serve_pipes(Rooms(), source.fileno(), target.fileno())
    ids = [msgspec.json.decode(line)["id"] for line in answers.read_bytes().splitlines()]
    assert ids == list(range(3000))


# --- eras -------------------------------------------------------------------------------------


async def test_a_modern_only_server_tells_a_handshake_what_it_speaks() -> None:
    async with connected(Rooms()) as (client, _):
        client.send(INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        answer = await client.line()
        assert answer["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-06-18"}
        assert answer["id"] == "i"


class Old:
    def __init__(self, write: Write) -> None:
        self.closed = asyncio.Event()
        self._write = write

    async def feed(self, line: bytes) -> None:
        await asyncio.sleep(0)
        self._write(b'{"old":' + line + b"}")

    async def close(self) -> None:
        self.closed.set()


async def test_both_eras_share_one_process() -> None:
    rooms = Rooms()
    made: list[Old] = []

    async def legacy(write: Write) -> LegacyLines:
        made.append(Old(write))
        return made[-1]

    async with connected(rooms, legacy=legacy) as (client, _):
        client.send(request(id=1))
        assert (await client.line())["id"] == 1
        assert made == []
        response = {"jsonrpc": "2.0", "id": 1, "result": {}}
        client.send(INITIALIZE, cancel(77), response, request(id=2))
        lines = await client.lines(4)
        assert [one["old"] for one in lines if "old" in one] == [INITIALIZE, cancel(77), response]
        assert [one["id"] for one in lines if "id" in one] == [2]
        client.send({"jsonrpc": "2.0"}, request(id="w", name="wait"))
        assert (await client.line())["error"]["code"] == -32600
        await rooms.started.wait()
        client.send(cancel("w"))
        await rooms.cancelled.wait()
    assert made[0].closed.is_set()


# --- the whole process ------------------------------------------------------------------------

PROGRAM = """
import asyncio, os, subprocess, sys
from antiphon.transports.stdio import serve
from tests.transports.recording_dispatcher import Rooms

class Noisy(Rooms):
    async def serve(self, round):
        print("a stray print")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
        assert sys.stdin.buffer.raw.read() == b""
        return await super().serve(round)

asyncio.run(serve(Noisy()))
print("after")
"""


def test_a_process_keeps_stray_prints_off_the_wire_and_ends_with_its_input() -> None:
    line = msgspec.json.encode(request(id=1)) + b"\n"
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=line, capture_output=True, timeout=30
    )
    answer, after = child.stdout.splitlines()
    assert msgspec.json.decode(answer)["id"] == 1
    assert after == b"after"
    assert b"a stray print" in child.stderr
    assert b"a child" in child.stderr
    assert child.returncode == 0
