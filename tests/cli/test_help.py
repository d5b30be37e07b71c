"""The help of every command, as a terminal of 80 columns shows it."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from antiphon.cli.app import app
from antiphon.cli.readable_help import use_readable_help
from antiphon.errors import ConfigError, StoreError

WIDTH = 80
LONGEST_EXAMPLE = 76
SCREEN = {"NO_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "dumb"}


def commands() -> Iterator[tuple[str, ...]]:
    """Return the words of every command and group."""
    group: Any = typer.main.get_command(app)
    yield ()
    for name, command in group.commands.items():
        yield (name,)
        for within in getattr(command, "commands", {}):
            yield name, within


COMMANDS = list(commands())
each_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@cache
def lines(words: tuple[str, ...]) -> list[str]:
    done = CliRunner(env=SCREEN).invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    return [line.rstrip() for line in done.stdout.splitlines()]


def told(words: tuple[str, ...]) -> list[str]:
    """Return what stands between the usage and the first frame."""
    shown = lines(words)
    begin = next(number for number, line in enumerate(shown) if "Usage:" in line)
    begin += shown[begin:].index("") + 1
    return shown[begin : next(n for n, line in enumerate(shown) if line.startswith("╭"))]


def paragraphs(words: tuple[str, ...]) -> list[list[str]]:
    text = "\n".join(told(words)).strip("\n")
    return [paragraph.splitlines() for paragraph in re.split(r"\n{2,}", text)]


def source(words: tuple[str, ...]) -> str:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return command.help


def examples(words: tuple[str, ...]) -> list[str]:
    _, kept, block = source(words).partition("\b\n")
    return block.rstrip().splitlines() if kept else []


def is_example(paragraph: list[str]) -> bool:
    return paragraph[0].strip() in {"Example:", "Examples:"}


def test_commands_of_every_depth_are_looked_at() -> None:
    assert {(), ("serve",), ("calls", "settle"), ("token", "inspect")} <= set(COMMANDS)


@each_command
def test_no_line_is_wider_than_the_terminal(words: tuple[str, ...]) -> None:
    assert [line for line in lines(words) if len(line) > WIDTH] == []


@each_command
def test_only_the_last_line_of_a_paragraph_is_short(words: tuple[str, ...]) -> None:
    prose = [paragraph for paragraph in paragraphs(words) if not is_example(paragraph)]
    assert prose
    short = [line for one in prose for line in one[:-1] if len(line) < WIDTH // 2]
    assert short == []
    for paragraph in prose:
        for line, following in pairwise(paragraph):
            word = following.split()[0]
            assert len(line) + 1 + len(word) > WIDTH - 1, f"{word!r} has room in {line!r}"


@each_command
def test_an_example_is_one_line_as_it_was_written(words: tuple[str, ...]) -> None:
    written = examples(words)
    assert [line for line in written if len(line) > LONGEST_EXAMPLE] == []
    assert [line for line in written if line.endswith("\\")] == [], "blanks follow it when printed"
    found = [one[1:] for one in paragraphs(words) if is_example(one)]
    assert found == ([[f" {line}" for line in written]] if written else [])


@each_command
def test_a_flag_is_shown_without_a_value(words: tuple[str, ...]) -> None:
    assert not re.search(r"<bool>|BOOLEAN", "\n".join(lines(words)))


def test_a_text_is_left_as_it_was_after_its_help() -> None:
    command: Any = typer.main.get_command(app)
    serve = command.commands["serve"]
    before = serve.help
    CliRunner(env=SCREEN).invoke(app, ["serve", "--help"])
    with serve._joined():
        assert serve.help != before
    assert serve.help == before


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (PermissionError(13, "Permission denied", "/var/x"), 1, "/var/x: Permission denied"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (ConfigError("state_bytes= must be positive"), 2, "state_bytes= must be positive"),
        (StoreError("the store failed"), 1, "the store failed"),
    ],
)
def test_what_the_machine_or_a_setting_refuses_is_one_line_in_every_command(
    error: Exception, code: int, told: str
):
    group = typer.Typer()

    @group.command()
    def one() -> None:  # pyright: ignore[reportUnusedFunction]
        raise error

    @group.command()
    def other() -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    use_readable_help(group)
    done = CliRunner(env=SCREEN).invoke(group, ["one"])
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"error: {told}\n")


def test_a_defect_of_the_program_keeps_its_traceback():
    group = typer.Typer()

    @group.command()
    def one() -> None:  # pyright: ignore[reportUnusedFunction]
        raise ZeroDivisionError

    @group.command()
    def other() -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    use_readable_help(group)
    assert isinstance(CliRunner(env=SCREEN).invoke(group, ["one"]).exception, ZeroDivisionError)
