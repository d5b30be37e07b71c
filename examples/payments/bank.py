"""A bank over HTTP that keeps its books by idempotency key, and misbehaves as banks do."""

import asyncio
import json
from collections import Counter
from typing import Literal

Mood = Literal["works", "loses replies", "is slow", "answers twice", "dies", "refuses"]


class Bank:
    """Books each idempotency key once; `mood` says what becomes of its replies."""

    def __init__(self) -> None:
        self.mood: Mood = "works"
        self.booked: dict[str, dict[str, object]] = {}
        """Payments and refunds by idempotency key."""

        self.requests: Counter[str] = Counter()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._port = 0

    async def open(self) -> None:
        """Begin to listen; after it died, at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            fields = dict(
                line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
            )
            body = await reader.readexactly(int(fields.get("content-length", "0")))
            await self._answer(method, path, fields.get("idempotency-key", ""), body, writer)
        except asyncio.CancelledError:
            return  # the bank is gone before it has answered
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, key: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.requests[method] += 1
        if method == "GET":
            found = self.booked.get(path.rpartition("/")[2])
            _write(writer, 404 if found is None else 200, found or {})
            return
        if self.mood == "refuses":
            _write(writer, 402, {"reason": "not enough money"})
            return
        receipt = f"{path.strip('/')[:1].upper()}-{len(self.booked) + 1}"
        booking = self.booked.setdefault(key, {"receipt": receipt, **json.loads(body)})
        match self.mood:
            case "loses replies":
                return
            case "is slow":
                await asyncio.sleep(2)
            case "dies":
                await self.close()
                return
            case "answers twice":
                _write(writer, 200, booking)
            case _:
                pass
        _write(writer, 200, booking)


def _write(writer: asyncio.StreamWriter, status: int, content: dict[str, object]) -> None:
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
