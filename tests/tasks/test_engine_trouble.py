"""Servers whose engine cannot be reached, does not answer or hangs: no request waits for it."""

import asyncio
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.errors import AuthorizationError

from antiphon.ports import Due
from antiphon.tasks.queues import open_carrier
from antiphon.tasks.queues.temporal import TemporalCarrier, next_name
from tests.servers import ENGINES, PATIENCE, ROOT, nats
from tests.tasks.task_client import Peer, serving

PASSWORD = "pw-engine"
WAIT = 0.25
"""Seconds that no request may wait for an engine."""


@contextmanager
def refused() -> Iterator[int]:
    """A port that nobody listens on: it is bound, so that nobody else takes it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def silent() -> Iterator[int]:
    """A port where connections are taken and nothing is ever said, also not of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def unreachable() -> Iterator[int]:
    """A port where connections are neither taken nor refused, as beyond a broken network."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        try:
            yield server.getsockname()[1]
        finally:
            for one in crowd:
                one.close()


async def job() -> str:
    return "done"


async def requests_are_served(folder: Path, url: str, before: Callable[[], object]) -> None:
    """Start a server, serve requests and end it, with an engine that is in trouble."""
    server = serving(job)(store=f"sqlite:///{folder / 'x.db'}", carrier=url, task_runs="workers")
    began = time.perf_counter()
    async with server.running():
        peer, took = Peer(server), [time.perf_counter() - began]
        before()
        for _ in range(20):  # more than are sent at a time
            began = time.perf_counter()
            await peer.cancel(await peer.begin("job"))
            took.append((time.perf_counter() - began) / 2)
        began = time.perf_counter()
    ended = time.perf_counter() - began
    assert statistics.median(took) < WAIT
    assert max(took) < 4 * WAIT, "a busy machine may be slow, but an engine is waited for longer"
    assert ended < 8 * WAIT, "the end waited for the engine"


@pytest.mark.parametrize("scheme", ["nats://u:{}@", "tls://u:{}@", "temporal://"])
@pytest.mark.parametrize("trouble", [refused, silent, unreachable])
async def test_no_request_waits_for_an_engine_that_cannot_be_reached(
    trouble: Callable[[], AbstractContextManager[int]],
    scheme: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trouble() as port:
        url = f"{scheme.format(PASSWORD)}127.0.0.1:{port}"
        await requests_are_served(tmp_path, url, lambda: None)
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("name", ENGINES)
async def test_no_request_waits_for_an_engine_that_hangs(name: str, tmp_path: Path) -> None:
    with ENGINES[name]() as engine:
        process = engine.process
        assert process is not None
        try:
            url, stop = engine.url, signal.SIGSTOP
            await requests_are_served(tmp_path, url, lambda: os.kill(process.pid, stop))
        finally:
            os.kill(process.pid, signal.SIGCONT)


async def test_users_in_a_url_of_nats_are_let_in_and_their_password_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.tasks.queues.nats._CONNECT", 2.0)
    due = Due("task", "shop", "refund", "caller", 3, 9)
    with nats("--user", "ada", "--pass", PASSWORD) as engine:
        host = engine.url.removeprefix("nats://")
        carrier = open_carrier(f"nats://ada:{PASSWORD}@{host}", "shop")
        assert carrier is not None
        await carrier.open()
        await carrier.call(due)
        await carrier.close()
        stranger = open_carrier(f"nats://ada:not-{PASSWORD}@{host}", "shop")
        assert stranger is not None
        with pytest.raises(AuthorizationError) as refused:
            await stranger.open()
        await stranger.close()
    assert PASSWORD not in caplog.text
    assert PASSWORD not in str(refused.value)


class BlackHole:
    """A resolver that answers for one name, and from some moment on does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.held = threading.Event(), 0
        self.swallows = False
        self._look_up = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: str, *others: Any, **options: Any) -> Any:
        if host != "engine.test":
            return self._look_up(host, *others, **options)
        if self.swallows:
            self.held += 1
            self.open.wait(PATIENCE)
        return self._look_up("127.0.0.1", *others, **options)


async def test_a_name_that_is_not_answered_holds_few_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.tasks.queues.nats._CONNECT", 0.2)
    monkeypatch.setattr("antiphon.tasks.queues.nats._ADDRESS", 1.0)
    hole = BlackHole(monkeypatch)
    try:
        with nats() as engine:
            url = f"nats://engine.test:{engine.port}"
            connected, late = open_carrier(url, "shop"), open_carrier(url, "shop")
            assert connected is not None
            assert late is not None
            await connected.open()
            hole.swallows = True
            for _ in range(8):
                with pytest.raises(TimeoutError):
                    await late.open()
                await late.close()
            assert hole.held == 1
            engine.kill()
            await asyncio.sleep(3.5)  # it would have tried again
            assert hole.held <= 3
            engine.start()
            hole.open.set()
            monkeypatch.setattr("antiphon.tasks.queues.nats._CONNECT", PATIENCE)
            await late.open()
            await late.call(Due("task", "shop", "refund", "caller", 3, 9))
            await connected.call(Due("task", "shop", "refund", "caller", 3, 10))
            await late.close()
            await connected.close()
    finally:
        hole.open.set()


async def test_a_temporal_carrier_with_tls_speaks_tls() -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.readexactly(2))
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        carrier = TemporalCarrier(f"127.0.0.1:{port}", "shop", tls=True, api_key=PASSWORD)
        opening = asyncio.ensure_future(carrier.open())
        assert await asyncio.wait_for(heard.get(), 10) == b"\x16\x03"  # a handshake begins
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await carrier.close()


def test_a_call_that_finds_no_place_in_temporal_has_two_names_however_often_it_was_made() -> None:
    due = Due("task", "shop", "refund", "caller", 3, 9)
    made = {next_name(due, f"antiphon-task-3-9-{again}") for again in (0, 1)}
    (first,) = made
    second = next_name(due, f"antiphon-{first}")
    assert first != second, "it is still open when the next one is started"
    assert next_name(due, f"antiphon-{second}") == first


async def test_processes_that_have_just_called_an_engine_end() -> None:
    """Whatever threads a client of an engine has, they keep no process."""
    code = (
        "import sys; from tests.tasks.test_engine_trouble import call_and_end as f; f(sys.argv[1])"
    )
    for name, number in {"nats": 1, "temporal": 4}.items():  # that of Temporal has threads
        with ENGINES[name]() as engine:
            command = [sys.executable, "-c", code, engine.url]
            callers = [
                await asyncio.create_subprocess_exec(*command, cwd=ROOT) for _ in range(number)
            ]
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    assert [await one.wait() for one in callers] == [0] * number
            finally:
                for one in callers:
                    if one.returncode is None:
                        one.kill()
                        await one.wait()


def call_and_end(url: str) -> None:
    async def main() -> None:
        server = serving(job)(carrier=url, task_runs="workers")
        async with server.running():
            await asyncio.sleep(0.5)  # it connects
            for _ in range(40):
                await Peer(server).begin("job")

    asyncio.run(main())
