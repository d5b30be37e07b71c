"""`antiphon tasks`: list the tasks that calls became; show, answer, await or cancel one of them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from antiphon.cli import begun_tasks, output
from antiphon.cli.begun_tasks import BegunTask
from antiphon.cli.connect import (
    ENV,
    HEADER,
    TARGET,
    TIMEOUT,
    VERBOSE,
    connected,
    read_named,
    settings_of,
)
from antiphon.cli.output import JSON, USAGE, fail, say
from antiphon.cli.session import ANSWER, NO_INPUT, SAVE, CallSession
from antiphon.client.asks import Step
from antiphon.client.errors import (
    ClientError,
    RemoteError,
    TaskCancelled,
    TaskExpired,
    TaskGone,
)
from antiphon.client.read_asks import MAX_ID
from antiphon.errors import INVALID_PARAMS
from antiphon.protocol.text import safe_line

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient

ID = Annotated[
    str,
    typer.Argument(
        metavar="[ID]",
        help="The task, as `antiphon call --detach` printed it, or the beginning of its id.",
    ),
]
CANCEL = Annotated[bool, typer.Option("--cancel", help="Ask the server to cancel it.")]
WAIT = Annotated[
    bool, typer.Option("--wait", help="Wait for its end; ask its questions at the terminal.")
]

FOR = Annotated[
    float,
    typer.Option(
        "--for",
        metavar="SECONDS",
        min=0.0,
        help="With --wait: at most so long, then exit with 4; 0 waits without limit.",
    ),
]
SHORTEST = 4
"""Characters of an id that are enough to find it, if only one begins with them."""


def tasks(
    target: TARGET,
    id: ID = "",
    cancel: CANCEL = False,
    wait: WAIT = False,
    wait_for: FOR = 300.0,
    answer: ANSWER = None,
    save: SAVE = None,
    json: JSON = False,
    header: HEADER = None,
    env: ENV = None,
    timeout: TIMEOUT = 30.0,
    no_input: NO_INPUT = False,
    verbose: VERBOSE = False,
) -> None:
    """List your tasks on a server, or show one: its status, its open questions, or its result.

    Without an id, the tasks that your `antiphon call` began there and that have not ended are
    listed. The protocol has no list of tasks, so those that other programs began are not known.

    With --answer the command waits for the next question and answers it. Waiting ends after
    --for SECONDS; the task continues on the server.

    Exit codes: 0 completed (or listed, or cancelling), 1 failed, cancelled or unknown, 4 not ended.

    Examples:

    \b
      antiphon tasks http://127.0.0.1:8400/mcp
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --wait
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... -a approve.approve=yes
      antiphon tasks http://127.0.0.1:8400/mcp 5f0c... --cancel
    """
    if not id and (cancel or wait or answer or save):
        fail("--cancel, --wait, --answer and --save need the id of a task", USAGE)
    where = read_named(target, json=json)
    ask = wait and not no_input
    session = CallSession.start(
        answer,
        save=save,
        json=json,
        ask=ask,
        detach=not wait,
        of_task=True,
        patience=wait_for or None,
    )
    settings = settings_of(header, env, "modern", timeout, verbose, json)
    # Without an answerer each request declares every kind of question. The latest request about a
    # task says what it may ask, so that a look must not declare less than a later answer needs.
    with connected(where, settings, None) as client:
        if not id:
            _list(client, json=json)
            return
        whole = _whole_id(client, id)
        if cancel:
            _cancel(client, whole, json=json)
            return

        def look(**options: object) -> Step:
            # With answers, wait for the question that they are for.
            span = (wait_for or None) if answer else 0.0
            return client.task(whole, wait=span, on_task=session.bar.task if session.bar else None)

        code = session.run(client, look)
    raise typer.Exit(code)


def _whole_id(client: "BlockingClient", id: str) -> str:
    """Return the id of the one task of this command line that begins so; else what was typed."""
    begun = begun_tasks.begun_at(client.client.target, begun_tasks.folder())
    found = [one for one in begun if one.id.startswith(id)]
    if len(id) < SHORTEST or not found or any(one.id == id for one in found):
        return id
    if len(found) > 1:
        shown = ", ".join(f"{safe_line(one.id, MAX_ID)} ({one.tool})" for one in found)
        fail(f"several tasks begin with {id!r}: {shown}. Type more of the id.", USAGE)
    return found[0].id


def _cancel(client: "BlockingClient", id: str, *, json: bool) -> None:
    try:
        client.cancel_task(id)
    except ClientError as error:
        output.failed(_unknown(error, id), json=json)
    if json:
        output.as_json("done", task={"id": id})
    else:
        say("The server is cancelling the task.")


def _list(client: "BlockingClient", *, json: bool) -> None:
    target = client.client.target
    found: list[tuple[BegunTask, dict[str, Any]]] = []
    for begun in begun_tasks.begun_at(target, begun_tasks.folder()):
        shown = _looked_up(client, begun, json=json)
        if shown is None:
            begun_tasks.forget(target, begun.id, begun_tasks.folder())
        else:
            found.append((begun, shown))
    if json:
        output.as_json("done", tasks=[{"tool": begun.tool, **shown} for begun, shown in found])
    elif not found:
        say("None of your tasks on this server is known here and has not ended.")
    else:
        _table(found)


def _looked_up(client: "BlockingClient", begun: BegunTask, *, json: bool) -> dict[str, Any] | None:
    """Return how a task stands; None if it has ended without a result, or is unknown."""
    try:
        step = client.task(begun.id)
    except (TaskGone, TaskCancelled, TaskExpired):
        return None
    except RemoteError as error:
        return {"id": begun.id, "status": "failed", "message": error.message}
    except ClientError as error:
        output.failed(error, json=json)
    assert step.task is not None
    shown = output.task_json(step.task)
    return {**shown, "status": "completed"} if step.done else shown


def _table(found: list[tuple[BegunTask, dict[str, Any]]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    longest = min(max(len(begun.id) for begun, _ in found), MAX_ID)
    whole = Column("task", no_wrap=True, min_width=longest)  # an id is copied
    table = Table(whole, "tool", "status", "age", "message")
    for begun, shown in found:
        table.add_row(
            Text(safe_line(begun.id, MAX_ID), style="bold"),
            Text(safe_line(begun.tool, 128)),
            Text(output.status_words(shown["status"])),
            Text(output.age(begun.began)),
            Text(safe_line(shown.get("message") or "", 200)),
        )
    console.print(table)


def _unknown(error: ClientError, id: str) -> ClientError:
    """Report an unknown task alike whether it is shown or cancelled."""
    if isinstance(error, RemoteError) and error.code == INVALID_PARAMS:
        return TaskGone(error.message, error.data, task=id)
    return error
