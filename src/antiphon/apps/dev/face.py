"""The pages of the developer's console: what the server offers, a call, and what is done to it.

A browser can call what the server offers, answer it, and disturb it. It cannot name a program, a
file or an address: those are what `antiphon dev` was started with.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.apps.console import guard
from antiphon.apps.console.faces import Desk
from antiphon.apps.console.form_fields import Field, fields_of, read_fields
from antiphon.apps.console.live import KEEP_ALIVE, LONGEST, LiveResponse, Streams
from antiphon.apps.console.sessions import Session
from antiphon.apps.dev.arguments import argument_fields, read_arguments, typed_arguments
from antiphon.apps.dev.call import DevCall, OpenAsk, Wanted, message_of
from antiphon.apps.dev.disturb import disturb
from antiphon.apps.dev.hosts import ABILITIES, PROFILES, ClientProfile, profile_of
from antiphon.apps.dev.promises import DISTURBANCES, TITLES
from antiphon.apps.dev.timeline import claims_of, moment
from antiphon.apps.dev.wire import as_text, shown_exchanges
from antiphon.apps.dev.workbench import Offered, Workbench
from antiphon.client.asks import Accept, AnyAsk, Cancel, Decline, FormAsk, Roots, Sampled
from antiphon.errors import UnsupportedForm
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.inbox import Item
from antiphon.protocol.request import Era
from antiphon.protocol.text import clip, escape

KINDS = {"form": "a form", "url": "a page to visit", "sample": "a completion", "roots": "roots"}
BY_HAND = "by-hand"
LEAST_PAUSE = 0.15
"""Seconds between two notices to one page."""

LONGEST_TEXT = 20_000
"""Characters of one text that a page shows."""

LONGEST_LINE = 500
SHOWN_TEXTS = 20


class AskOnPage(msgspec.Struct, frozen=True):
    """A question as the page shows it."""

    key: str
    ask: AnyAsk
    message: str
    problem: str
    fields: tuple[Field, ...]


class DevFace:
    """The pages at `/dev`."""

    path = "dev"
    title = "Dev"
    role = ""
    package = "antiphon.apps.dev"
    static: Mapping[str, str] = {
        "dev.css": "text/css; charset=utf-8",
        "dev.js": "text/javascript; charset=utf-8",
    }

    filters: Mapping[str, Callable[[Any], str]] = {
        "clock": moment,
        "json": lambda value: clip(as_text(value), LONGEST_TEXT),
        "text": lambda value: escape(clip(value, LONGEST_TEXT)),
        "line": lambda value: escape(clip(value, LONGEST_LINE)),
    }

    def __init__(self, bench: Workbench, base: str, root: str) -> None:
        """Take what is shown.

        Args:
            bench: The server's process and the calls.
            base: The console's path.
            root: The author's folder, offered where a server asks for roots.
        """
        self._bench = bench
        self._base = base
        self._root = root
        self._choice = PROFILES[0]
        self._streams = Streams()

    def routes(self, desk: Desk) -> Sequence[Route]:
        """Return the routes."""

        def route(path: str, serve: Any, method: str = "GET") -> Route:
            return Route(f"{self._base}/dev{path}", partial(serve, desk), methods=[method])

        return [
            route("", self._start),
            route("/call", self._begin, "POST"),
            route("/restart", self._restart, "POST"),
            route("/events", self._events),
            route("/call/{id}", self._call),
            route("/call/{id}/answer", self._answer, "POST"),
            route("/call/{id}/cancel", self._cancel, "POST"),
            route("/call/{id}/do", self._do, "POST"),
            route("/call/{id}/role", self._take_role, "POST"),
        ]

    # --- what is offered -------------------------------------------------------------------------

    async def _start(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        offered = await self._bench.list_offered()
        query = request.query_params
        like = self._bench.calls.get(query.get("like", ""))
        if like is not None:
            return self._like(desk, session, like.wanted)
        chosen = self._bench.find(query.get("kind", "tool"), query.get("name", ""))
        if chosen is None and offered and "name" not in query:
            chosen = offered[0]
        fields = [] if chosen is None else argument_fields(chosen.schema)
        return self._start_page(desk, session, chosen, fields)

    def _like(self, desk: Desk, session: Session, wanted: Wanted) -> Response:
        """Offer a call with the arguments of an earlier one."""
        chosen = self._bench.find(wanted.kind, wanted.offered)
        if chosen is None:
            return self._start_page(desk, session, None, [])
        given = {"uri": wanted.name} if chosen.template else wanted.arguments
        fields = argument_fields(chosen.schema, typed_arguments(chosen.schema, given))
        return self._start_page(desk, session, chosen, fields)

    def _start_page(
        self,
        desk: Desk,
        session: Session,
        chosen: Offered | None,
        fields: Sequence[Field],
        problem: str = "",
    ) -> Response:
        choice = self._choice
        return desk.pages.render(
            "dev_start.html",
            422 if problem else 200,
            **self._common(session),
            heading=chosen.name if chosen is not None else "Nothing is chosen",
            chosen=chosen,
            call=None,
            fields=fields,
            problem=problem,
            profiles=PROFILES,
            abilities=ABILITIES,
            choice={"client": choice.name, "era": choice.era, "can": choice.can},
        )

    def _common(self, session: Session) -> dict[str, Any]:
        bench = self._bench
        return {
            "session": session,
            "person": session.person,
            "token": session.proof(guard.CSRF),
            "target": bench.target,
            "process": bench.process,
            "printed": list(bench.process.printed)[-100:],
            "offered": bench.offered,
            "trouble": bench.trouble,
            "calls": list(reversed(bench.calls.values()))[:12],
            "revision": bench.revision,
        }

    async def _begin(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        sent = await desk.form(request, session)
        await self._bench.list_offered()
        chosen = self._bench.find(_one(sent, "kind"), _one(sent, "name"))
        if chosen is None:
            raise HTTPException(404)
        self._choice = _profile(sent)
        arguments, fields = read_arguments(chosen.schema, sent)
        if arguments is None:
            return self._start_page(desk, session, chosen, fields, "Some arguments do not fit.")
        if not await self._bench.process.is_up():
            text = "The server does not run. Save its file, and try again."
            return self._start_page(
                desk, session, chosen, argument_fields(chosen.schema, sent), text
            )
        call = self._bench.begin(_wanted(chosen, arguments, self._choice))
        await self._bench.settled(call)
        return desk.to(session, f"dev/call/{call.id}")

    async def _restart(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        sent = await desk.form(request, session)
        await self._bench.process.restart()
        call = self._bench.calls.get(_one(sent, "call"))
        return desk.to(session, "dev" if call is None else f"dev/call/{call.id}")

    # --- one call --------------------------------------------------------------------------------

    def _found(self, request: Request) -> DevCall:
        call = self._bench.calls.get(request.path_params["id"])
        if call is None:
            raise HTTPException(404)
        return call

    async def _call(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        call = self._found(request)
        await self._bench.list_offered()
        bench, reveal = self._bench, request.query_params.get("reveal") == "1"
        rounds, records = await bench.rounds(call)
        files = records.files()
        ids = [one.claims.call for one in rounds if one.claims is not None]
        for row in await bench.timeline.effects(ids[-1] if ids else records.call):
            call.effects[row.key] = row
        result = call.shown_result
        profile = profile_of(call.wanted.client)
        return desk.pages.render(
            "dev_call.html",
            **self._common(session),
            heading=call.wanted.name,
            chosen=None,
            call=call,
            client_title=profile.title if profile is not None else "chosen by hand",
            rounds=rounds if call.wanted.era == "modern" else rounds[:1],
            asks=[_shown(one) for one in list(call.open.values())],
            kinds=KINDS,
            root=self._root,
            files=files,
            marked=sum(file.marked for file in files),
            arguments=clip(msgspec.json.encode(call.wanted.arguments).decode(), LONGEST_LINE),
            edited=records.edited(call.starts or bench.process.starts),
            diverged=records.diverged,
            raised=records.raised,
            journal=bench.timeline.journal_lines(
                rounds, await bench.task_journal(call), reveal=reveal
            ),
            effects=list(call.effects.values()),
            claims=claims_of(rounds),
            wire=shown_exchanges(call.wire),
            reveal=reveal,
            result=result,
            texts=_texts(result),
            items=await self._items_of(call, records.call),
            disturbances=DISTURBANCES,
        )

    async def _answer(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        sent = await desk.form(request, session)
        call = self._found(request)
        opened = call.open.get(_one(sent, "key"))
        if opened is not None:
            answer, said = _read_answer(opened, sent)
            if answer is not None:
                call.say(opened.key, answer, said)
                await asyncio.sleep(0)
                await self._bench.settled(call)
        return desk.to(session, f"dev/call/{call.id}")

    async def _cancel(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        await desk.form(request, session)
        call = self._found(request)
        call.cancel()
        await self._bench.settled(call)
        return desk.to(session, f"dev/call/{call.id}")

    async def _take_role(self, desk: Desk, request: Request) -> Response:
        """Give the developer a role that an open question is for, and open the question."""
        session = await desk.signed(request)
        sent = await desk.form(request, session)
        call = self._found(request)
        item = next(
            (one for one in await self._bench.open_items() if one.id == _one(sent, "item")), None
        )
        if item is None:
            return desk.to(session, f"dev/call/{call.id}")
        person = session.person
        roles = tuple(dict.fromkeys((*person.roles, item.role)))
        return await desk.welcome(
            msgspec.structs.replace(person, roles=roles), f"{self._base}/ask/{item.id}"
        )

    async def _do(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        sent = await desk.form(request, session)
        call = self._found(request)
        what = _one(sent, "what")
        if what not in TITLES:
            raise HTTPException(404)
        call.attempts.append(await disturb(self._bench, call, what))
        del call.attempts[:-20]
        call.changed()
        await self._bench.settled(call)
        return desk.to(session, f"dev/call/{call.id}")

    async def _items_of(self, call: DevCall, id: str) -> list[Item]:
        """Return the questions of a call that wait for somebody who is not the client."""
        return [item for item in await self._bench.open_items() if id and item.call == id]

    # --- live ------------------------------------------------------------------------------------

    async def _events(self, desk: Desk, request: Request) -> Response:
        session = await desk.signed(request)
        if not self._streams.enter(session.secret):
            return desk.pages.plain("Too many pages are open.", 429)
        known = request.query_params.get("known", "")
        stream = self._changes(int(known) if known.isdigit() else -1)
        headers = {**guard.HEADERS, "x-accel-buffering": "no"}
        return LiveResponse(stream, headers, partial(self._streams.leave, session.secret))

    async def _changes(self, known: int) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST
        yield b"retry: 1000\n\n"
        while loop.time() < end:
            if self._bench.revision != known:
                known = self._bench.revision
                yield f"event: changed\ndata: {known}\n\n".encode()
                await asyncio.sleep(LEAST_PAUSE)
            else:
                await self._bench.change(KEEP_ALIVE)
                if self._bench.revision == known:
                    yield b": alive\n\n"


# --- forms ----------------------------------------------------------------------------------------


def _one(sent: Mapping[str, Sequence[str]], name: str) -> str:
    values = sent.get(name, [])
    return values[0] if len(values) == 1 else ""


def _profile(sent: Mapping[str, Sequence[str]]) -> ClientProfile:
    """Return the client that was chosen: one by name, or era and abilities."""
    known = profile_of(_one(sent, "client"))
    if known is not None:
        return known
    era: Era = "legacy" if _one(sent, "era") == "legacy" else "modern"
    chosen = sent.get("can", ())
    can: tuple[Capability, ...] = tuple(name for name, _ in ABILITIES if name in chosen)
    return ClientProfile(BY_HAND, "chosen by hand", era, can)


def _wanted(chosen: Offered, arguments: dict[str, Any], profile: ClientProfile) -> Wanted:
    name = str(arguments.pop("uri")) if chosen.template else chosen.name
    kind = cast("Any", chosen.kind)
    can = frozenset(profile.can)
    return Wanted(kind, name, arguments, profile.era, can, profile.name, chosen.name)


def _shown(opened: OpenAsk) -> AskOnPage:
    fields: tuple[Field, ...] = ()
    problem = opened.problem
    if isinstance(opened.ask, FormAsk):
        try:
            fields = _prefixed(opened)
        except UnsupportedForm as error:
            problem = f"Nobody can fill this form: {error}"
    return AskOnPage(opened.key, opened.ask, message_of(opened.ask), problem, fields)


def _prefixed(opened: OpenAsk) -> tuple[Field, ...]:
    """Return the fields of a form, named so that several forms may stand on one page."""
    assert isinstance(opened.ask, FormAsk)
    fields = fields_of(opened.ask.schema)
    if opened.sent is not None:
        fields = read_fields(opened.ask.schema, opened.sent).fields or fields
    return tuple(
        msgspec.structs.replace(field, name=f"{opened.key}.{field.name}") for field in fields
    )


def _read_answer(opened: OpenAsk, sent: Mapping[str, Sequence[str]]) -> tuple[Any, str]:
    """Return an answer and what it says in a word; None where it does not fit."""
    choice = _one(sent, "choice")
    if choice == "decline":
        return Decline(), "declined"
    if choice == "cancel":
        return Cancel(), "cancelled"
    if choice != "accept":
        return None, ""
    match opened.ask.kind:
        case "form":
            return _read_form(opened, sent)
        case "url":
            return Accept(), "agreed"
        case "sample":
            return Sampled(_one(sent, "text"), model="a person"), "answered"
        case _:
            return _read_roots(opened, _one(sent, "text"))


def _read_form(opened: OpenAsk, sent: Mapping[str, Sequence[str]]) -> tuple[Any, str]:
    assert isinstance(opened.ask, FormAsk)
    start = f"field-{opened.key}."
    own = {
        f"field-{name.removeprefix(start)}": list(values)
        for name, values in sent.items()
        if name.startswith(start)
    }
    filled = read_fields(opened.ask.schema, own)
    if filled.values is None:
        opened.sent, opened.problem = own, "Some answers do not fit."
        return None, ""
    return Accept(filled.values), "accepted"


def _read_roots(opened: OpenAsk, text: str) -> tuple[Any, str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        return Roots(lines), f"{len(lines)} roots"
    except ValueError as error:
        opened.problem = str(error)
        return None, ""


def _texts(result: Any) -> list[str]:
    """Return the texts of a result, of whatever kind."""
    if not isinstance(result, dict):
        return []
    members = cast("dict[str, Any]", result)
    parts = [
        *cast("list[dict[str, Any]]", members.get("content") or []),
        *cast("list[dict[str, Any]]", members.get("contents") or []),
        *(
            cast("dict[str, Any]", message["content"])
            for message in cast("list[dict[str, Any]]", members.get("messages") or [])
            if isinstance(message.get("content"), dict)
        ),
    ]
    return [str(part["text"]) for part in parts if "text" in part][:SHOWN_TEXTS]
