"""`antiphon tasks`: look at a task that a call became, answer it, wait for it, cancel it."""

from typing import Annotated

import typer

from antiphon.cli import show
from antiphon.cli.connect import connected, settings_of
from antiphon.cli.exits import say
from antiphon.cli.options import ANSWER, HEADER, JSON, NO_INPUT, SAVE, TARGET, TIMEOUT, VERBOSE
from antiphon.cli.session import Session
from antiphon.client.asks import Step
from antiphon.client.errors import ClientError, RemoteError, TaskGone
from antiphon.errors import INVALID_PARAMS


def tasks(
    target: TARGET,
    id: Annotated[str, typer.Argument(help="The task, as `antiphon call --detach` printed it.")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Ask the server to cancel it.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and ask here what it asks.")
    ] = False,
    answer: ANSWER = None,
    save: SAVE = None,
    json: JSON = False,
    header: HEADER = None,
    timeout: TIMEOUT = 30.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """Look at a task: how it stands, what it asks, or its result.

    With --answer its next question is waited for and answered.

    Exit codes: 0 completed (or told to cancel), 1 failed, cancelled or unknown, 4 not ended yet.
    """
    ask = wait and not no_input
    session = Session.start(answer, save=save, json=json, ask=ask, detach=not wait)
    settings = settings_of(header, "modern", timeout, verbose, json)
    with connected(target, settings, session.answers) as client:
        if cancel:
            try:
                client.cancel_task(id)
            except ClientError as error:
                show.failed(_unknown(error, id), json=json)
            if json:
                show.as_json("done", task={"id": id})
            else:
                say("The server was told to cancel the task.")
            return

        def look(**options: object) -> Step:
            # Answers are for a question: it is waited for.
            span = None if answer else 0.0
            return client.task(id, wait=span, on_task=session.bar.task if session.bar else None)

        code = session.run(client, look)
    raise typer.Exit(code)


def _unknown(error: ClientError, id: str) -> ClientError:
    """Say of a task that cannot be cancelled what is said of one that cannot be looked at."""
    if isinstance(error, RemoteError) and error.code == INVALID_PARAMS:
        return TaskGone(error.message, error.data, task=id)
    return error
