"""What commands print: results for people, one JSON object for scripts. Decides nothing."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from antiphon.cli.exits import FAILED, errors, fail
from antiphon.client.asks import AnyAsk
from antiphon.client.errors import ClientError, StateRefused, TaskGone
from antiphon.client.read_asks import MAX_ID, Task
from antiphon.core.text import escape, safe


def as_json(outcome: str, **members: Any) -> None:
    """Print the one object of `--json`."""
    print(json.dumps({"outcome": outcome, **members}, ensure_ascii=True))


def failed(error: ClientError, *, json: bool, code: int = FAILED) -> NoReturn:
    """Say why a command failed, to scripts and to people, and leave."""
    message = _for_people(error)
    if json:
        as_json("failed", error={"type": type(error).__name__, "message": message})
    fail(message, code)


def _for_people(error: ClientError) -> str:
    """Name the cure as a command where the library's error names a method."""
    text = str(error)
    if isinstance(error, TaskGone):
        return text.partition(" Start over:")[0] + " Check the id, or call the tool again."
    if isinstance(error, StateRefused):
        return (
            text.partition(" Start over:")[0]
            + " Start over: antiphon resume FILE --restart, or call the tool again."
        )
    return text


def result(dumped: Mapping[str, Any]) -> None:
    """Print a result for a person: texts as they are, the rest by name."""
    console = Console(highlight=False, soft_wrap=True)
    blocks: list[dict[str, Any]] = dumped.get("content") or []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                console.print(Text(escape(text)))
            case {"type": "image" | "audio" as kind, "data": str(data)}:
                console.print(Text(f"({kind}, {len(data) * 3 // 4:,} bytes; --json shows it)"))
            case {"type": "resource_link", "uri": str(uri)}:
                console.print(Text(escape(uri)))
            case {"type": "resource", "resource": {"text": str(text)}}:
                console.print(Text(escape(text)))
            case _:
                console.print(Text(f"({safe(str(block.get('type')), 40)}; --json shows it)"))
    if not dumped.get("content") and "structuredContent" in dumped:
        console.print_json(data=dumped["structuredContent"])


def asks_json(asks: Mapping[str, AnyAsk]) -> dict[str, Any]:
    """Give the open questions as plain data."""
    shown: dict[str, Any] = {}
    for key, ask in asks.items():
        entry: dict[str, Any] = {"kind": ask.kind}
        for name in ("message", "schema", "url"):
            if hasattr(ask, name):
                entry[name] = getattr(ask, name)
        shown[key] = entry
    return shown


def open_asks(asks: Mapping[str, AnyAsk]) -> None:
    """Say what is asked and how to answer it on the command line."""
    console = errors()
    for key, ask in asks.items():
        message = safe(getattr(ask, "message", ask.kind), 500)
        console.print(Text(f"  {escape(key)}: {message}"), soft_wrap=True)
        schema: Mapping[str, Any] = getattr(ask, "schema", {})
        required = schema.get("required") or ()
        properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
        for name, prop in properties.items():
            choices: list[str] = prop.get("enum") or []
            words = "|".join(map(str, choices)) or str(prop.get("type", ""))
            note = "" if name in required else " (optional)"
            line = f"    --answer {key}.{name}=<{words}>{note}"
            console.print(Text(safe(line, 300)), soft_wrap=True)
        if ask.kind == "url":
            console.print(Text(f"    {escape(getattr(ask, 'url', ''))}"), soft_wrap=True)
            console.print(Text(f"    --answer {escape(key)}=accept|decline"), soft_wrap=True)


def task_json(shown: Task) -> dict[str, Any]:
    """Give a task as plain data."""
    about: dict[str, Any] = {"id": shown.id, "status": shown.status, "message": shown.message}
    times = {"created": shown.created, "updated": shown.updated, "ttl": shown.ttl}
    return {**about, **{name: value for name, value in times.items() if value not in ("", None)}}


def task(shown: Task) -> None:
    """Print the id for scripts, and for people how the task stands."""
    print(safe(shown.id, MAX_ID))
    said = f": {safe(shown.message, 500)}" if shown.message else ""
    errors().print(Text(f"The task is {_STANDS[shown.status]}{said}"), soft_wrap=True)


_STANDS = {"input_required": "waiting for answers", "working": "working"}


class Bar:
    """A progress bar that appears with the first report, and only where somebody looks."""

    def __init__(self, progress: Progress) -> None:
        """Take the display."""
        self._progress = progress
        self._task: TaskID | None = None

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        """Show a report."""
        words = safe(message or "", 60)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(words, total=total)
        self._progress.update(self._task, completed=done, total=total, description=words)

    def task(self, shown: Task) -> None:
        """Show what a task says of itself."""
        words = safe(shown.message or _STANDS.get(shown.status, shown.status), 60)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(words, total=None)
        self._progress.update(self._task, description=words)

    def pause(self) -> None:
        """Leave the screen to a question."""
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None


@contextmanager
def bar() -> Generator[Bar]:
    """Show progress on standard error."""
    console = errors()
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
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
