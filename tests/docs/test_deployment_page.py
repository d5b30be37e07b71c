"""docs/deployment.md: the files that it names are there, and its commands are understood."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from antiphon.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
COMMANDS = re.findall(r"(?:^\$|`) ?antiphon ([^>`\n]+)", PAGE, re.MULTILINE)


def test_the_page_names_every_file() -> None:
    named = set(re.findall(r"`(deploy/\S+?)`", PAGE))
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "deploy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert named == there


@pytest.mark.parametrize("words", COMMANDS)
def test_a_shown_command_is_understood(words: str) -> None:
    name, *rest = shlex.split(words)
    command: Any = typer.main.get_command(app).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    assert command.make_context(name, rest) is not None


def test_commands_were_found() -> None:
    assert len(COMMANDS) == 3
