"""Check the policy: what is denied, who is asked, a gateway that is killed, and what is kept of it.

python -m examples.gateway_policy.check
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon import Accept, Client, Decline, RemoteError
from examples.people import decide
from examples.processes import Process, antiphon, running

HERE = Path(__file__).parent


def settled(folder: Path, port: int) -> Path:
    """Copy the policy, for this port and this interpreter."""
    text = (HERE / "gateway.toml").read_text()
    text = text.replace("127.0.0.1:8400", f"127.0.0.1:{port}")
    command = json.dumps([sys.executable, str(HERE / "shop.py")])
    text = text.replace('["python", "examples/gateway_policy/shop.py"]', command)
    file = folder / "gateway.toml"
    file.write_text(text)
    return file


@contextmanager
def gateway(file: Path, port: int) -> Iterator[Process]:
    """Run the gateway until the block ends."""
    words = antiphon("gateway", str(file), "--http", f"127.0.0.1:{port}")
    with running(words, file.parent) as process:
        assert process.port == port
        yield process


async def refunds(url: str) -> None:
    """Refund one order after a yes; another stays after a no."""
    for order, answer in (("order-7", Accept({"approve": True})), ("order-8", Decline())):
        async with Client(url, answers=lambda ask, answer=answer: answer) as client:
            result = await client.call_tool("refund_order", {"order": order, "cents": 500})
            print(f"{order}:", result.content[0].text)


async def seen(url: str) -> list[str]:
    """Return the tools, having tried the one that is denied."""
    async with Client(url) as client:
        try:
            await client.call_tool("export_customers")
        except RemoteError as error:
            print("export:", error)
        else:
            raise AssertionError("what is denied was served")
        return sorted(tool.name for tool in await client.list_tools())


async def delete(url: str, order: str) -> str:
    """Begin to delete; returns the task that waits for ops."""
    async with Client(url) as client:
        step = await client.begin("delete_order", {"order": order})
        assert step.task is not None
        return step.task.id


async def ended(url: str, task: str) -> str:
    """Wait for the end of a task."""
    async with Client(url) as client:
        return (await client.task(task, wait=30.0)).result.content[0].text


def main() -> int:
    """Tell the story."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    origin = f"http://127.0.0.1:{port}"
    url = f"{origin}/mcp"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = settled(folder, port)
        with gateway(file, port) as process:
            assert asyncio.run(seen(url)) == ["delete_order", "find_orders", "refund_order"]
            asyncio.run(refunds(url))
            waiting = [asyncio.run(delete(url, order)) for order in ("order-7", "order-8")]
            process.kill()  # what waits for ops is in the store, and in no process
        assert (folder / "shop.log").read_text() == "refund order-7 500\n"
        with gateway(file, port):
            for choice in ("approve", "decline"):
                decide(file, origin, "ops", choice, folder=folder, env=dict(os.environ))
            ends = [asyncio.run(ended(url, task)) for task in waiting]
            print(*ends, sep="\n")
            assert sorted(end.startswith("deleted") for end in ends) == [False, True]
        happened = (folder / "shop.log").read_text().splitlines()
        assert len(happened) == 2, happened
        assert happened[1].startswith("delete "), happened
        calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
        told = sorted((call["name"], call["outcome"]) for call in calls)
        print(*told, sep="\n")
        assert [call for call, _ in told] == ["delete_order"] * 2 + ["refund_order"] * 2
        assert "order-7" not in str(calls)  # no arguments
    return 0


if __name__ == "__main__":
    sys.exit(main())
