"""`antiphon token inspect`: claims and keys for an operator, answers only when asked for."""

import json
import shlex
from pathlib import Path

import pytest

from antiphon.cli.token import REFUSED
from antiphon.seal.keyring import generate_key
from tests.cli.running import ANTIPHON, Ran, antiphon, spawned

MODULE = """
from antiphon import Context, Server

server = Server("asked", version="1")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool
async def greet(ctx: Context) -> str:
    who = await ctx.elicit("Who?", FORM, key="who")
    again = await ctx.elicit("Again?", FORM, key="again")
    return f"{who['name']} {again['name']}"
"""


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token of a call that has learned one answer."""
    monkeypatch.setenv("ANTIPHON_KEYS", generate_key())
    (tmp_path / "house.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    command = shlex.join([*ANTIPHON, "serve", "house:server", "--stdio"])
    words = ["greet", "-a", "who.name=Lovelace", "--save", "call.json", "--env", "ANTIPHON_KEYS"]
    ran = spawned("call", command, *words)
    assert ran.code == 4, ran.err
    return json.loads((tmp_path / "call.json").read_text())["token"]


def inspected(token: str, *options: str) -> Ran:
    return antiphon("token", "inspect", *options, "--", token)


def test_claims_and_keys_are_shown_and_answers_only_when_asked_for(sealed: str):
    ran = inspected(sealed)
    assert ran.code == 0, ran.err
    assert (ran.json["target"], ran.json["round"]) == ("greet", 3)
    assert ran.json["journal"] == [{"kind": "ask", "key": "who"}]
    assert ran.json["pending"] == [{"key": "again", "kind": "form"}]
    assert "Lovelace" not in ran.out
    assert "Lovelace" in inspected(sealed, "--reveal").out


def test_a_token_of_other_keys_or_none_is_refused_with_one_text(
    sealed: str, monkeypatch: pytest.MonkeyPatch
):
    damaged = ("B" if sealed[0] == "A" else "A") + sealed[1:]
    assert inspected(damaged) == inspected("nonsense") == Ran(1, "", f"error: {REFUSED}\n")
    monkeypatch.setenv("ANTIPHON_KEYS", generate_key())
    assert inspected(sealed) == Ran(1, "", f"error: {REFUSED}\n")
    monkeypatch.delenv("ANTIPHON_KEYS")
    assert (inspected(sealed).code, "ANTIPHON_KEYS" in inspected(sealed).err) == (2, True)
