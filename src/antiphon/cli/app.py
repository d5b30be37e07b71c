"""The tree of commands and the entry point.

Commands import the official SDK and what runs servers when they run, so that `--help` and shell
completion stay fast.
"""

import sys
from typing import Annotated

import typer

from antiphon import __version__
from antiphon.cli import call, calls, console, demo, inbox, lint, serve, tasks, token, tools
from antiphon.cli.authoring import dev, install, new

app = typer.Typer(
    name="antiphon",
    help="MCP servers and clients whose calls take several round trips.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """MCP servers and clients whose calls take several round trips."""


app.command()(new.new)
app.command()(dev.dev)
app.command()(install.install)
app.command()(serve.serve)
app.command()(serve.worker)
app.command()(call.call)
app.command()(call.resume)
app.command()(tasks.tasks)
app.command()(tools.tools)
app.command()(lint.lint)
app.command()(demo.demo)
app.add_typer(calls.calls, name="calls")
app.add_typer(inbox.inbox, name="inbox")
app.command()(console.console)
app.command()(token.keygen)
app.add_typer(token.token, name="token")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
