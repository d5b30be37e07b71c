"""`antiphon tasks`: show the task that a call became, answer it, wait for it, cancel it."""

from typing import Annotated

import typer

from antiphon.cli import output
from antiphon.cli.connect import HEADER, TARGET, TIMEOUT, VERBOSE, connected, settings_of
from antiphon.cli.output import JSON, say
from antiphon.cli.session import ANSWER, NO_INPUT, SAVE, CallSession
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, RemoteError, TaskGone
from antiphon.errors import INVALID_PARAMS


def tasks(
    target: TARGET,
    id: Annotated[str, typer.Argument(help="The task, as `antiphon call --detach` printed it.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Ask the server to cancel it.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end; ask its questions at the terminal.")
    ] = False,
    answer: ANSWER = None,
    save: SAVE = None,
    json: JSON = False,
    header: HEADER = None,
    timeout: TIMEOUT = 30.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Show the status of a task, its open questions, or its result.

    With --answer the command waits for the next question and answers it.

    Exit codes: 0 completed (or cancelling), 1 failed, cancelled or unknown, 4 not ended yet.

    Examples:

    \b
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c...
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --wait
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --answer approve.approve=yes
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --cancel
    """
    ask = wait and not no_input
    session = CallSession.start(answer, save=save, json=json, ask=ask, detach=not wait)
    settings = settings_of(header, "modern", timeout, verbose, json)
    with connected(target, settings, session.answers) as client:
        if cancel:
            try:
                client.cancel_task(id)
            except ClientError as error:
                output.failed(_unknown(error, id), json=json)
            if json:
                output.as_json("done", task={"id": id})
            else:
                say("The server is cancelling the task.")
            return

        def look(**options: object) -> Step:
            # With answers, wait for the question that they are for.
            span = None if answer else 0.0
            return client.task(id, wait=span, on_task=session.bar.task if session.bar else None)

        code = session.run(client, look)
    raise typer.Exit(code)


def _unknown(error: ClientError, id: str) -> ClientError:
    """Report an unknown task alike whether it is shown or cancelled."""
    if isinstance(error, RemoteError) and error.code == INVALID_PARAMS:
        return TaskGone(error.message, error.data, task=id)
    return error
