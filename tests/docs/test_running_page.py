"""docs/running.md: its nginx configuration is the one that tests run, and its commands exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from antiphon.cli.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "running.md").read_text()
COMMANDS = re.findall(r"^\$ antiphon (.+)$", PAGE, re.MULTILINE)


def test_the_configuration_is_the_one_that_is_run() -> None:
    (shown,) = re.findall(r"<!-- from docs_src/nginx.conf -->\n```nginx\n(.*?)```", PAGE, re.DOTALL)
    assert shown == (ROOT / "docs_src" / "nginx.conf").read_text()


@pytest.mark.parametrize("words", COMMANDS)
def test_a_shown_command_is_understood(words: str) -> None:
    name, *rest = shlex.split(words)
    command: Any = typer.main.get_command(app).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    if hasattr(command, "commands"):
        within = rest.pop(0) if rest[0] in command.commands else "list"
        command = command.commands[within]
    # Raises what a person would be told: an unknown option, a missing word.
    assert command.make_context(name, rest).params


def test_commands_were_found() -> None:
    assert len(COMMANDS) >= 6
