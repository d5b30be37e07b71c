"""`antiphon calls`: list the calls and effects of a store, and settle uncertain effects.

Shows names, states and times. Results and outcomes are sealed in the store and are not shown.
"""

import json
import os
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from antiphon import Server
from antiphon.cli.connect import interactive
from antiphon.cli.load_server import load_server
from antiphon.cli.operating import call_story
from antiphon.cli.output import FAILED, JSON, REFUSED, USAGE, age, fail, run_or_fail, say
from antiphon.cli.readable_help import default_command
from antiphon.cli.serve import configured
from antiphon.core.inbox import DecisionRecord, Item
from antiphon.core.text import safe_line
from antiphon.environment import effect_place
from antiphon.errors import ConfigError
from antiphon.ports import CallRow, EffectRow, Inbox, ItemFilter, Store
from antiphon.seal.key_sources import keys_from
from antiphon.seal.sealer import Sealer
from antiphon.stores import open_store
from antiphon.stores.sqlite import SqliteStore

_T = TypeVar("_T")
Asked: TypeAlias = tuple[Item, list[DecisionRecord]]
Listed: TypeAlias = tuple[CallRow, list[EffectRow], list[DecisionRecord]]
Where = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_SERVER",
        help="URL of the store: sqlite:///..., postgresql://...; or module:server, or "
        "path/to/file.py[:server].",
    ),
]
CALL = Annotated[str, typer.Argument(metavar="CALL", help="The call, as listed or as in the log.")]
KEY = Annotated[str, typer.Argument(metavar="KEY", help="The key of the effect.")]
DONE = Annotated[
    str | None,
    typer.Option("--done", metavar="RESULT", help="It happened, with this result, as JSON."),
]
NOT_DONE = Annotated[
    bool, typer.Option("--not-done", help="It did not happen: the next try runs it.")
]
EVERY = Annotated[
    bool, typer.Option("--all", help="Every uncertain effect; only those of CALL if given.")
]
YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


calls: typer.Typer = typer.Typer(
    cls=default_command("list"),
    no_args_is_help=True,
    help="List the calls and effects of a store, or settle an uncertain effect.",
)


@calls.command("list")
def list_calls(
    store: Where,
    uncertain: Annotated[
        bool, typer.Option("--uncertain", help="Only calls with an uncertain effect.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Show at most N calls.")
    ] = 100,
    as_json: JSON = False,
) -> None:
    """List calls, their effects and who approved them: tool, caller, age, state.

    The latest to expire come first; with --uncertain, those that have waited longest. Below them
    stand calls that wait for somebody's decision or have had it, the latest first.

    Examples:

    \b
      antiphon calls shop.py
      antiphon calls sqlite:///calls.db
      antiphon calls postgresql://shop@db.internal/shop --uncertain
      antiphon calls sqlite:///calls.db --uncertain --json
    """
    source = source_of(store)
    rows, more, held = with_store(source, lambda opened: _read(opened, limit, uncertain=uncertain))
    if as_json:
        plain = [_plain(call, effects, said) for call, effects, said in rows]
        asked = [_plain_item(item, said) for item, said in held]
        print(json.dumps({"calls": plain, "more": more, "held": asked}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for call, effects, said in rows:
        _show(console, call, effects)
        _show_decisions(console, said)
    for item, said in held:
        _show_held(console, item)
        _show_decisions(console, said)
    if not rows and not held:
        console.print("no uncertain calls" if uncertain else "no calls")
    if more:
        console.print(f"{more} more; show them with --limit {len(rows) + more}")


@calls.command()
def show(store: Where, call: CALL, as_json: JSON = False) -> None:
    """Tell the story of one call in order: rounds, questions, effects, runs, decisions, refusals.

    Rounds, duplicates and refusals are known where the server has an audit (Server(audit=...));
    effects, what was asked of others and who decided, in any case. A call that was declined or
    still waits is shown all the same.

    Exit codes: 0 shown; 1 no such call, or the store failed; 2 wrong arguments or settings.

    Examples:

    \b
      antiphon calls show sqlite:///calls.db 17e9...
      antiphon calls show sqlite:///calls.db 17e9... --json
    """
    found = with_store(source_of(store), lambda opened: call_story.find(opened, call))
    told = call_story.story(found)
    if not told:
        fail(f"there is no call {safe_line(call, 100)}")
    if as_json:
        items = [_plain_item(item, said) for item, said in found.asked]
        shown = {
            "call": call,
            "effects": _plain_effects(found.effects),
            "asked": items,
            "story": call_story.plain(told),
        }
        print(json.dumps(shown))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(safe_line(call, 300)))
    for one in told:
        style = "bold red" if "uncertain" in one.what else ""
        console.print(Text(safe_line(f"  {_time(one.at)}  {one.what}", 500), style=style))


@calls.command()
def settle(
    store: Where,
    call: CALL = "",
    key: KEY = "",
    done: DONE = None,
    not_done: NOT_DONE = False,
    every: EVERY = False,
    yes: YES = False,
) -> None:
    """Decide how an uncertain effect ended, so that its call can continue.

    An effect is uncertain if the process that ran it died before it recorded the end. First find
    out whether it happened: nothing checks your decision. --done needs the server's keys, because
    results are sealed in the store: those of the server that you name, or ANTIPHON_KEYS. On a
    terminal the command asks for confirmation.

    Exit codes: 0 settled, or nothing to settle with --all; 1 no such effect, or the store failed;
    2 wrong arguments or settings; 3 not confirmed.

    Examples:

    \b
      antiphon calls settle sqlite:///calls.db 17e9... charge --done '"paid"'
      antiphon calls settle shop.py 17e9... charge --not-done
      antiphon calls settle sqlite:///calls.db --all --not-done --yes
    """
    if (done is None) == (not not_done):
        fail("give either --done RESULT or --not-done", USAGE)
    if every == bool(key) or not (every or call):
        fail("give a CALL and a KEY, or --all", USAGE)
    result = None if done is None else _result(done)
    source = source_of(store)
    sealer = None if result is None or isinstance(source, Server) else _sealer()
    outcome = "not done" if not_done else "done"
    found = with_store(source, lambda opened: _uncertain(opened, call))
    wanted = [one for one in found if every or one.key == key]
    if not wanted:
        if every:
            print("no uncertain effects")
            return
        fail(
            f"call {call} has no uncertain effect {key!r}: it does not exist, has ended, or the "
            "process that runs it may still be alive (its lease lasts up to half a minute)"
        )
    _confirm(wanted, outcome, yes=yes)
    if result is not None and isinstance(source, Server):
        settled = run_or_fail(_decide_for(source, wanted, result))
    else:
        settled = with_store(source, lambda opened: _decide(opened, wanted, result, sealer))
    for effect in settled:
        print(safe_line(f"effect {effect.key!r} of call {effect.call} is settled: {outcome}", 300))
    if len(settled) < len(wanted):
        say(f"{len(wanted) - len(settled)} of {len(wanted)} had been settled meanwhile")
    if not settled:
        raise typer.Exit(FAILED)


def _confirm(wanted: list[EffectRow], outcome: str, *, yes: bool) -> None:
    """Ask a person at the terminal; scripts have decided already."""
    if yes or not interactive():
        return
    for effect in wanted:
        started = f"started {_time(effect.started)}"
        say(safe_line(f"  {effect.key}  of call {effect.call}, {effect.function}, {started}", 300))
    count = "this effect" if len(wanted) == 1 else f"these {len(wanted)} effects"
    if not typer.confirm(f"Settle {count} as {outcome}?", err=True):
        fail("nothing was settled", REFUSED)


async def _decide_for(server: Server, wanted: list[EffectRow], result: bytes) -> list[EffectRow]:
    """Settle effects with a result that is sealed by the keys of a server."""
    async with server.ledger(seals=True) as environment:
        return await _decide(environment.store, wanted, result, environment.sealer)


async def _decide(
    store: Store, wanted: list[EffectRow], result: bytes | None, sealer: Sealer | None
) -> list[EffectRow]:
    """Settle effects; return those that were still uncertain."""
    settled: list[EffectRow] = []
    for effect in wanted:
        sealed = result
        if result is not None and sealer is not None:
            protected = sealer.protect(result, effect_place(effect.call, effect.key))
            sealed = protected if isinstance(protected, bytes) else await protected
        if await store.settle_uncertain(effect.call, effect.key, result=sealed):
            settled.append(effect)
    return settled


async def _uncertain(store: Store, call: str) -> list[EffectRow]:
    """Return every uncertain effect, of one call or of all."""
    calls = [call] if call else []
    if not call:
        count = await store.count_calls(uncertain=True)
        calls = [row.call for row in await store.calls(limit=count or 1, uncertain=True)]
    return [
        effect
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
        fail("--done needs the server's keys in ANTIPHON_KEYS, to seal the result", USAGE)
    # Only what stays in a store is sealed here: no token, so lifetime and audience do not matter.
    return Sealer(
        keyring,
        ttl=timedelta(minutes=1),
        audience="",
        clock=lambda: datetime.now(UTC).timestamp(),
        entropy=secrets.token_bytes,
    )


def source_of(text: str) -> Server | str:
    """Return the server that a text names, or the text where it is the URL of a store."""
    is_url = "://" in text or text.startswith("memory:")
    return text if is_url else configured(load_server, text)


def with_store(source: Server | str, work: Callable[[Store], Awaitable[_T]]) -> _T:
    """Open a store that other processes use, run `work` on it, and close it."""
    return run_or_fail(
        _in_server(source, work) if isinstance(source, Server) else _at(source, work)
    )


async def _in_server(server: Server, work: Callable[[Store], Awaitable[_T]]) -> _T:
    async with server.ledger() as environment:
        return await work(environment.store)


async def _at(url: str, work: Callable[[Store], Awaitable[_T]]) -> _T:
    store = open_store(url)
    if not store.shared:
        raise ConfigError(
            "a store in memory is seen by its own process only: give the URL of a shared one"
        )
    if isinstance(store, SqliteStore) and not store.path.exists():
        raise ConfigError(f"there is no store in {store.path}: check the path")
    await store.open()
    try:
        return await work(store)
    finally:
        await store.close()


async def _one(store: Store, call: str) -> tuple[list[EffectRow], list[Asked]]:
    """Read the effects of a call, and what was asked of others in it."""
    effects = list(await store.effects(call))
    asked = await store.items_of(call) if isinstance(store, Inbox) else ()
    return effects, [(item, list(said)) for item, said in asked]


async def _read(
    store: Store, limit: int, *, uncertain: bool
) -> tuple[list[Listed], int, list[Asked]]:
    """Read calls with effects and decisions, how many are beyond the limit, and held calls."""
    calls = await store.calls(limit=limit, uncertain=uncertain)
    more = 0
    if len(calls) >= limit:
        more = max(await store.count_calls(uncertain=uncertain) - len(calls), 0)
    rows: list[Listed] = []
    for call in calls:
        effects, asked = await _one(store, call.call)
        rows.append((call, effects, [record for _, said in asked for record in said]))
    named = {call.call for call in calls}
    return rows, more, [] if uncertain else await _held(store, limit, without=named)


async def _held(store: Store, limit: int, *, without: set[str]) -> list[Asked]:
    """Read what calls ask or asked of others; those that wait come first."""
    if not isinstance(store, Inbox):
        return []
    items = [
        item
        for is_open in (True, False)
        for item in await store.items(ItemFilter(None, open=is_open), limit=limit)
    ]
    calls = dict.fromkeys(item.call for item in items if item.call not in without)
    return [(item, list(said)) for call in calls for item, said in await store.items_of(call)]


def _plain(call: CallRow, effects: list[EffectRow], said: list[DecisionRecord]) -> dict[str, Any]:
    return {
        "call": call.call,
        "round": call.mark,
        "state": call.state,
        "uncertain": call.uncertain,
        "tool": call.tool,
        "caller": call.caller,
        "started": _time(call.started) if call.started else None,
        "expires": _time(call.expires),
        "effects": _plain_effects(effects),
        "decisions": [_plain_decision(record) for record in said],
    }


def _plain_effects(effects: list[EffectRow]) -> list[dict[str, Any]]:
    return [
        {
            "key": effect.key,
            "function": effect.function,
            "state": effect.state,
            "started": _time(effect.started),
            "settled": None if effect.settled is None else _time(effect.settled),
        }
        for effect in effects
    ]


def _plain_item(item: Item, said: list[DecisionRecord]) -> dict[str, Any]:
    return {
        "item": item.id,
        "call": item.call,
        "tool": item.tool,
        "key": item.key,
        "role": item.role,
        "status": item.status,
        "created": _time(item.created),
        "expires": _time(item.expires),
        "decisions": [_plain_decision(record) for record in said],
    }


def _plain_decision(record: DecisionRecord) -> dict[str, Any]:
    return {
        "sequence": record.sequence,
        "key": record.key,
        "decision": record.decision,
        "issuer": record.issuer,
        "subject": record.subject,
        "name": record.name,
        "how": record.how,
        "at": _time(record.at),
        "arguments": record.arguments.hex(),
    }


def _show(console: Console, call: CallRow, effects: list[EffectRow]) -> None:
    words = f"{call.call}  round {call.mark} {_state(call)}"
    if call.tool:
        words += f", {call.tool} by {call.caller or 'anonymous'}"
    if call.started:
        words += f", {age(call.started)} old"
    words += f", expires {_time(call.expires)}"
    console.print(Text(safe_line(words, 300)))
    _show_effects(console, effects)


def _show_held(console: Console, item: Item) -> None:
    state = "waits for" if item.status == "open" else f"{item.status}, asked of"
    words = f"{item.call}  {state} {item.role or 'its caller'}, {item.tool}"
    when = f", {age(item.created)} old, until {_time(item.expires)}"
    console.print(Text(safe_line(words + when, 300)))


def _show_decisions(console: Console, said: list[DecisionRecord]) -> None:
    for record in said:
        who = f"{record.name or record.subject} ({record.issuer} {record.subject})"
        words = f"  {record.key}  {record.decision}  by {who}, {record.how}, {_time(record.at)}"
        console.print(Text(safe_line(words, 300)))


def _show_effects(console: Console, effects: list[EffectRow]) -> None:
    for effect in effects:
        ended = "" if effect.settled is None else f", settled {_time(effect.settled)}"
        words = f"  {effect.key}  {effect.state}  {effect.function}"
        when = f", started {_time(effect.started)}{ended}"
        style = "bold red" if effect.state == "uncertain" else ""
        console.print(Text(safe_line(words + when, 300), style=style))


def _state(call: CallRow) -> str:
    """Return the state of a call; an uncertain effect comes before the state of its round."""
    return "uncertain" if call.uncertain else call.state


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
