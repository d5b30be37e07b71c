"""The tasks that calls of this command line became, so that they can be listed.

The protocol has no list of tasks: a server shows a task to whoever has its id. So each id is kept
in a private file of its own in the user's folder from the moment it is known until the task has
ended. Two commands at a time do not disturb each other.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import typer

from antiphon.cli.written_files import write_own
from antiphon.client.asks import Step

Place: TypeAlias = str | list[str] | None
"""A server: its URL without credentials, or the words of a command."""

MOST = 1_000
"""Tasks that are kept; the oldest are dropped."""


class BegunTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task and the call that it came from."""

    target: str | list[str]
    id: str
    tool: str
    began: float


def folder() -> Path:
    """Return the folder of the files."""
    return Path(typer.get_app_dir("antiphon")) / "tasks"


def keep(step: Step, target: Place, place: Path) -> None:
    """Keep the id of a task; not of one that was found by its id, or in this process only."""
    task, call = step.task, step.call
    if task is None or target is None or not call.params:
        return
    begun = BegunTask(
        target=target,
        id=task.id,
        tool=str(call.params.get("name", "")),
        began=step.saved.received,
    )
    text = msgspec.json.encode(begun).decode()
    write_own(_file(place, target, task.id), text, lambda _: True)  # the folder is the user's
    for old in sorted(place.glob("*.json"), key=_age)[:-MOST]:
        old.unlink(missing_ok=True)


def forget(target: Place, id: str, place: Path) -> None:
    """Forget a task that has ended."""
    if target is not None:
        _file(place, target, id).unlink(missing_ok=True)


def begun_at(target: Place, place: Path) -> Sequence[BegunTask]:
    """Return the tasks that were begun at a server, the newest first."""
    found: list[BegunTask] = []
    for file in place.glob("*.json"):
        with suppress(OSError, msgspec.DecodeError):
            begun = msgspec.json.decode(file.read_bytes(), type=BegunTask)
            if begun.target == target:
                found.append(begun)
    return sorted(found, key=lambda begun: -begun.began)


def _file(place: Path, target: Any, id: str) -> Path:
    name = hashlib.sha256(json.dumps([target, id]).encode()).hexdigest()[:32]
    return place / f"{name}.json"


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
