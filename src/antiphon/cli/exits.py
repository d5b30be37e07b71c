"""Exit codes and how a command ends early. Knows no command."""

from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from antiphon.core.text import escape

DONE = 0
FAILED = 1
"""The tool reported an error, or the call could not be made."""

USAGE = 2
REFUSED = 3
"""A person said no."""

WAITING = 4
"""The call waits: it was saved, or it is a task that the server keeps."""


def errors() -> Console:
    """Give the console for people; what scripts read goes to standard output."""
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Tell people one line, unbroken: what is to be copied from it stays whole."""
    errors().print(Text(escape(text)), soft_wrap=True)


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Say what is wrong and leave."""
    errors().print(Text("error: ", style="bold red"), Text(escape(message)), sep="", soft_wrap=True)
    raise typer.Exit(code)
