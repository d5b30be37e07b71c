"""What commands print, and how they exit: results for people, one JSON object for scripts.

Owns the exit codes and the two streams: results go to standard output, messages to standard error.
"""

import asyncio
import json
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from antiphon.client.asks import AnyAsk, FormAsk, RootsAsk, SampleAsk, UrlAsk
from antiphon.client.errors import (
    AbilityMissing,
    CallTimeout,
    ClientError,
    StateRefused,
    TaskGone,
    Unanswered,
)
from antiphon.client.read_asks import MAX_ID, Task
from antiphon.errors import AntiphonError, ConfigError
from antiphon.protocol.text import escape, safe, safe_line
from antiphon.protocol.web_url import MAX_URL

_T = TypeVar("_T")

DONE = 0
FAILED = 1
"""The tool reported an error, or the call could not be made."""

USAGE = 2
REFUSED = 3
"""A person declined or cancelled."""

WAITING = 4
"""The call has not ended: it was saved, or it is a task on the server."""

JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")]


_NAMES = 30
"""Of tools, prompts or resources that stand in a message."""


def errors() -> Console:
    """Return the console on standard error; what scripts read goes to standard output."""
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a message without breaking the line, so that commands in it can be copied."""
    errors().print(Text(escape(text)), soft_wrap=True)


def run_or_fail(work: Coroutine[Any, Any, _T]) -> _T:
    """Run what a command does; an error of ours ends the command with its text."""
    try:
        return asyncio.run(work)
    except ConfigError as error:
        fail(str(error), USAGE)
    except AntiphonError as error:
        fail(str(error))


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print what is wrong and exit."""
    errors().print(Text("error: ", style="bold red"), Text(escape(message)), sep="", soft_wrap=True)
    raise typer.Exit(code)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Return that a server does not have what was named, and what it has."""
    names = list(known)
    if not names:
        return f"the server has no {kind}s"
    close = get_close_matches(name, names, 1)
    meant = f" Did you mean {safe_line(close[0], 200)!r}?" if close and len(names) > 1 else ""
    return f"the server has no {kind} {name!r}; it has: {list_names(names)}.{meant}"


def list_names(names: Sequence[str]) -> str:
    """Return the first of several names, and how many more there are."""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(safe_line(name, 200) for name in names[:_NAMES]) + more


def as_json(outcome: str, **members: Any) -> None:
    """Print the one JSON object of `--json`."""
    print(json.dumps({"outcome": outcome, **members}, ensure_ascii=True))


def failed(error: ClientError, *, json: bool, code: int = FAILED) -> NoReturn:
    """Print why a command failed, for scripts and for people, and exit."""
    message = _for_people(error)
    if json:
        as_json("failed", error={"type": type(error).__name__, "message": message})
    fail(message, code)


def _for_people(error: ClientError) -> str:
    """Return an error with its cure in the words of the command line."""
    match error:
        case TaskGone():
            cure = "Check the id, or call the tool again."
        case StateRefused():
            cure = "Start over: antiphon resume FILE --restart, or call the tool again."
        case Unanswered():
            cure = "Answer with --answer, or save the call with --save FILE."
        case CallTimeout(bound="reply"):
            cure = "Raise --timeout; with --save FILE the call can be resumed."
        case CallTimeout():
            cure = "With --save FILE the call can be resumed."
        case AbilityMissing():
            cure = _how_to_enable(error.names)
        case _:
            return str(error)
    return f"{error.what}. {cure}"


_ENABLED_BY = {
    "roots": "--answer roots=/a/folder",
    "sampling": "--answer sample=TEXT",
    "elicitation": "--answer KEY.FIELD=VALUE",
}


def _how_to_enable(names: Iterable[str]) -> str:
    options = [_ENABLED_BY[name] for name in _ENABLED_BY if any(n.startswith(name) for n in names)]
    if not options:
        return "The command line does not have it."
    return f"Answer with {' and '.join(options)}, or answer later with --save FILE."


def result(dumped: Mapping[str, Any]) -> None:
    """Print a result for a person: texts as they are, the rest by name."""
    console = Console(highlight=False, soft_wrap=True)
    for block in cast("list[dict[str, Any]]", dumped.get("content") or []):
        console.print(_block(block))
    if not dumped.get("content") and "structuredContent" in dumped:
        structured = json.dumps(dumped["structuredContent"], ensure_ascii=False, indent=2)
        console.print(Text(escape(structured)))
    for message in cast("list[dict[str, Any]]", dumped.get("messages") or []):
        console.print(Text(f"{safe_line(str(message.get('role')), 40)}:", style="bold"))
        console.print(_block(message.get("content") or {}))
    for content in cast("list[dict[str, Any]]", dumped.get("contents") or []):
        console.print(_block({"type": "resource", "resource": content}))


def _block(block: Mapping[str, Any]) -> Text:
    """Return a block of content for a person."""
    match block:
        case {"type": "text", "text": str(text)} | {"resource": {"text": str(text)}}:
            return Text(escape(text))
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return Text(f"({kind}, {len(data) * 3 // 4:,} bytes; --json shows it)")
        case {"resource": {"blob": str(data)}}:
            return Text(f"(binary, {len(data) * 3 // 4:,} bytes; --json shows it)")
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(escape(uri))
        case _:
            return Text(f"({safe(str(block.get('type')), 40)}; --json shows it)")


def asks_json(asks: Mapping[str, AnyAsk]) -> dict[str, Any]:
    """Return the open questions as plain data."""
    return {key: _ask_json(ask) for key, ask in asks.items()}


def _ask_json(ask: AnyAsk) -> dict[str, Any]:
    match ask:
        case FormAsk():
            return {"kind": ask.kind, "message": ask.message, "schema": ask.schema}
        case UrlAsk():
            return {"kind": ask.kind, "message": ask.message, "url": ask.url}
        case _:
            return {"kind": ask.kind}


def open_asks(asks: Mapping[str, AnyAsk]) -> None:
    """Say what is asked and how to answer it on the command line."""
    console = errors()
    for key, ask in asks.items():
        name = safe_line(key, 200)
        match ask:
            case FormAsk():
                message, how = ask.message, _form_options(key, ask.schema)
            case UrlAsk():
                how = [safe_line(ask.url, MAX_URL), f"--answer {name}=accept|decline"]
                message = ask.message
            case RootsAsk():
                message, how = "which folders may be used?", [f"--answer {name}=/a/folder"]
            case SampleAsk():
                message, how = _last_text(ask), [f"--answer {name}=TEXT"]
        # Only the first line of a message stands at the margin: none can pass for an option.
        lines = safe(message, 500).splitlines() or [""]
        console.print(Text(f"  {name}: {lines[0]}"), soft_wrap=True)
        for line in lines[1:]:
            console.print(Text(f"    | {line}"), soft_wrap=True)
        for line in how:
            console.print(Text(f"    {line}"), soft_wrap=True)


def _last_text(ask: SampleAsk) -> str:
    """Return the last text of the conversation that a completion is wanted for."""
    match ask.messages[-1:]:
        case [{"content": {"type": "text", "text": str(text)}}]:
            return f"a completion of: {text}"
        case _:
            return "a completion"


def _form_options(key: str, schema: Mapping[str, Any]) -> list[str]:
    """Return one `--answer` option for each field of a form."""
    required = schema.get("required") or ()
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    options: list[str] = []
    for name, field in properties.items():
        choices: list[str] = field.get("enum") or []
        values = "|".join(map(str, choices)) or str(field.get("type", ""))
        note = "" if name in required else " (optional)"
        options.append(safe_line(f"--answer {key}.{name}=<{values}>{note}", 296))
    return options


def task_json(shown: Task) -> dict[str, Any]:
    """Return a task as plain data."""
    about: dict[str, Any] = {"id": shown.id, "status": shown.status, "message": shown.message}
    times = {"created": shown.created, "updated": shown.updated, "ttl": shown.ttl}
    return {**about, **{name: value for name, value in times.items() if value not in ("", None)}}


def task(shown: Task) -> None:
    """Print the id on standard output and the status on standard error."""
    print(safe_line(shown.id, MAX_ID))
    message = f": {safe_line(shown.message, 500)}" if shown.message else ""
    errors().print(Text(f"The task is {status_words(shown.status)}{message}"), soft_wrap=True)


def status_words(status: str) -> str:
    """Return the status of a task in words."""
    return "waiting for answers" if status == "input_required" else status


def age(since: float) -> str:
    """Return the time since a moment in one unit: "5 min"."""
    seconds = max(datetime.now(UTC).timestamp() - since, 0.0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


_STATUS = 400
"""Characters of a status message that stands on a line."""


class Bar:
    """A progress bar, shown from the first report on, on a terminal only.

    Elsewhere each new status message of a task is a line, so that nobody waits in silence.
    """

    def __init__(self, progress: Progress) -> None:
        """Take the display of progress."""
        self._progress = progress
        self._task: TaskID | None = None
        self._total: float | None = None
        self._status = ""

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        """Show a report of progress."""
        self._show(message or "", done, total)

    def task(self, shown: Task) -> None:
        """Show the status message of a task; how far it is, nobody says."""
        status = shown.message or status_words(shown.status)
        if self._progress.console.is_terminal:
            self._show(status, 0.0, None)
        elif status != self._status:
            self._status = status
            say(f"The task: {safe_line(status, _STATUS)}")

    def _show(self, message: str, done: float, total: float | None) -> None:
        words = safe_line(message, 60)
        if (total is None) != (self._total is None):
            self.pause()  # a known total cannot become an unknown one
        self._total = total
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(words, total=total)
        self._progress.update(self._task, completed=done, total=total, description=words)

    def pause(self) -> None:
        """Clear the bar, so that something else can be shown."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.stop()
            self._task = None


@contextmanager
def bar() -> Generator[Bar]:
    """Show progress on standard error."""
    console = errors()
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(text_format_no_percentage=""),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    shown = Bar(progress)
    try:
        yield shown
    finally:
        shown.pause()
