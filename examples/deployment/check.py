"""Check deployments: a yes after a killed server, a no, and a task that is cancelled.

python -m examples.deployment.check
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from antiphon import Accept, Client, Step
from examples.processes import served

SERVER = Path(__file__).with_name("server.py")


async def begun(client: Client, release: str) -> Step:
    """Begin a deployment, answer where it goes, and wait until its canary runs."""
    step = await client.begin("deploy", {"service": "shop", "release": release})
    placed = await client.resume(step.dump(), {"target": Accept({"environment": "production"})})
    assert placed.task is not None
    return placed  # it was waited for until it asks


async def decided(client: Client, step: Step, yes: bool) -> str:
    """Answer what the task asks, and return its result."""
    done = await client.resume(step.dump(), {"approve": Accept({"approve": yes})})
    return done.result.content[0].text


async def first_half(url: str) -> str:
    """Begin a deployment, and put it away."""
    async with Client(url) as client:
        return (await begun(client, "1.4")).dump()


async def second_half(url: str, kept: str) -> None:
    """Decide it on another server; then a no, and a cancelled one."""
    async with Client(url) as client:
        done = await client.resume(kept, {"approve": Accept({"approve": True})})
        print(said := done.result.content[0].text)
        assert said == "shop 1.4 runs everywhere in production."
        print(said := await decided(client, await begun(client, "1.5"), yes=False))
        assert said == "shop 1.5 was rolled back."
        await client.cancel((await begun(client, "1.6")).dump())


def log_of(folder: Path, count: int) -> list[str]:
    """Wait until the cluster has had so many commands, and return them."""
    for _ in range(200):
        lines = (folder / "cluster.log").read_text().splitlines()
        if len(lines) >= count:
            return lines
        time.sleep(0.05)
    raise AssertionError(f"only {lines}")


def main() -> int:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with served(SERVER, folder, DEPLOY_DATA=name) as (url, process):
            kept = asyncio.run(first_half(url))
            process.kill()  # the task waits in the store
        with served(SERVER, folder, DEPLOY_DATA=name) as (url, _):
            asyncio.run(second_half(url, kept))
            lines = log_of(folder, 6)  # what a cancelled task undoes, a worker does
        print(*lines, sep="\n")
        assert lines == [
            "shop 1.4: 10 % of production",
            "shop 1.4: 100 % of production",
            "shop 1.5: 10 % of production",
            "shop 1.5: rolled back",
            "shop 1.6: 10 % of production",
            "shop 1.6: rolled back",
        ]
    return 0


if __name__ == "__main__":
    sys.exit(main())
