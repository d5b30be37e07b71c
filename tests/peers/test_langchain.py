"""LangChain's client, run for real: it begins a call anew, without a token, with every answer."""

import asyncio
from pathlib import Path

import pytest

from antiphon.testing import Tally
from tests.child_processes import PATIENCE, ROOT, environment, http_server

TARGET = "tests.peers.machine_server:server"
PYTHON = ROOT / ".peers" / "langchain" / "bin" / "python"
CLIENT = ROOT / "tests" / "peers" / "langchain_client.py"


async def driven(tool: str, folder: Path) -> tuple[list[str], Tally]:
    """Let LangChain call a tool; returns the lines it printed, and what happened."""
    file = folder / "machines.txt"
    async with http_server(TARGET, env={"MACHINES": str(file)}) as url:
        process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            str(CLIENT),
            url,
            tool,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(3 * PATIENCE):
                said, wrong = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, wrong.decode()
    return said.decode().splitlines(), Tally(file)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("tool", "created"), [("provision", 1), ("provision_last", 1), ("provision_unguarded", 2)]
)
async def test_a_machine_is_created_once_where_the_author_took_care(
    tool: str, created: int, tmp_path: Path
) -> None:
    said, happened = await driven(tool, tmp_path)
    assert said == ["2", "db.eu is running."]
    assert happened.counts == {"create db": created, "start db.eu": 1}
