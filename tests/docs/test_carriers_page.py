"""The page about carriers: its example calls tasks as Restate's ingress wants them called."""

import asyncio

import msgspec

from antiphon.ports import Due
from docs_src.listening import behind_a_pooler
from docs_src.my_carrier import RestateCarrier

OK = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_a_store_may_be_listened_to_past_its_pooler() -> None:
    assert type(behind_a_pooler()._services.store).__name__ == "PostgresStore"


async def test_the_example_sends_a_call_to_the_object_of_its_task() -> None:
    """A server stands in for the ingress; how Restate answers workers is not tested."""
    heard: list[tuple[str, Due]] = []

    async def ingress(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(
            int(line.partition(":")[2])
            for line in head.splitlines()
            if line.lower().startswith("content-length")
        )
        body = await reader.readexactly(size)
        heard.append((head.split()[1], msgspec.json.decode(body, type=Due)))
        writer.write(OK)
        await writer.drain()
        writer.close()

    due = Due("task", "shop", "refund", "caller", 3, 9)
    async with await asyncio.start_server(ingress, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        carrier = RestateCarrier(f"http://127.0.0.1:{port}")
        await carrier.open()
        try:
            await carrier.call(due)
            await carrier.call(msgspec.structs.replace(due, after=1.5))
        finally:
            await carrier.close()
    assert heard == [
        ("/AntiphonRuns/task/run/send", due),
        ("/AntiphonRuns/task/run/send?delay=1500ms", due),
    ]
