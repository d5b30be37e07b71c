"""What the README's first screen shows: it is pasted, served and called as a newcomer would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon import Accept, Client, Decline, Scripted
from docs_src import cloud
from tests.child_processes import http_server
from tests.cli.running import spawned

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PLACE = Accept({"region": "eu"})


def pasted() -> str:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_a_whole_file_and_the_readme_shows_all_of_it() -> None:
    assert pasted() == (ROOT / "docs_src" / "cloud.py").read_text("utf-8")


def test_the_first_command_installs_what_is_there() -> None:
    """A checkout before the first release, the published package after it."""
    released = re.search(r"^## \[\d", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    command = "pip install antiphon" if released else "pip install ."
    start = (ROOT / "docs" / "start.md").read_text("utf-8")
    for page in (README, start):
        block = re.search(r"```\n(.*?)\n```", page, re.DOTALL)
        assert block is not None
        assert block[1] == command


def test_the_first_page_of_the_docs_shows_the_same_example() -> None:
    start = (ROOT / "docs" / "start.md").read_text("utf-8")
    assert pasted() in start


def test_the_first_page_of_the_docs_has_tests_that_pass_when_pasted(tmp_path: Path) -> None:
    start = (ROOT / "docs" / "start.md").read_text("utf-8")
    _, tests = re.findall(r"```python\n(.*?)```", start, re.DOTALL)
    (tmp_path / "cloud.py").write_text(pasted())
    (tmp_path / "test_cloud.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "2 passed" in done.stdout, done.stdout


async def test_the_pasted_example_is_served_and_called_by_the_two_commands(tmp_path: Path) -> None:
    serve, call = "antiphon serve cloud:server", "provision name=orders"
    assert f"{serve}\nantiphon call http://127.0.0.1:8400/mcp {call}\n" in README
    (tmp_path / "cloud.py").write_text(pasted())
    async with http_server("cloud:server", env={"PYTHONPATH": str(tmp_path)}) as url:
        answers = ("-a", "placement.region=eu", "-a", "approve.approve=yes")
        ran = spawned("call", url, *call.split(), *answers)
    assert (ran.code, ran.out) == (0, "orders.eu is running.\n"), ran.err


async def test_nothing_happens_before_the_last_question_is_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Client(cloud.server, answers=Scripted(placement=PLACE, approve=Decline())) as no:
        result = await no.call_tool("provision", {"name": "db"})
    assert result.content[0].text == "Nothing was created."  # type: ignore[union-attr]
    assert capsys.readouterr().out == ""


async def test_a_client_that_starts_over_repeats_only_questions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Client(cloud.server) as client:
        step = await client.begin("provision", {"name": "db"})
        step = await client.resume(step.dump(), {"placement": PLACE})
        assert list(step.asks) == ["approve"]
        step = await client.begin("provision", {"name": "db"})
        step = await client.resume(step.dump(), {"placement": PLACE})
        step = await client.resume(step.dump(), {"approve": Accept({"approve": True})})
    assert step.result.content[0].text == "db.eu is running."  # type: ignore[union-attr]
    assert capsys.readouterr().out == "starting db.eu\n"
