"""Our HTTP server called by hand, without sockets: what a request of `antiphon serve` takes of it.

`python -m bench.served` prints the instructions of one request: alone, with authentication, and
with telemetry that records every round or none.
"""

import asyncio
import logging
import os
from typing import Any

import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from antiphon import Server
from antiphon.telemetry import OpenTelemetry
from antiphon.transports.http1.connection import HttpConnection
from antiphon.transports.http1.server import HttpServer
from bench.servers.ours import add_tools, caller
from bench.steps import Steps
from bench.story import REQUESTS, VERSION, Caller

_decode = msgspec.json.Decoder().decode


class Wire(asyncio.Transport):
    """A connection whose client is a list."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 8000)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0


class ServedClient:
    """Goes through a story on one connection of a server."""

    def __init__(self, http: HttpServer, workload: str) -> None:
        """Connect."""
        self._wire = Wire()
        self._connection = HttpConnection(http)
        self._connection.connection_made(self._wire)
        self._caller = Caller(workload)
        self._head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {VERSION}\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {workload}\r\n"
            "Authorization: Bearer ada\r\nContent-Length: "
        ).encode()

    async def _exchange(self, data: bytes) -> None:
        self._connection.data_received(data)
        while not self._wire.sent:  # noqa: ASYNC110 - the turns of the event loop are not counted
            await asyncio.sleep(0)

    def close(self) -> None:
        """Hang up."""
        self._connection.connection_lost(None)

    async def call(self, steps: Steps | None = None) -> None:
        """Make one whole call, and count its steps."""
        result = None
        while True:
            body = self._caller.request(result)
            work = self._exchange(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
            await (work if steps is None else steps.of(lambda work=work: work))
            answer = b"".join(self._wire.sent)
            self._wire.sent.clear()
            result = self._caller.check(_decode(answer.partition(b"\r\n\r\n")[2]))
            if result is None:
                return


async def counted(workload: str, **options: Any) -> float:
    """Return the steps of one request to a server with these options."""
    server = Server("bench", environ={}, **options)
    add_tools(server)
    app = server.asgi()
    http = HttpServer(app.serve)
    await http.listen("127.0.0.1", 0)
    async with server.running():
        client, steps = ServedClient(http, workload), Steps()
        for _ in range(110):  # until ids have three digits, and each head was seen twice
            await client.call()
        await client.call(steps)
        client.close()
    await http.stop(0)
    own = sum(count for (file, _), count in steps.by_function.items() if not _elsewhere(file))
    return own / REQUESTS[workload]


def _elsewhere(file: str) -> bool:
    """Whether a step is not the server's: the event loop, which is uvloop in production, or us."""
    return file == __file__ or f"{os.sep}asyncio{os.sep}" in file


def telemetry(sampler: Any = ALWAYS_ON) -> OpenTelemetry:
    """Return telemetry with providers of its own."""
    return OpenTelemetry(TracerProvider(sampler), MeterProvider())


SETTINGS: dict[str, dict[str, Any]] = {
    "alone": {},
    "authentication": {"principal": caller},
    "authentication, no round recorded": {
        "principal": caller,
        "telemetry": lambda: telemetry(ALWAYS_OFF),
    },
    "authentication, every round recorded": {"principal": caller, "telemetry": telemetry},
}


def options_of(setting: str) -> dict[str, Any]:
    """Return the options of a server; telemetry belongs to one server."""
    options = dict(SETTINGS[setting])
    if "telemetry" in options:
        options["telemetry"] = options["telemetry"]()
    return options


def main() -> None:
    logging.disable()
    print(f"{'instructions per request':40}" + "".join(f"{work:>10}" for work in REQUESTS))
    for setting in SETTINGS:
        costs = [asyncio.run(counted(work, **options_of(setting))) for work in REQUESTS]
        print(f"{setting:40}" + "".join(f"{cost:10.0f}" for cost in costs))


if __name__ == "__main__":
    main()
