"""Servers that do not play fair: each gets a named error within its bound, and nothing hangs."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from antiphon.client import (
    AbilityMissing,
    Answers,
    AnswerTimeExceeded,
    CannotConnect,
    Client,
    ClientError,
    ConnectionLost,
    InvalidResponse,
    RemoteError,
    ReplyTimeExceeded,
    RoundsExceeded,
    TimeExceeded,
    Timeouts,
)
from tests.client.scripted_server import DISCOVERED, Error, Raw, ScriptedServer, asks, form, text

YES = Answers(elicit=lambda ask: {"name": "x"})


async def call(server: ScriptedServer, *, answers: Any = YES, **timeouts: Any) -> Any:
    bounds = Timeouts(**{"reply": 5.0, "total": 20.0, **timeouts})
    async with Client(server.url, answers=answers, timeouts=bounds) as client:
        return await client.call_tool("t")


async def fails(say: Callable[[dict[str, Any]], Any], kind: type[ClientError], **options: Any):
    with ScriptedServer(say) as server:
        with pytest.raises(kind) as caught:
            await call(server, **options)
        return caught.value, server


@pytest.mark.requirement("MRTR-C-15")
async def test_a_server_that_asks_for_ever_is_left_after_the_last_round():
    error, server = await fails(lambda m: asks("t", k=form()), RoundsExceeded, rounds=3)
    assert len(server.calls) == 4
    assert error.step is not None
    assert '"token":"t"' in error.step.dump()


@pytest.mark.requirement("MRTR-C-03", "MRTR-C-15")
async def test_a_server_that_pauses_for_ever_is_left_when_the_time_of_the_call_is_over():
    error, server = await fails(lambda m: asks("t"), TimeExceeded, total=0.6)
    assert 2 <= len(server.calls) <= 6
    assert error.step is not None


@pytest.mark.requirement("CANCEL-06")
async def test_a_server_that_stalls_is_left_when_its_reply_is_due():
    started = time.monotonic()
    error, _ = await fails(lambda m: asyncio.sleep(30), ReplyTimeExceeded, reply=0.3)
    assert time.monotonic() - started < 20
    assert error.step is not None


@pytest.mark.requirement("MRTR-C-15", "CANCEL-06")
async def test_the_whole_call_has_a_bound_of_its_own():
    error, _ = await fails(lambda m: asks("t"), TimeExceeded, total=0.4)
    assert error.step is not None
    assert error.step.call.token == "t"


async def test_an_answerer_that_never_ends_is_left_when_its_time_is_over():
    async def think(ask: Any) -> Any:
        await anyio.sleep_forever()

    slow = Answers(elicit=think)
    error, _ = await fails(
        lambda m: asks("t", k=form()), AnswerTimeExceeded, answers=slow, answer=0.3
    )
    assert error.step is not None
    assert list(error.step.asks) == ["k"]


@pytest.mark.requirement("BASE-08", "MRTR-C-01", "MRTR-C-14")
@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required"},
        {"resultType": "input_required", "requestState": 7},
        {"resultType": "input_required", "requestState": {"a": 1}, "inputRequests": {"k": form()}},
        {"resultType": "nonsense"},
        {"resultType": "complete"},
        {"resultType": "complete", "content": "text"},
        asks("t", k={"method": "shell/run", "params": {}}),
        asks("t", k=form(name={"type": "object", "properties": {}})),
        {"resultType": "task", "taskId": "t", "status": "working"},
    ],
)
async def test_a_result_against_the_protocol_is_refused_and_not_retried(result: dict[str, Any]):
    _, server = await fails(lambda m: result, InvalidResponse)
    assert len(server.calls) == 1


async def test_a_state_that_changes_its_type_in_mid_call_is_refused():
    replies = iter([asks("t", k=form()), asks(7, k=form())])
    error, server = await fails(lambda m: next(replies), InvalidResponse)
    assert len(server.calls) == 2
    assert error.step is not None
    assert error.step.call.token == "t"


@pytest.mark.requirement("MRTR-C-14")
@pytest.mark.parametrize(
    "ask",
    [
        {"method": "roots/list"},
        {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}},
        {
            "method": "elicitation/create",
            "params": {"mode": "url", "message": "m", "url": "https://x.example"},
        },
    ],
)
async def test_an_ask_for_what_was_not_declared_is_refused(ask: dict[str, Any]):
    error, server = await fails(lambda m: asks("t", k=ask), InvalidResponse)
    assert len(server.calls) == 1
    assert "did not declare" in str(error)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (Raw(b"not json"), ClientError),
        (Raw(b'{"jsonrpc":"2.0","id":'), ClientError),
        (Raw(b"[]"), ClientError),
        (Raw(b"<html>", content_type="text/html"), ClientError),
        (Raw(b"", status=202), ClientError),
        (Raw(b"oops", status=500, content_type="text/plain"), ConnectionLost),
        (Raw(b"", status=401, content_type="text/plain"), ConnectionLost),
    ],
)
async def test_garbage_instead_of_an_answer_is_a_named_error(body: Raw, kind: type[ClientError]):
    await fails(lambda m: body, kind)


async def test_a_missing_ability_is_named():
    data = {"requiredCapabilities": {"elicitation": {"url": {}}, "sampling": {}}}
    error, _ = await fails(lambda m: Error(-32021, "no", data, status=400), AbilityMissing)
    assert "elicitation.url, sampling" in str(error)


async def test_an_error_of_the_server_keeps_code_and_data_and_shows_no_control_characters():
    error, _ = await fails(lambda m: Error(-32050, "a\x1b[2Jb", {"x": 1}), RemoteError)
    assert isinstance(error, RemoteError)
    assert (error.code, error.data) == (-32050, {"x": 1})
    assert "\x1b" not in str(error)


async def test_one_failed_request_does_not_end_the_connection():
    with ScriptedServer(lambda m: text("ok")) as server:
        client = Client(server.url)
        await client.__aenter__()
        assert (await client.call_tool("t")).content
    with pytest.raises(ConnectionLost) as caught:
        await client.call_tool("t")
    assert caught.value.step is not None
    # The same client goes on when the server is back.
    with ScriptedServer(lambda m: text("back"), port=server.port):
        assert (await client.call_tool("t")).content[0].text == "back"  # pyright: ignore[reportAttributeAccessIssue]
        await client.__aexit__()


@pytest.mark.requirement("ERR-04", "VER-23")
async def test_a_dead_port_is_one_plain_error():
    with ScriptedServer(lambda m: None) as server:
        url = server.url
    with pytest.raises(CannotConnect, match=f"cannot reach {url}: is the server running"):
        async with Client(url.replace("//", "//ada:secret@") + "?k=secret"):
            pass


async def test_a_path_where_nothing_is_names_itself_and_the_usual_one():
    nothing = Raw(b"not here", status=404, content_type="text/plain")
    with ScriptedServer(lambda m: nothing, discover=nothing) as server:
        for era in ("auto", "modern"):
            with pytest.raises(CannotConnect, match=f"{server.url}: .*404.*/mcp is usual"):
                async with Client(server.url, era=era):
                    pass


def test_an_unknown_scheme_is_not_taken_for_a_command():
    with pytest.raises(CannotConnect, match="unknown scheme 'htp'"):
        Client("htp://example.test/mcp")


@pytest.mark.parametrize("command", ["antiphon-no-such-program", f"{sys.executable} -c pass"])
async def test_a_command_that_is_no_server_is_one_plain_error(command: str):
    with pytest.raises(CannotConnect):
        async with Client(command, connect=20):
            pass


async def test_an_exception_of_the_callers_own_block_stays_what_it_is():
    with ScriptedServer(lambda m: text("ok")) as server, pytest.raises(KeyError):
        async with Client(server.url):
            raise KeyError("mine")


async def test_cancelling_a_call_aborts_its_request_and_spares_the_connection():
    arrived, left = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def reply(message: dict[str, Any]) -> Any:
        if message["params"]["name"] == "quick":
            return text("ok")
        loop.call_soon_threadsafe(arrived.set)
        try:
            await asyncio.sleep(30)
        finally:
            loop.call_soon_threadsafe(left.set)

    with ScriptedServer(reply) as server:
        async with Client(server.url) as client:
            task = asyncio.create_task(client.call_tool("slow"))
            await asyncio.wait_for(arrived.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.call_tool("quick")).content


async def test_cancelling_while_connecting_leaves_nothing_behind():
    with ScriptedServer(lambda m: asyncio.sleep(30), discover=None) as server:
        before = asyncio.all_tasks()

        async def connect() -> None:
            async with Client(server.url, probe=30):
                pass

        task = asyncio.create_task(connect())
        assert await asyncio.to_thread(server.arrived.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before


@pytest.mark.requirement("VER-03")
async def test_a_server_of_an_unknown_future_is_refused_by_name():
    refusal = Error(-32022, "no", {"supported": ["2031-01-01"], "requested": "x"}, status=400)
    with (
        ScriptedServer(lambda m: None, discover=refusal) as server,
        pytest.raises(CannotConnect, match="2031-01-01"),
    ):
        async with Client(server.url):
            pass


async def test_a_command_that_babbles_and_never_answers_is_left_in_time():
    babble = [
        sys.executable,
        "-c",
        "import time\nwhile True: print('{}{', flush=True); time.sleep(1)",
    ]
    started = time.monotonic()
    with pytest.raises(CannotConnect, match="not ready within 2 s"):
        async with Client(babble, probe=0.5, connect=2):
            pass
    assert time.monotonic() - started < 12


async def test_a_stdio_server_that_dies_is_started_again_by_the_next_call():
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m['method'] == 'server/discover':\n"
        f"        r = {json.loads(json.dumps(DISCOVERED))!r}\n"
        "    elif m['params']['name'] == 'die':\n"
        "        os._exit(3)\n"
        "    else:\n"
        "        r = {'resultType': 'complete', 'content': []}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
    )
    async with Client([sys.executable, "-c", program]) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.call_tool("die")
        assert caught.value.sent
        assert (await client.call_tool("live")).content == []


@pytest.mark.requirement("LEGACY-12")
async def test_an_ended_session_is_made_anew_by_the_next_call():
    sessions: list[str] = []

    def reply(message: dict[str, Any]) -> Any:
        if message["method"] == "initialize":
            sessions.append(f"s{len(sessions)}")
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "old", "version": "1"},
            }
        if message["method"] == "tools/call" and len(sessions) == 1:
            return Raw(b"", status=404, content_type="text/plain")
        return {"content": []} if message["method"] == "tools/call" else Raw(b"", status=202)

    with ScriptedServer(reply, session=lambda: sessions[-1]) as server:
        async with Client(server.url, era="legacy") as client:
            with pytest.raises(ConnectionLost, match="ended the session") as caught:
                await client.call_tool("t")
            assert not caught.value.sent
            assert (await client.call_tool("t")).content == []
    assert sessions == ["s0", "s1"]


async def test_a_client_that_is_not_open_says_so():
    with ScriptedServer(lambda m: text("ok")) as server:
        client = Client(server.url)
        with pytest.raises(CannotConnect, match="not open"):
            await client.call_tool("t")
        async with client:
            assert (await client.call_tool("t")).content
        with pytest.raises(CannotConnect, match="not open"):
            await client.call_tool("t")
