"""The page on hosts says what its script sees, in those clients that are quick to drive."""

import pytest

from peers.hosts.__main__ import CLIENTS, approval, see
from tests.child_processes import ROOT

PAGE = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
async def test_the_page_shows_what_the_official_clients_see() -> None:
    seen = await see([host for host in CLIENTS if host.name.startswith("official")])
    for one in seen:
        assert one.mute is not None
        row = (
            f"| {one.host.name} | {one.asks['version']} | {one.asks['protocol']} | two questions: "
        )
        assert row + one.asks["calls"]["refund"] in PAGE
        for said in (*one.mute["calls"].values(), one.asks["calls"]["migrate"]):
            assert said.partition(": ")[2] in PAGE
    assert f"\n```\n{approval(seen)}\n```\n" in PAGE


def test_every_client_of_the_script_has_a_row() -> None:
    assert [host.name for host in CLIENTS if f"\n| {host.name} | " not in PAGE] == []
