"""On old sessions our own servers name their asks, so that scripts answer by key there too."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.client import Client, Scripted
from tests import child_processes as processes
from tests.cli.running import spawned

TARGET = "tests.client.jobs:server"
SCRIPT = Scripted(
    first={"name": "one"}, second={"name": "two"}, verse="carpe diem", where=["/srv", "/tmp"]
)
SAID = "one and two: carpe diem, 2 roots"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"JOBS_NOTES": str(tmp_path / "notes")}


@pytest.mark.requirement("GUIDE-05")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_same_script_serves_both_eras_over_stdio(era: Any, env: dict[str, str]):
    command = processes.command(TARGET, "--stdio")
    given = processes.environment(env)
    async with Client(command, answers=SCRIPT, env=given, cwd=processes.ROOT, era=era) as client:
        assert client.era == era
        result = await client.call_tool("everything")
        assert result.content[0].text == SAID  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.requirement("GUIDE-05")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_same_script_serves_both_eras_over_http(era: Any, env: dict[str, str]):
    async with (
        processes.http_server(TARGET, env=env) as url,
        Client(url, answers=SCRIPT, era=era) as client,
    ):
        result = await client.call_tool("everything")
        assert result.content[0].text == SAID  # pyright: ignore[reportAttributeAccessIssue]
        answers = ["-a", "first.name=a", "-a", "second.name=b", "-a", "verse=hi", "-a", "where=/x"]
        ran = spawned("call", url, "everything", "--era", era, *answers)
        assert (ran.code, ran.out) == (0, "a and b: hi, 1 roots\n"), ran.err
