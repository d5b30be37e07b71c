"""docs/audit.md: its example runs, and its commands tell what happened."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from antiphon.audit import Audit
from antiphon.cli.load_server import load_server
from antiphon.integrations.audit.log import _REFUSALS_PER_MINUTE  # pyright: ignore[reportPrivateUsage]
from antiphon.testing import Rounds
from tests.cli.running import antiphon

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text()


@pytest.fixture
def till(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(ROOT / "docs_src" / "audit.py", tmp_path / "till.py"))


async def refund(till: Path) -> None:
    answers = {"refund": {"amount": 12}, "approve": {"approve": True}}
    async with Rounds(load_server(str(till))) as rounds:
        done = await rounds.call("refund", {"order": "order-4711"}, answers=answers)
        assert done.text == "paid 12 for order-4711"
        await rounds.replay(done)


def test_the_commands_of_the_page_tell_the_story_of_a_call(till: Path) -> None:
    asyncio.run(refund(till))
    exported = antiphon("audit", "export", "till.py")
    lines = [json.loads(line) for line in exported.out.splitlines()]
    assert "order-4711" not in exported.out
    shown = antiphon("calls", "show", "till.py", lines[0]["call"])
    told = [line.split("  ")[2] for line in shown.out.splitlines()[1:]]
    assert [re.sub(r"[0-9.]+ s$", "", words) for words in told] == [
        "call begun: tools/call refund by anonymous process",
        "round 1: input_required, asked refund (form), ",
        "round 2: input_required, answered refund, asked approve (form), ",
        "effect pay (pay): begun",
        "effect pay (pay): done, ",
        "round 3: complete, answered approve, ",
        "round 3: complete, a duplicate: nothing ran, answered approve, ",
    ]
    checked = antiphon("audit", "verify", "till.py")
    assert checked.out.startswith("7 records hold; the last is 7:"), checked.err
    assert antiphon("audit", "verify", "till.py", "--head", checked.out.split()[-1]).code == 0
    as_json = antiphon("calls", "show", "till.py", lines[0]["call"], "--json").json
    assert [one["kind"] for one in as_json["story"]] == [
        "call", "round", "round", "effect", "effect", "round", "round",
    ]  # fmt: skip
    assert [effect["key"] for effect in as_json["effects"]] == ["pay"]


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"at most {_REFUSALS_PER_MINUTE} a minute" in PAGE
    assert f"`keep` ({Audit().keep.days} days)" in PAGE
    assert Audit().most == 10_000_000
