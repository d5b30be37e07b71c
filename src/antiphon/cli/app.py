"""The tree of commands and the entry point.

Commands import the official SDK and what runs servers when they run, so that `--help` and shell
completion stay fast.
"""

import sys
from typing import Annotated

import typer

from antiphon import __version__
from antiphon.cli import call, demo, read_prompt, serve, tasks, token, tools
from antiphon.cli.authoring import dev, install, new, try_tool
from antiphon.cli.gateways.command import gateway
from antiphon.cli.login import commands as login
from antiphon.cli.operating import audit, calls, checks, inbox
from antiphon.cli.readable_help import ReadableGroup, use_readable_help

app: typer.Typer = typer.Typer(
    name="antiphon",
    cls=ReadableGroup,
    help="MCP servers and clients whose calls take several round trips.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",  # not the default of every release of Typer
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
app.command()(gateway)
app.command()(call.call)
app.command()(call.resume)
app.command()(login.logout)
app.command()(tasks.tasks)
app.command()(tools.tools)
app.command()(read_prompt.read)
app.command()(read_prompt.prompt)
app.command()(checks.lint)
app.command()(checks.doctor)
app.command("try")(try_tool.try_tool)
app.command()(demo.demo)
app.add_typer(calls.calls, name="calls")
app.add_typer(inbox.inbox, name="inbox")
app.add_typer(audit.audit, name="audit")
app.command()(inbox.console)
app.command()(token.keygen)
app.add_typer(token.token, name="token")
use_readable_help(app)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
