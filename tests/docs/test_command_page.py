"""docs/command-line.md is what the commands say of themselves."""

from pathlib import Path

import typer.main

from antiphon.cli.app import app
from tests.docs.commands import page

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_the_page_is_written_from_the_commands():
    assert PAGE.read_text() == page(), "run: python -m tests.docs.commands > docs/command-line.md"


def test_every_command_and_option_is_explained():
    group = typer.main.get_command(app)
    commands = group.commands  # pyright: ignore[reportAttributeAccessIssue]
    assert {"serve", "call", "resume", "tools", "demo", "keygen"} <= set(commands)
    for name, command in commands.items():
        assert command.help, name
        for parameter in command.params:
            if parameter.name != "help":
                assert parameter.help, f"{name}: {parameter.name}"
