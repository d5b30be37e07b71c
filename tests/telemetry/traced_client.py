"""A client that writes its spans to a file: `python -m tests.telemetry.traced_client URL URL`.

It begins a call at the first server, and resumes it at the second from what it saved.
"""

import asyncio
import sys

from opentelemetry import trace

from antiphon import Client
from antiphon.client.flow_types import PendingCall
from tests.telemetry.traced_server import spans_to_file


async def main(first: str, second: str) -> None:
    trace.set_tracer_provider(spans_to_file())
    step = await Client.step(first, PendingCall.tool("build", {}))
    saved = step.dump()
    done = await Client.step(second, saved, {"name": {"name": "orders"}})
    print(done.result.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
