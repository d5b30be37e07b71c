"""Check the travel desk: three steps, a killed server, and a payment that nobody else can make.

python -m examples.travel.check
"""

import asyncio
import socket
import sys
import tempfile
from pathlib import Path

import httpx

from antiphon import Accept, Client, Step
from examples.processes import Process

ROOT = Path(__file__).resolve().parents[2]
PAULA = {"authorization": "Bearer paula"}
MALLORY = {"authorization": "Bearer mallory"}
ANSWERS = {
    "where": Accept({"city": "Porto"}),
    "when": Accept({"start": "2027-05-01", "nights": 3}),
    "how": Accept({"hotel": "fine"}),
}


async def to_the_bill(url: str) -> tuple[str, str]:
    """Answer the three steps; return the waiting call and the address of the page."""
    async with Client(f"{url}/mcp", headers=PAULA) as client:
        step = await client.begin("plan_trip")
        while not (step.asks.keys() & {"url"}):
            step = await client.resume(step.dump(), {key: ANSWERS[key] for key in step.asks})
        return step.dump(), step.asks["url"].url  # pyright: ignore[reportAttributeAccessIssue]


async def paid(url: str, kept: str) -> Step:
    """Say that the page was opened, and wait until the payment has arrived."""
    async with Client(f"{url}/mcp", headers=PAULA) as client:
        return await client.resume(kept, {"url": Accept()})


def serve(port: int, folder: str) -> Process:
    """Serve the application with uvicorn, as any other."""
    words = [sys.executable, "-m", "uvicorn", "examples.travel.server:app", "--port", str(port)]
    process = Process(
        words, ROOT, {"TRAVEL_DATA": folder, "TRAVEL_URL": f"http://127.0.0.1:{port}"}
    )
    assert process.port == port
    return process


def main() -> int:
    """Tell the story."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        process = serve(port, folder)
        try:
            kept, page = asyncio.run(to_the_bill(url))
            assert httpx.post(page, headers=MALLORY).status_code == 403
            assert httpx.post(page).status_code == 403
            process.kill()
            process = serve(port, folder)
            assert httpx.post(page, headers=PAULA).status_code == 200
            step = asyncio.run(paid(url, kept))
            while not step.done:  # rounds that only look whether the payment has arrived
                step = asyncio.run(paid(url, step.dump()))
            print(said := step.result.content[0].text)
            assert said == "Booked: 3 nights in Porto from 2027-05-01, paid 420 EUR."
        finally:
            process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
