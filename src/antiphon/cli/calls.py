"""`antiphon calls`: what a store knows of calls and effects, and an operator's word on them.

Shows names, states and times. Results and outcomes are sealed in the store and are not shown.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from antiphon.cli.output import FAILED, USAGE, fail
from antiphon.core.text import safe
from antiphon.engine.effects import effect_place
from antiphon.errors import AntiphonError, ConfigError
from antiphon.ports import CallRow, EffectRow, Store
from antiphon.seal.keyring import keys_from
from antiphon.seal.sealer import Sealer
from antiphon.stores import open_store

_T = TypeVar("_T")
Where = Annotated[
    str, typer.Argument(metavar="STORE", help="URL of the store: sqlite:///..., postgresql://...")
]


class _ListByDefault(TyperGroup):
    """`antiphon calls STORE` is `antiphon calls list STORE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


calls = typer.Typer(
    cls=_ListByDefault,
    no_args_is_help=True,
    help="List the calls and effects of a store, or settle an effect whose end is not known.",
)


@calls.command("list")
def list_calls(
    store: Where,
    uncertain: Annotated[
        bool, typer.Option("--uncertain", help="Only calls with an effect of unknown end.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="At most so many calls.")
    ] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for scripts.")
    ] = False,
) -> None:
    """List calls, the latest to expire first, and their effects.

    With --uncertain the longest waiting come first.
    """
    rows, more = _with_store(store, lambda opened: _read(opened, limit, uncertain=uncertain))
    if as_json:
        plain = [_plain(call, effects) for call, effects in rows]
        print(json.dumps({"calls": plain, "more": more}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for call, effects in rows:
        _show(console, call, effects)
    if not rows:
        console.print("no calls")
    if more:
        console.print(f"{more} more; show them with --limit {len(rows) + more}")


@calls.command()
def settle(
    store: Where,
    call: Annotated[
        str, typer.Argument(metavar="CALL", help="The call, as EffectUncertain says.")
    ] = "",
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the effect.")] = "",
    done: Annotated[
        str | None,
        typer.Option("--done", metavar="RESULT", help="It happened: this is its result, as JSON."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="It did not happen: the next try runs it.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every effect of unknown end; of CALL if it is given.")
    ] = False,
) -> None:
    """Say how effects ended whose end is not known.

    Look at what an effect was to do before you answer; the call goes on by your word. With --done,
    ANTIPHON_KEYS must hold the server's keys: results are sealed in the store.
    """
    if (done is None) == (not not_done):
        fail("say either --done RESULT or --not-done", USAGE)
    if every == bool(key) or not (every or call):
        fail("name a CALL and a KEY, or say --all", USAGE)
    result = None if done is None else _result(done)
    sealer = None if result is None else _sealer()

    async def decide(opened: Store) -> list[tuple[str, str]]:
        wanted = await _uncertain(opened, call) if every else [(call, key)]
        settled: list[tuple[str, str]] = []
        for one in wanted:
            sealed = result
            if result is not None and sealer is not None:
                protected = sealer.protect(result, effect_place(*one))
                sealed = protected if isinstance(protected, bytes) else await protected
            if await opened.decide(*one, result=sealed):
                settled.append(one)
        return settled

    settled = _with_store(store, decide)
    if not settled and not every:
        fail(
            f"call {call} has no effect {key!r} of unknown end: it is not there, has ended, or its "
            "lease is still good (try again in half a minute)",
            FAILED,
        )
    for of, name in settled:
        words = "not done" if not_done else "done"
        print(safe(f"effect {name!r} of call {of} is settled: {words}", 300))
    if not settled:
        print("no effect of unknown end")


async def _uncertain(store: Store, call: str) -> list[tuple[str, str]]:
    """Name every effect of unknown end, of one call or of all."""
    calls = [call] if call else []
    if not call:
        count = await store.count_calls(uncertain=True)
        calls = [row.call for row in await store.calls(limit=count or 1, uncertain=True)]
    return [
        (effect.call, effect.key)
        for one in calls
        for effect in await store.effects(one)
        if effect.state == "uncertain"
    ]


def _result(text: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except msgspec.DecodeError:
        fail("--done takes the result as JSON: --done 7, --done '\"vm-7\"', --done null", USAGE)


def _sealer() -> Sealer:
    try:
        keyring = keys_from(os.environ)
    except ConfigError as error:
        fail(str(error), USAGE)
    if keyring is None:
        fail("--done needs ANTIPHON_KEYS: the result is sealed with the server's keys", USAGE)
    # Only what stays in a store is sealed here: no token, so lifetime and audience do not matter.
    return Sealer(
        keyring,
        ttl=timedelta(minutes=1),
        audience="",
        clock=lambda: datetime.now(UTC).timestamp(),
        entropy=secrets.token_bytes,
    )


def _with_store(url: str, work: Callable[[Store], Awaitable[_T]]) -> _T:
    """Open a store that other processes use, do something with it, and close it."""

    async def run() -> _T:
        store = open_store(url)
        if not store.shared:
            raise ConfigError("a store in memory is seen by its own process only; name another")
        path = getattr(store, "path", None)
        if path is not None and not path.exists():
            raise ConfigError(f"there is no store in {path}")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except ConfigError as error:
        fail(str(error), USAGE)
    except AntiphonError as error:
        _fail(error)


def _fail(error: AntiphonError) -> NoReturn:
    fail(str(error), FAILED)


async def _read(
    store: Store, limit: int, *, uncertain: bool
) -> tuple[list[tuple[CallRow, list[EffectRow]]], int]:
    """Read calls with their effects; also how many there are beyond the limit."""
    calls = await store.calls(limit=limit, uncertain=uncertain)
    more = 0
    if len(calls) >= limit:
        more = max(await store.count_calls(uncertain=uncertain) - len(calls), 0)
    return [(call, list(await store.effects(call.call))) for call in calls], more


def _plain(call: CallRow, effects: list[EffectRow]) -> dict[str, Any]:
    return {
        "call": call.call,
        "round": call.mark,
        "state": call.state,
        "uncertain": call.uncertain,
        "tool": call.tool,
        "caller": call.caller,
        "started": _time(call.started) if call.started else None,
        "expires": _time(call.expires),
        "effects": [
            {
                "key": effect.key,
                "function": effect.function,
                "state": effect.state,
                "started": _time(effect.started),
                "settled": None if effect.settled is None else _time(effect.settled),
            }
            for effect in effects
        ],
    }


def _show(console: Console, call: CallRow, effects: list[EffectRow]) -> None:
    words = f"{call.call}  round {call.mark} {_state(call)}"
    if call.tool:
        words += f", {call.tool} by {call.caller}"
    if call.started:
        words += f", {_age(call.started)} old"
    words += f", expires {_time(call.expires)}"
    console.print(Text(safe(words, 300)))
    for effect in effects:
        ended = "" if effect.settled is None else f", settled {_time(effect.settled)}"
        words = f"  {effect.key}  {effect.state}  {effect.function}"
        when = f", started {_time(effect.started)}{ended}"
        style = "bold red" if effect.state == "uncertain" else ""
        console.print(Text(safe(words + when, 300), style=style))


def _state(call: CallRow) -> str:
    """Say how a call stands: what an operator has to do comes before how its round stands."""
    return "uncertain" if call.uncertain else call.state


def _age(started: float) -> str:
    seconds = max(datetime.now(UTC).timestamp() - started, 0.0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
