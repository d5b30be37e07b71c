"""Calls that an earlier release began go on with this one: its tokens open, its journals replay."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.earlier_tokens import make_server, rounds

WRITTEN = json.loads(Path(__file__).with_name("earlier_tokens.json").read_text("utf-8"))


@pytest.mark.parametrize("written", WRITTEN, ids=[f"{w['tool']} {w['asked']}" for w in WRITTEN])
async def test_a_call_of_an_earlier_release_goes_on_to_the_same_end(
    written: dict[str, Any],
) -> None:
    replies = rounds(make_server(), written["tool"], written["token"], written["asked"])
    *_, last = [reply async for reply in replies]
    assert last["content"][0]["text"] == written["text"]
