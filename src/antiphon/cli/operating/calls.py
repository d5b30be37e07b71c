"""`antiphon calls`: list the calls and effects of a store, and settle uncertain effects.

Shows names, states, times, and, where the keys are at hand, what an effect was called with while it
has to be settled. Results and outcomes are sealed in the store and are not shown.
"""

import getpass
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from antiphon import Server
from antiphon.apps.console.settling import HAPPENED, NOT_HAPPENED, settle_effect
from antiphon.cli.connect import interactive
from antiphon.cli.load_server import load_server
from antiphon.cli.operating import call_story
from antiphon.cli.operating.effect_rows import (
    OpenedEffect,
    caller_name,
    effect_lines,
    moment,
    opened,
    plain_effects,
    show_effects,
)
from antiphon.cli.operating.operator_keys import OperatorKeys, keys_for
from antiphon.cli.output import (
    FAILED,
    JSON,
    REFUSED,
    USAGE,
    age,
    fail,
    list_names,
    run_or_fail,
    say,
)
from antiphon.cli.readable_help import default_command
from antiphon.cli.serve import configured
from antiphon.cli.tasks import SHORTEST
from antiphon.engine.environment import Environment, effect_place
from antiphon.errors import ConfigError
from antiphon.ports import (
    AuditStore,
    CallRow,
    EffectRow,
    Inbox,
    Incarnation,
    Incarnations,
    ItemFilter,
    Overview,
    Settlement,
    Store,
)
from antiphon.protocol.audit import AuditEvent
from antiphon.protocol.inbox import DecisionRecord, Item
from antiphon.protocol.text import safe_line
from antiphon.stores import open_store
from antiphon.stores.sqlite import SqliteStore

_T = TypeVar("_T")
Keys: TypeAlias = Environment | OperatorKeys | None
_MOST_ITEMS = 10_000
"""Questions to approvers among which a call is looked up by its first characters."""

Asked: TypeAlias = tuple[Item, list[DecisionRecord]]
Listed: TypeAlias = tuple[CallRow, list[OpenedEffect], list[DecisionRecord]]
Where = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_SERVER",
        help="URL of the store: sqlite:///..., postgresql://...; or module:server, or "
        "path/to/file.py[:server].",
    ),
]
NAMED = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="NAME",
        help="The server's name, for the URL of a store that several servers use.",
    ),
]
CALL = Annotated[
    str,
    typer.Argument(
        metavar="CALL",
        help="The call, as listed or as in the log; its first characters if no other has them.",
    ),
]
KEY = Annotated[str, typer.Argument(metavar="KEY", help="The key of the effect.")]
DONE = Annotated[
    str | None,
    typer.Option("--done", metavar="RESULT", help="It happened, with this result, as JSON."),
]
NOT_DONE = Annotated[
    bool, typer.Option("--not-done", help="It did not happen: the next try runs it.")
]
EVERY = Annotated[
    bool,
    typer.Option("--all", help="Every effect that --uncertain lists; only those of CALL if given."),
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
        bool,
        typer.Option("--uncertain", help="Only calls with an effect that can be settled."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Show at most N calls.")
    ] = 100,
    server: NAMED = None,
    as_json: JSON = False,
) -> None:
    """List calls, their effects and who approved them: tool, caller, age, state.

    The latest to expire come first. With --uncertain, only calls with an effect that you can
    settle, the longest waiting first: its end is unknown, or it has failed and may have happened
    all the same, so that equal calls of the same caller do not do it. What it was called with is
    shown to whoever has the server's keys: name the server, or set ANTIPHON_KEYS. Below them stand
    calls that wait for somebody's decision or have had it, the latest first.

    Examples:

    \b
      antiphon calls shop.py
      antiphon calls sqlite:///calls.db
      antiphon calls postgresql://shop@db.internal/shop --uncertain
      antiphon calls sqlite:///calls.db --uncertain --json
    """
    rows, more, held = with_keys(
        source_of(store), partial(_read, limit=limit, uncertain=uncertain), server
    )
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
def show(store: Where, call: CALL, server: NAMED = None, as_json: JSON = False) -> None:
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
    call, found, effects = with_keys(source_of(store), partial(_tell, call=call), server)
    told = call_story.story(found)
    if not told:
        fail(f"there is no call {safe_line(call, 100)}")
    if as_json:
        items = [_plain_item(item, said) for item, said in found.asked]
        shown = {
            "call": call,
            "effects": plain_effects(effects),
            "asked": items,
            "story": call_story.plain(told),
        }
        print(json.dumps(shown))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(safe_line(call, 300)))
    for one in told:
        style = "bold red" if "uncertain" in one.what or "settles it" in one.what else ""
        console.print(Text(safe_line(f"  {moment(one.at)}  {one.what}", 500), style=style))
    show_effects(console, [one for one in effects if one.row.open])


@calls.command()
def settle(
    store: Where,
    call: CALL = "",
    key: KEY = "",
    done: DONE = None,
    not_done: NOT_DONE = False,
    every: EVERY = False,
    server: NAMED = None,
    yes: YES = False,
) -> None:
    """Decide how an uncertain effect ended, so that its call can continue.

    An effect is uncertain if its function could not tell the end, or if the process that ran it
    died before it recorded the end. A failure that keeps equal calls from doing the effect is
    settled, too. First find out whether it happened: nothing checks your decision. --done needs
    the server's keys, because results are sealed in the store, and they prove that the decision
    is yours: those of the server that you name, those in ANTIPHON_KEYS, or those beside a SQLite
    file. On a terminal the command asks for confirmation; elsewhere it settles more than one
    effect only with --yes.

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
    outcome = "not done" if not_done else "done"
    call, found = with_keys(source, partial(_settleable, call=call), server)
    wanted = [one for one in found if every or one.row.key == key]
    if not wanted:
        if every:
            print("no uncertain effects")
            return
        fail(
            f"call {call} has no uncertain effect {key!r}: it does not exist, has ended, or the "
            "process that runs it may still be alive (its lease lasts up to half a minute)"
        )
    _confirm(wanted, "not done" if done is None else f"done, with the result {done}", yes=yes)
    rows = [one.row for one in wanted]
    settled = with_keys(source, partial(_settle, rows=rows, result=result), server, seals=True)
    for effect in settled:
        print(safe_line(f"effect {effect.key!r} of call {effect.call} is settled: {outcome}", 300))
    if len(settled) < len(wanted):
        say(f"{len(wanted) - len(settled)} of {len(wanted)} had been settled meanwhile")
    if not settled:
        raise typer.Exit(FAILED)


@calls.command()
def lost(
    store: Where,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Say that the store was just restored, where it cannot tell by itself.",
        ),
    ] = False,
    server: NAMED = None,
    as_json: JSON = False,
) -> None:
    """Show when the store may have forgotten something, and which effects that concerns.

    A store notices most restores, and failovers without the last writes. Effects of earlier calls
    that are not in it may have happened: they are uncertain until you settle them. Use --restored
    after you put back a snapshot of the whole machine, before you start the servers.

    Examples:

    \b
      antiphon calls lost sqlite:///calls.db
      antiphon calls lost postgresql://shop@db.internal/shop --restored
    """
    kept, effects = with_keys(source_of(store), partial(_lost, restored=restored), server)
    if as_json:
        began = [{"id": one.id, "at": one.at, "reason": one.reason} for one in kept]
        print(json.dumps({"incarnations": began, "effects": plain_effects(effects)}))
        return
    console = Console(highlight=False, soft_wrap=True)
    for one in kept:
        console.print(Text(safe_line(f"{moment(one.at)}  {one.reason}", 300)))
    by_call: dict[str, list[OpenedEffect]] = {}
    for effect in effects:
        by_call.setdefault(effect.row.call, []).append(effect)
    for call, some in by_call.items():
        console.print(Text(safe_line(call, 300)))
        show_effects(console, some)
    if not effects:
        console.print("no effect was asked for that the store may have forgotten")


async def _lost(
    store: Store, keys: Keys, *, restored: bool
) -> tuple[list[Incarnation], list[OpenedEffect]]:
    """Read what a store may have forgotten."""
    if not isinstance(store, Incarnations):
        raise ConfigError(
            "this store cannot tell what it has forgotten: use sqlite:/// or postgresql://"
        )
    if restored:
        await store.begin_incarnation("an operator said that it was restored")
    lost = await store.lost_effects(limit=1000)
    return list(await store.incarnations()), await opened(lost, keys)


def _confirm(wanted: list[OpenedEffect], outcome: str, *, yes: bool) -> None:
    """Ask a person at the terminal; a script has decided about one effect, not about many."""
    if yes or (len(wanted) == 1 and not interactive()):
        return
    for effect in wanted:
        for line in effect_lines(effect):
            say(safe_line(f"  {line}", 2_000))
    count = "this effect" if len(wanted) == 1 else f"each of these {len(wanted)} effects"
    if not interactive():
        fail(f"this would settle {count} as {outcome}: say --yes if that is meant", REFUSED)
    if not typer.confirm(safe_line(f"Settle {count} as {outcome}?", 300), err=True):
        fail("nothing was settled", REFUSED)


async def _settle(
    store: Store, keys: Keys, *, rows: list[EffectRow], result: bytes | None
) -> list[EffectRow]:
    """Settle effects; return those that were still uncertain."""
    if keys is None:
        _check_without_keys(store, result)
    elif any(one.arguments is None for one in await opened(rows, keys)):
        raise ConfigError(
            "these are not the keys of the server: they do not open what it has sealed. Set "
            "ANTIPHON_KEYS to the server's keys, or name the server instead of its store."
        )
    return [row for row in rows if await _settle_one(store, keys, row, result)]


def _check_without_keys(store: Store, result: bytes | None) -> None:
    """Say what cannot be done without the keys of the server."""
    cure = "set ANTIPHON_KEYS to the server's keys, or name the server instead of its store"
    if result is not None:
        raise ConfigError(f"--done needs the server's keys, to seal the result: {cure}")
    if isinstance(store, Overview):
        say(
            "this command has no keys of the server, so nothing will prove who settled this: the "
            f"operators' page marks it as not verified. Next time {cure}."
        )


async def _settle_one(store: Store, keys: Keys, effect: EffectRow, result: bytes | None) -> bool:
    """Settle an effect in the name of whoever runs this command; False if it was too late."""
    said = _said(effect, result)
    if isinstance(keys, Environment) and isinstance(store, Overview):
        return await settle_effect(keys, store, said, result=result, transport="command line")
    sealed = result
    if result is not None and keys is not None:
        sealed = await keys.protect(result, effect_place(effect.call, effect.key))
    if not isinstance(store, Overview):
        return await store.settle_uncertain(effect.call, effect.key, result=sealed)
    if isinstance(store, AuditStore):
        await _audit(store, store.server, said)
    signed = await keys.sign(said) if isinstance(keys, OperatorKeys) else said
    return await store.settle_effect(signed, result=sealed)


def _said(effect: EffectRow, result: bytes | None) -> Settlement:
    """Return what whoever runs this command says about an effect."""
    who = _user()
    reason = "settled with antiphon calls settle"
    return Settlement(effect.call, effect.key, result is not None, "command line", who, who, reason)


async def _audit(store: AuditStore, server: str, said: Settlement) -> None:
    """Write to the audit of a server what is said about an effect, if it keeps one."""
    if (await store.audit_head(server)).sequence:
        event = AuditEvent(
            kind="settlement",
            at=datetime.now(UTC).timestamp(),
            server=server,
            call=said.call,
            key=said.key,
            issuer=said.issuer,
            subject=said.subject,
            transport="command line",
            outcome=HAPPENED if said.happened else NOT_HAPPENED,
        )
        await store.append_audit(server, [event])


def _user() -> str:
    """Return who runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user in a container
        return "unknown"


async def _tell(
    store: Store, keys: Keys, *, call: str
) -> tuple[str, call_story.Found, list[OpenedEffect]]:
    """Read what a store keeps of a call; its id is given in whole or by its first characters."""
    whole = await _whole_id(store, call)
    found = await call_story.find(store, whole)
    return whole, found, await opened(found.effects, keys)


async def _whole_id(store: Store, call: str) -> str:
    """Return the id of the one call of a store that begins so; else what was typed.

    Raises:
        ConfigError: Several calls begin so.
    """
    if len(call) < SHORTEST or await store.effects(call):
        return call
    count = await store.count_calls()
    known = [row.call for row in await store.calls(limit=count or 1)]
    if isinstance(store, Inbox):
        for is_open in (True, False):
            filter = ItemFilter(store.server, open=is_open)
            known += [item.call for item in await store.items(filter, limit=_MOST_ITEMS)]
    found = sorted({one for one in known if one.startswith(call)})
    if call in found or not found:
        return call
    if len(found) > 1:
        shown = ", ".join(safe_line(one, 100) for one in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise ConfigError(f"several calls begin with {call!r}: {shown}{more}. Type more of the id.")
    return found[0]


async def _settleable(store: Store, keys: Keys, *, call: str) -> tuple[str, list[OpenedEffect]]:
    """Return the whole id of a call and what an operator can settle of it, or of all calls."""
    if call:
        call = await _whole_id(store, call)
        calls = [call]
    else:
        count = await store.count_calls(uncertain=True)
        calls = [row.call for row in await store.calls(limit=count or 1, uncertain=True)]
    rows = [row for one in calls for row in await store.effects(one) if row.open]
    return call, await opened(rows, keys)


def _result(text: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except msgspec.DecodeError:
        fail("--done takes the result as JSON: --done 7, --done '\"vm-7\"', --done null", USAGE)


def source_of(text: str) -> Server | str:
    """Return the server that a text names, or the text where it is the URL of a store."""
    is_url = "://" in text or text.startswith("memory:")
    return text if is_url else configured(load_server, text)


def with_store(
    source: Server | str, work: Callable[[Store], Awaitable[_T]], server: str | None = None
) -> _T:
    """Open a store that other processes use, run `work` on the rows of one server, and close it.

    Args:
        source: A server, or the URL of a store.
        work: What to do with it.
        server: Whose rows, for a URL; None for the only server that has any.
    """
    return _with_opened(source, lambda opened, _: work(opened), server)


def with_keys(
    source: Server | str,
    work: Callable[[Store, Keys], Awaitable[_T]],
    server: str | None = None,
    *,
    seals: bool = False,
) -> _T:
    """Do what `with_store` does, with the keys of the server, or None where there are none.

    Args:
        source: A server, or the URL of a store.
        work: What to do with both.
        server: Whose rows, for a URL.
        seals: Whether something is sealed; a server whose keys are not known is refused.
    """

    async def with_both(store: Store, environment: Environment | None) -> _T:
        return await work(store, keys_for(store) if environment is None else environment)

    return _with_opened(source, with_both, server, seals=seals)


def _with_opened(
    source: Server | str,
    work: Callable[[Store, Environment | None], Awaitable[_T]],
    server: str | None,
    *,
    seals: bool = False,
) -> _T:
    if isinstance(source, Server):
        if server is not None:
            fail("--server goes with the URL of a store", USAGE)
        return run_or_fail(_in_server(source, work, seals=seals))
    return run_or_fail(_at(source, lambda store: work(store, None), server))


async def _in_server(
    server: Server, work: Callable[[Store, Environment], Awaitable[_T]], *, seals: bool
) -> _T:
    async with server.ledger(seals=seals) as environment:
        return await work(environment.store, environment)


async def _at(url: str, work: Callable[[Store], Awaitable[_T]], server: str | None) -> _T:
    store = open_store(url)
    if not store.shared:
        raise ConfigError(
            "a store in memory is seen by its own process only: give the URL of a shared one"
        )
    if isinstance(store, SqliteStore) and not store.path.exists():
        raise ConfigError(f"there is no store in {store.path}: check the path")
    await store.open()
    try:
        return await work(store.for_server(server or await _only_server(store)))
    finally:
        await store.close()


async def _only_server(store: Store) -> str:
    """Return the name of the only server that has rows in a store."""
    servers = await store.servers()
    if len(servers) > 1:
        raise ConfigError(
            f"several servers use this store: {list_names(servers)}. Name one with --server."
        )
    return servers[0] if servers else ""


async def _one(store: Store, keys: Keys, call: str) -> tuple[list[OpenedEffect], list[Asked]]:
    """Read the effects of a call, and what was asked of others in it."""
    effects = await opened(await store.effects(call), keys)
    asked = await store.items_of(call) if isinstance(store, Inbox) else ()
    return effects, [(item, list(said)) for item, said in asked]


async def _read(
    store: Store, keys: Keys, *, limit: int, uncertain: bool
) -> tuple[list[Listed], int, list[Asked]]:
    """Read calls with effects and decisions, how many are beyond the limit, and held calls."""
    calls = await store.calls(limit=limit, uncertain=uncertain)
    more = 0
    if len(calls) >= limit:
        more = max(await store.count_calls(uncertain=uncertain) - len(calls), 0)
    rows: list[Listed] = []
    for call in calls:
        effects, asked = await _one(store, keys, call.call)
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
        for item in await store.items(ItemFilter(store.server, open=is_open), limit=limit)
    ]
    calls = dict.fromkeys(item.call for item in items if item.call not in without)
    return [(item, list(said)) for call in calls for item, said in await store.items_of(call)]


def _plain(
    call: CallRow, effects: list[OpenedEffect], said: list[DecisionRecord]
) -> dict[str, Any]:
    return {
        "call": call.call,
        "round": call.mark,
        "state": call.state,
        "uncertain": call.uncertain,
        "blocking": call.blocking,
        "tool": call.tool,
        "caller": call.caller,
        "started": moment(call.started) if call.started else None,
        "expires": moment(call.expires),
        "effects": plain_effects(effects),
        "decisions": [_plain_decision(record) for record in said],
    }


def _plain_item(item: Item, said: list[DecisionRecord]) -> dict[str, Any]:
    return {
        "item": item.id,
        "call": item.call,
        "tool": item.tool,
        "key": item.key,
        "role": item.role,
        "status": item.status,
        "created": moment(item.created),
        "expires": moment(item.expires),
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
        "at": moment(record.at),
        "arguments": record.arguments.hex(),
    }


def _show(console: Console, call: CallRow, effects: list[OpenedEffect]) -> None:
    words = f"{call.call}  round {call.mark} {_state(call)}"
    if call.tool:
        words += f", {call.tool} by {caller_name(call.caller)}"
    if call.started:
        words += f", {age(call.started)} old"
    words += f", expires {moment(call.expires)}"
    console.print(Text(safe_line(words, 300)))
    show_effects(console, effects)


def _show_held(console: Console, item: Item) -> None:
    state = "waits for" if item.status == "open" else f"{item.status}, asked of"
    words = f"{item.call}  {state} {item.role or 'its caller'}, {item.tool}"
    when = f", {age(item.created)} old, until {moment(item.expires)}"
    console.print(Text(safe_line(words + when, 300)))


def _show_decisions(console: Console, said: list[DecisionRecord]) -> None:
    for record in said:
        who = f"{record.name or record.subject} ({record.issuer} {record.subject})"
        words = f"  {record.key}  {record.decision}  by {who}, {record.how}, {moment(record.at)}"
        console.print(Text(safe_line(words, 300)))


def _state(call: CallRow) -> str:
    """Return the state of a call; an effect to settle comes before the state of its round."""
    if call.uncertain:
        return "uncertain"
    return "blocking" if call.blocking else call.state
