"""The classes of commands and groups: readable help and errors, and a command by default.

Typer keeps the lines of a docstring after its first paragraph, and wraps each of them again where
the terminal is narrower than the source. Here the lines of a paragraph are joined before they are
wrapped; examples, which stand below a line with `\\b` as in every program with Click, are kept.
"""

import errno
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer import core

from antiphon.cli.output import USAGE, fail
from antiphon.errors import AntiphonError, ConfigError

KEPT = "\b"
"""Begins a paragraph whose lines are kept."""


class _ReadableHelp:
    """Prints prose in paragraphs, and flags without a type: they take no value."""

    help: str | None
    rich_markup_mode: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        parent: Any = super()
        for option in self.get_params(ctx):
            if isinstance(option, core.TyperOption) and option.is_flag and not option.metavar:
                option.metavar = ""
        with self._joined():
            parent.format_help(ctx, formatter)

    def get_params(self, ctx: Any) -> list[Any]:
        parent: Any = super()
        return parent.get_params(ctx)

    @contextmanager
    def _joined(self) -> Generator[None]:
        text = self.help
        # Without Rich (TYPER_USE_RICH=0) the paragraphs are joined by Click.
        if text and self.rich_markup_mode is not None and core.HAS_RICH:
            self.help = joined(text)
        try:
            yield
        finally:
            self.help = text


class ReadableCommand(_ReadableHelp, core.TyperCommand):
    """A command whose help fits the terminal, and whose errors are one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what the machine or a setting refuses is no defect of the program."""
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            fail(str(error), USAGE)
        except AntiphonError as error:
            fail(str(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever read the output has gone
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}")


class ReadableGroup(_ReadableHelp, core.TyperGroup):
    """A group of commands whose help fits the terminal."""


def default_command(name: str) -> type[ReadableGroup]:
    """Return a group that runs the command of this name where none of its commands is named.

    `antiphon calls STORE` lists calls.
    """

    class WithDefault(ReadableGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in {*self.commands, "--help"}:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return WithDefault


def use_readable_help(app: typer.Typer) -> None:
    """Give every command of an app, and of its groups, help that fits the terminal."""
    for command in app.registered_commands:
        command.cls = ReadableCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_readable_help(group.typer_instance)


def joined(text: str) -> str:
    """Return a help text with each paragraph in one line, for Rich to wrap; examples are kept."""
    told = ""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(KEPT):
            # The tag keeps Typer from taking away the indentation; the text around is dim as well.
            told += f"\n[dim]{paragraph.removeprefix(KEPT).strip(chr(10))}[/dim]"
        else:
            told += "\n\n" + " ".join(paragraph.split())
    return told.strip()
