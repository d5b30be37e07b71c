"""How long a request takes at 70 % of what a server can do, beside the bare application.

First the server is loaded as fast as it answers: that is its own saturation. Then both servers are
sent requests at 70 % of that rate, on a fixed schedule that does not wait for slow answers: a
latency counts from when its request was due. All connections are open before the clock starts.
"""

import asyncio
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import uvloop

from bench.load import Connection, over_http
from bench.procs import cpu_ns, port_of, server
from bench.story import Caller

CONNECTIONS = 32
SHARE = 0.7


class Tail(NamedTuple):
    """The slow end of some latencies, in milliseconds."""

    p50: float
    p99: float
    worst: float


class PacedConnection(Connection):
    """A connection that sends one request when it is told to, and notes when the answer came."""

    def __init__(self, caller: Caller, port: int, idle: "deque[PacedConnection]") -> None:
        """Go to the idle connections after each answer."""
        super().__init__(caller, port)
        self._idle = idle
        self._result: object = None
        self._due = 0.0
        self.latencies: list[float] = []
        self.failure: Exception | None = None

    def request(self, due: float) -> None:
        """Send the next request of the story, which was due at a time."""
        self._due = due
        self._send(self._result)

    def data_received(self, data: bytes) -> None:
        """Note the latency; the connection can be used again."""
        self._buffer += data
        try:
            message = self._message()
            if message is None:
                return
            self.latencies.append(asyncio.get_running_loop().time() - self._due)
            self._result = self._caller.check(message)
            self._idle.append(self)
        except Exception as error:
            self.failure = error


async def at_rate(port: int, workload: str, rate: float, seconds: float) -> Tail:
    """Send requests on a schedule; return the latencies' slow end."""
    loop = asyncio.get_running_loop()
    idle: deque[PacedConnection] = deque()
    clients: list[PacedConnection] = []
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(
            lambda: PacedConnection(Caller(workload), port, idle), "127.0.0.1", port
        )
        clients.append(client)
    idle.extend(clients)
    try:
        start = loop.time() + 0.05
        for number in range(int(rate * seconds)):
            due = start + number / rate
            # On a core of its own: turning the event loop is more exact than a timer.
            while loop.time() < due or not idle:
                _check(clients)
                await asyncio.sleep(0)
            idle.popleft().request(due)
        async with asyncio.timeout(30):
            while len(idle) < CONNECTIONS:
                _check(clients)
                await asyncio.sleep(0)
    finally:
        for client in clients:
            client.close()
    return tail([latency for client in clients for latency in client.latencies])


def _check(clients: list[PacedConnection]) -> None:
    for client in clients:
        if client.failure is not None:
            raise client.failure


def tail(latencies: list[float]) -> Tail:
    """Return median, 99th percentile and maximum in milliseconds."""
    found = sorted(latency * 1000 for latency in latencies)
    return Tail(found[len(found) // 2], found[len(found) * 99 // 100], found[-1])


async def _saturation(port: int, workload: str, seconds: float, pid: int) -> float:
    """Requests per second as fast as the server answers."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    cpu = partial(cpu_ns, pid)
    requests, _ = await over_http(port, workload, CONNECTIONS, seconds, cpu)
    return requests / (loop.time() - start)


class Tails(NamedTuple):
    """Our slow end and the bare application's, at the same rate."""

    rate: float
    ours: Tail
    bare: Tail

    @property
    def p99(self) -> float:
        """How many times longer than the bare application's."""
        return self.ours.p99 / self.bare.p99

    @property
    def worst(self) -> float:
        """The same for the slowest request."""
        return self.ours.worst / self.bare.worst


def measure(workload: str, seconds: float, repeats: int) -> list[Tails]:
    """Measure both servers in turn, so many times."""
    with ExitStack() as stack:
        ours = stack.enter_context(server("serve", "serve", "plain"))
        bare = stack.enter_context(server("bare", "http"))
        ports = port_of(ours), port_of(bare)
        found: list[Tails] = []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(at_rate(ports[1], workload, 500, 0.5))  # warm
            for _ in range(repeats):
                rate = SHARE * runner.run(_saturation(ports[0], workload, seconds, ours.pid))
                tails = [
                    runner.run(at_rate(port, workload, rate, max(seconds, 0.5))) for port in ports
                ]
                found.append(Tails(rate, *tails))
    return found
