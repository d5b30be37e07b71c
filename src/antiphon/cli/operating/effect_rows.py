"""Effects as `antiphon calls` shows them: with what they were called with, where keys open it."""

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from antiphon.apps.console.settling import OpensSealed, called_with
from antiphon.cli.output import age
from antiphon.ports import EffectRow
from antiphon.protocol.text import safe_line


class OpenedEffect(msgspec.Struct, frozen=True):
    """An effect, and what it was called with."""

    row: EffectRow
    arguments: dict[str, Any] | None
    """By the names of the parameters; None where no keys open them."""


async def opened(rows: Iterable[EffectRow], keys: OpensSealed | None) -> list[OpenedEffect]:
    """Open what effects were called with."""
    return [OpenedEffect(row, await _arguments(row, keys)) for row in rows]


async def _arguments(row: EffectRow, keys: OpensSealed | None) -> dict[str, Any] | None:
    if keys is None:
        return None if row.shown else {}
    return await called_with(keys, row)


def plain_effects(effects: Iterable[OpenedEffect]) -> list[dict[str, Any]]:
    """Return effects for programs."""
    return [
        {
            "key": one.row.key,
            "function": one.row.function,
            "state": one.row.state,
            "blocks": one.row.blocks,
            "tool": one.row.tool,
            "caller": one.row.caller,
            "arguments": one.arguments,
            "idempotency_key": one.row.idempotency_key,
            "age": max(0.0, round(time.time() - one.row.started, 3)),
            "started": moment(one.row.started),
            "settled": None if one.row.settled is None else moment(one.row.settled),
        }
        for one in effects
    ]


def show_effects(console: Console, effects: Iterable[OpenedEffect]) -> None:
    """Print effects; of those that an operator can settle, where to look whether they happened."""
    for one in effects:
        row = one.row
        ended = "" if row.settled is None else f", settled {moment(row.settled)}"
        words = f"  {row.key}  {row.state}  {row.function}, started {moment(row.started)}{ended}"
        style = "bold red" if row.open else ""
        console.print(Text(safe_line(words, 300), style=style))
        if row.open:
            for line in _found_by(one):
                console.print(Text(safe_line(f"      {line}", 2_000), style=style))


def effect_lines(effect: OpenedEffect) -> list[str]:
    """Describe an effect that is about to be settled."""
    row = effect.row
    where = f"{row.key}  of call {row.call}, {row.function}"
    first = f"{where}, {row.state}, started {moment(row.started)}"
    return [first, *(f"    {line}" for line in _found_by(effect))]


def _found_by(effect: OpenedEffect) -> list[str]:
    """Return what tells an operator where to look whether an effect happened."""
    row = effect.row
    by = f"{row.tool or 'a tool'} by {caller_name(row.caller)}"
    words = f"{by}, {age(row.started)} old, idempotency key {row.idempotency_key}"
    if row.blocks:
        words += "; it blocks equal calls until it is settled"
    if effect.arguments is None:
        return [words, "called with: sealed; set ANTIPHON_KEYS to the keys of its server"]
    if not effect.arguments:
        return [words]
    called = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in effect.arguments.items()
    )
    return [words, f"called with: {called}"]


def caller_name(caller: str) -> str:
    """Name a caller."""
    return caller.strip() or "anonymous"


def moment(seconds: float) -> str:
    """Return a time as people and programs read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
