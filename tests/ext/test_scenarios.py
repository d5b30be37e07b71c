"""Every scenario in `MCPServer` and in FastMCP; the latter in an environment of its own."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.child_processes import named_in
from tests.client.programs import ENVIRONMENT, ROOT
from tests.ext.hosts import PYTHONS
from tests.ext.scenarios import SCENARIOS
from tests.ext.sdk_hosting import SdkHosting

PROGRAM = Path(__file__).resolve().parent / "peers" / "fastmcp_scenarios.py"
OF_FASTMCP = re.findall(r"@scenario\nasync def (\w+)", PROGRAM.read_text("utf-8"))


@pytest.mark.parametrize("name", list(SCENARIOS))
async def test_in_the_official_server(name: str):
    async with asyncio.timeout(45):
        await SCENARIOS[name](SdkHosting())


@pytest.fixture(scope="module")
def in_fastmcp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Play every scenario in one process; gives what went wrong with each."""
    # The client says its version, which it reads where packages are described.
    described = named_in(tmp_path_factory.mktemp("described"))
    paths = [str(ROOT), str(ROOT / "src"), str(described)]
    own = {name: one for name, one in os.environ.items() if not name.startswith("ANTIPHON_")}
    done = subprocess.run(
        [PYTHONS["fastmcp"], str(PROGRAM)],
        env={**own, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [*SCENARIOS, *OF_FASTMCP])
def test_in_fastmcp(in_fastmcp: dict[str, str | None], name: str):
    assert in_fastmcp[name] is None, in_fastmcp[name]
