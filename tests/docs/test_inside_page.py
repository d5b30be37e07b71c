"""docs/inside-other-servers.md: what it shows runs, in both frameworks."""

import os
from pathlib import Path
from typing import Any

import pytest

from antiphon import Accept, Client, Scripted, Server
from docs_src import inside_mcp_server
from tests.client.programs import ENVIRONMENT, ROOT
from tests.ext.hosts import PYTHONS

PLACE = Accept({"region": "eu"})
YES = Accept({"approve": True})


def said(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_our_tools_beside_those_of_the_official_server(
    era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside_mcp_server.created.clear()
    answers = Scripted(place=PLACE, approve=YES)
    async with Client(inside_mcp_server.server, answers=answers, era=era) as client:
        assert {tool.name for tool in await client.list_tools()} == {"provision", "add"}
        assert said(await client.call_tool("provision", {"name": "db"})) == "started"
        assert said(await client.call_tool("add", {"a": 1, "b": 2})) == "3"
        text: Any = (await client.get_prompt("report")).messages[0].content
        assert text.text == "Report on eu."
    assert inside_mcp_server.created == ["db.eu"]


async def test_a_server_of_ours_that_exists_already() -> None:
    cloud = Server("cloud")

    @cloud.tool
    def hello() -> str:
        """Greet."""
        return "hello"

    async with Client(inside_mcp_server.with_settings_of_your_own(cloud)) as client:
        assert said(await client.call_tool("hello")) == "hello"


async def test_our_tools_in_fastmcp(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [PYTHONS["fastmcp"], "-m", "docs_src.inside_fastmcp"]
    environment = {**ENVIRONMENT, "PYTHONPATH": paths}
    answers = Scripted(place=PLACE, approve=YES)
    options: Any = {"env": environment, "cwd": tmp_path, "connect": 50.0, "probe": 40.0}
    async with Client(command, answers=answers, **options) as client:
        assert said(await client.call_tool("provision", {"name": "db"})) == "started"
