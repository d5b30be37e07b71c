import asyncio

from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from antiphon.transports.legacy.event_store import BYTES, EVENTS, UNRELATED, SessionEvents


def note(text: str = "") -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="n", params={"text": text})


def response(id: int) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=id, result={})


class Reader:
    """A client that has come back."""

    def __init__(self) -> None:
        self.got: list[EventMessage] = []
        self.more = asyncio.Event()

    async def __call__(self, event: EventMessage) -> None:
        self.got.append(event)
        self.more.set()


async def test_what_came_after_is_sent_and_the_stream_ends_with_its_response() -> None:
    replay, reader = SessionEvents(), Reader()
    primed = await replay.store_event("1", None)
    ids = [await replay.store_event("1", note("a")), await replay.store_event("1", response(1))]
    assert await replay.replay_events_after(primed, reader) is None
    assert [event.event_id for event in reader.got] == ids


async def test_a_stream_whose_response_was_seen_ends_at_once() -> None:
    replay, reader = SessionEvents(), Reader()
    last = await replay.store_event("1", response(1))
    assert await replay.replay_events_after(last, reader) is None
    assert reader.got == []


async def test_a_resumed_stream_is_followed_without_a_gap() -> None:
    replay, reader = SessionEvents(), Reader()
    primed = await replay.store_event("1", None)
    following = asyncio.create_task(replay.replay_events_after(primed, reader))
    for text in "abc":
        await replay.store_event("1", note(text))
        await replay.store_event("2", note("of another stream"))
        await reader.more.wait()
        reader.more.clear()
    await replay.store_event("1", response(1))
    assert await following is None
    sent = [event.message for event in reader.got]
    assert sent == [note("a"), note("b"), note("c"), response(1)]


async def test_the_end_of_the_session_ends_every_followed_stream() -> None:
    replay, reader = SessionEvents(), Reader()
    primed = await replay.store_event("1", None)
    following = asyncio.create_task(replay.replay_events_after(primed, reader))
    await asyncio.sleep(0)
    replay.close()
    assert await following is None


async def test_an_unknown_event_resumes_nothing() -> None:
    replay, reader = SessionEvents(), Reader()
    await replay.store_event("1", note())
    for id in ("99", "", "x", "-1"):
        assert await replay.replay_events_after(id, reader) is None
    assert reader.got == []


async def test_the_oldest_events_go_first() -> None:
    replay, reader = SessionEvents(), Reader()
    first = await replay.store_event("1", None)
    second = await replay.store_event("1", note())
    for _ in range(EVENTS - 1):
        await replay.store_event("2", note())
    assert await replay.replay_events_after(first, reader) is None
    await replay.store_event("1", response(1))
    assert await replay.replay_events_after(second, reader) is None
    assert reader.got == []


async def test_bytes_are_bounded_and_one_large_event_is_kept() -> None:
    replay, reader = SessionEvents(), Reader()
    first = await replay.store_event("1", note("x" * (BYTES // 2)))
    second = await replay.store_event("1", note("y" * BYTES))
    assert await replay.replay_events_after(first, reader) is None
    assert reader.got == []
    await replay.store_event("1", response(1))
    assert await replay.replay_events_after(second, reader) is None


async def test_unrelated_notices_do_not_push_out_what_belongs_to_a_call() -> None:
    replay, reader = SessionEvents(), Reader()
    primed = await replay.store_event("1", None)
    ids = [await replay.store_event(GET_STREAM_KEY, note()) for _ in range(EVENTS * 2)]
    await replay.store_event("1", response(1))
    assert await replay.replay_events_after(primed, reader) is None
    assert len(reader.got) == 1
    assert await replay.replay_events_after(ids[-3], reader) == GET_STREAM_KEY
    assert [event.event_id for event in reader.got[1:]] == ids[-2:]
    assert await replay.replay_events_after(ids[-UNRELATED - 1], reader) is None
