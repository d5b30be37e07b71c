"""What a client and the log are told of errors that nobody foresaw."""

import logging
from typing import Any

import pytest

from antiphon import Context, Server, StoreError
from antiphon.engine.environment import StoreTrouble
from antiphon.protocol.request import Request
from antiphon.stores.memory import MemoryStore
from antiphon.testing import FakeClock
from antiphon.transports.http.app import App
from tests.transports.recording_dispatcher import Rooms
from tests.transports.wire import post, request

TRY_AGAIN = "the server's store cannot be reached; try again"
FORM = {"type": "object", "properties": {"region": {"type": "string"}}}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreError("disk gone at 10.0.0.7"), TRY_AGAIN),
        (
            StoreError("file is corrupt", retryable=False),
            "the server's store has failed and must be repaired by its operator",
        ),
        (ZeroDivisionError("secret"), "Internal error"),
    ],
)
async def test_a_failure_is_a_json_rpc_error_that_reveals_nothing(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Rooms):
        async def serve(self, round: Request) -> bytes:
            raise error

    answer = await post(App(Failing()), request(id=3))
    assert answer.status == 200
    assert answer.json == {
        "jsonrpc": "2.0",
        "id": 3,
        "error": {"code": -32603, "message": told},
    }
    # The text of an error that nobody expected may repeat what a caller sent.
    assert (type(error).__name__ if told == "Internal error" else str(error)) in caplog.text


class LostStore(MemoryStore):
    """A store that cannot be reached when a round is claimed."""

    async def claim(self, *_: Any, **__: Any) -> Any:
        raise StoreError("connection refused by db.internal")


async def test_rounds_refused_because_the_store_is_gone_leave_one_line_that_names_the_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("shop", store=LostStore())

    @server.tool
    async def order(ctx: Context) -> str:
        return str(await ctx.elicit("Where?", FORM, key="where"))

    app = server.asgi()
    capable = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    asked = (await post(app, request(name="order", meta=capable))).result
    given = {"where": {"action": "accept", "content": {"region": "eu"}}}
    again = request(
        name="order", meta=capable, requestState=asked["requestState"], inputResponses=given
    )
    for _ in range(20):
        assert (await post(app, again)).error["message"] == TRY_AGAIN
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert lines == ["connection refused by db.internal (1 request refused)"]


async def test_failures_between_two_lines_are_counted(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = StoreTrouble(fake_clock)
    for _ in range(4):
        trouble.refused(StoreError("gone"))
    fake_clock.advance(10)
    trouble.refused(StoreError("gone"))
    assert caplog.messages == ["gone (1 request refused)", "gone (4 requests refused)"]
