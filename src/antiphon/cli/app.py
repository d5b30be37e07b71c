"""The command tree and the entry point. Commands load what they need when they run.

`antiphon --help` and shell completion import neither the official SDK nor a server.
"""

import sys
from typing import Annotated

import typer

from antiphon import __version__
from antiphon.cli import call, calls, demo, keygen, serve, tasks, token, tools, worker

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
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """MCP servers and clients whose calls take several round trips."""


app.command()(serve.serve)
app.command()(worker.worker)
app.command()(call.call)
app.command()(call.resume)
app.command()(tasks.tasks)
app.command()(tools.tools)
app.command()(demo.demo)
app.add_typer(calls.calls, name="calls")
app.command()(keygen.keygen)
app.add_typer(token.token, name="token")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
