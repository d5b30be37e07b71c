"""The console as a web application: routes, sessions and forms. Decides nothing by itself.

A GET never changes anything but the session's own life. Whoever is not signed in is sent to sign
in; whatever a signed-in person may not see is one 404.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.apps.console import guard, live
from antiphon.apps.console.decision_log import all_decisions
from antiphon.apps.console.faces import PageGroup
from antiphon.apps.console.form_fields import Field, fields_of, read_fields
from antiphon.apps.console.guard import BrowserLogin
from antiphon.apps.console.inbox_view import NOTE, VIEWS, InboxView, Listing, Shown
from antiphon.apps.console.ops import OpsPages
from antiphon.apps.console.ops_view import OpsView
from antiphon.apps.console.pages import Pages
from antiphon.apps.console.sessions import Session, Sessions, cookie_of, same
from antiphon.console import Console, CurrentLogin, Login, OneTimeLink, as_login
from antiphon.engine.environment import Environment
from antiphon.errors import StoreError
from antiphon.ports import Inbox, Overview
from antiphon.protocol.inbox import Changed, Closed, Decided, DecisionRecord, Person, Verdict

BODY = 256 * 1024
"""Bytes of a form that is sent."""

BODY_SECONDS = 30.0
"""For a whole form, however many pieces it comes in."""

KEPT_WORDS = 64 * 1024
"""Bytes of a form that is read although nobody is signed in, to give a note back."""

_NOT_HERE = "There is nothing here, or it is not for you."
_SAID = (403, 408, 413, 503)
"""Statuses whose text is ours to show."""

_REFUSALS = {
    "own": "You made this call, so somebody else has to decide.",
    "role": "You may not decide this.",
    "twice": "You have decided this already.",
    "assurance": "Sign in again before you decide this.",
    "choice": "This cannot be answered like that.",
    "unknown": _NOT_HERE,
}


class ConsoleApp:
    """The pages of one server, as an ASGI application mounted at the console's path."""

    def __init__(
        self,
        environment: Environment,
        store: Inbox,
        console: Console,
        faces: Sequence[PageGroup] = (),
    ) -> None:
        """Make the pages of the inbox, and those of other faces beside them."""
        self._environment = environment
        self._store = store
        self._console = console
        self._login: Login = as_login(console.login)
        self._sessions = Sessions(environment, store)
        self.view: InboxView = InboxView(environment, store, console)
        self._first = faces[0].path if faces else "inbox"
        if isinstance(store, Overview):
            view = OpsView(environment, store, store)
            faces = (*faces, OpsPages(view, console.path, environment.clock))
        self._pages = Pages(console, environment.sealer.audience, environment.clock, faces)
        self._streams = live.Streams()
        base = console.path
        self._app: ASGIApp = Starlette(
            routes=[
                Route(f"{base}", self._home),
                Route(f"{base}/", self._home),
                Route(f"{base}/inbox", self._inbox),
                Route(f"{base}/ask/{{id}}", self._item),
                Route(f"{base}/ask/{{id}}", self._decide, methods=["POST"]),
                Route(f"{base}/ask/{{id}}/withdraw", self._withdraw, methods=["POST"]),
                Route(f"{base}/events", self._events),
                Route(f"{base}/login", self._sign_in),
                Route(f"{base}/login/callback", self._signed_in),
                Route(f"{base}/link/{{secret}}", self._link),
                Route(f"{base}/link/{{secret}}", self._use_link, methods=["POST"]),
                Route(f"{base}/logout", self._sign_out, methods=["POST"]),
                Route(f"{base}/static/{{name}}", self._static),
                *(route for face in faces for route in face.routes(self)),
            ],
            exception_handlers={HTTPException: self._refused, StoreError: self._no_store},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request below the console's path."""
        place = guard.place_in(scope["path"], self._console)
        if place:
            scope = {**scope, "root_path": place}
        request = Request(scope)
        if not guard.is_our_host(request.headers, self._console):
            response = self._pages.plain("This Host is not the console's.", 403)
            return await response(scope, receive, send)
        if request.method == "POST" and not guard.is_from_our_pages(request.headers, self._console):
            response = self._pages.error("This form was not sent from here.", 403, place=place)
            return await response(scope, receive, send)
        if _announced(request.headers) > BODY:
            response = self._pages.error("The form is too large.", 413, place=place)
            return await response(scope, receive, send)
        return await self._app(scope, _bounded(receive, BODY, BODY_SECONDS), send)

    def serves(self, path: str) -> bool:
        """Whether a path is one of the console's."""
        base = self._console.path
        path = path.removeprefix(guard.place_in(path, self._console))
        return path == base or path.startswith(f"{base}/")

    def shutdown(self) -> None:
        """End the streams of open pages: a browser opens them again by itself, elsewhere."""
        self._streams.close()

    async def make_link(self, person: Person) -> str:
        """Return an address that signs this person in, once."""
        secret = await self._sessions.make_link(person)
        return f"{self._console.place.url}/link/{secret}"

    def decisions(self) -> AsyncGenerator[DecisionRecord]:
        """Yield everything that was decided here, the first decision first."""
        return all_decisions(self._store, self._environment.sealer.audience)

    # --- signing in ------------------------------------------------------------------------------

    @property
    def _by_link(self) -> bool:
        return isinstance(self._login, OneTimeLink)

    async def _session(self, request: Request) -> Session | None:
        secret = cookie_of(request.cookies, self._console.cookie)
        if not secret or not same(self._place(request), guard.place_of(secret, self._console)):
            return None
        # A page that is only open asks by itself what has changed.
        return await self._sessions.find(secret, in_use="x-live" not in request.headers)

    def _place(self, request: Request) -> str:
        """Return the place of a session that the address of a request names."""
        return guard.place_in(request.scope["path"], self._console)

    async def signed(self, request: Request) -> Session:
        """Return the session of a request, or send the browser to sign in."""
        session = await self._session(request)
        if session and request.method == "POST" and isinstance(self._login, CurrentLogin):
            session = await self._current(request, self._login, session)
        if session is not None:
            return session
        if request.method != "GET":
            raise HTTPException(401, "You are not signed in any more. Nothing was done.")
        place = self._place(request)
        where = urlencode({"next": request.url.path.removeprefix(place), "ended": place})
        raise HTTPException(303, headers={"location": f"{self._console.path}/login?{where}"})

    async def _current(
        self, request: Request, login: CurrentLogin, session: Session
    ) -> Session | None:
        """Return the session with the roles that its person has now; None when it has ended."""
        found = await login.current(request)
        if found is None or found.identity != session.person.identity:
            await self._sessions.end(session.secret)
            return None
        now = self._console.person(found)
        person = msgspec.structs.replace(session.person, name=now.name, roles=now.roles)
        return Session(session.secret, person)

    async def _sign_in(self, request: Request) -> Response:
        following = guard.safe_return(request.query_params.get("next", ""), self._console)
        fresh = request.query_params.get("fresh") == "1"
        if not fresh and await self._session(request) is not None:
            return RedirectResponse(self._place(request) + following, 303, headers=guard.HEADERS)
        started = BrowserLogin(
            self._sessions, self._console, self._environment.clock, request, following
        )
        found = await self._login.begin(request, started, fresh=fresh)
        if isinstance(found, Person):
            return await self.welcome(found, following)
        if found is None:
            ended = guard.place_in(request.query_params.get("ended", ""), self._console)
            return self._pages.sign_in(by_link=self._by_link, following=following, ended=ended)
        started.tie(found)
        return found

    async def _signed_in(self, request: Request) -> Response:
        started = BrowserLogin(self._sessions, self._console, self._environment.clock, request, "")
        person = await self._login.finish(request, started)
        if person is None:
            return self._pages.error("Signing in did not work. Try again.", 403)
        response = await self.welcome(person, started.following)
        await started.finish(response)
        return response

    async def _link(self, request: Request) -> Response:
        """Show a button: previews and scanners open links, people press buttons."""
        return self._pages.link(request.path_params["secret"])

    async def _use_link(self, request: Request) -> Response:
        person = await self._sessions.use_link(request.path_params["secret"])
        if person is None:
            return self._pages.error("This link was used already, or its time is over.", 403)
        return await self.welcome(person, f"{self._console.path}/{self._first}")

    async def welcome(self, signed_in: Person, following: str) -> Response:
        """Begin a session for a person, and go on to a page of the console."""
        session = await self._sessions.start(self._console.person(signed_in))
        place = guard.place_of(session.secret, self._console)
        following = place + guard.safe_return(following, self._console)
        response = RedirectResponse(following, 303, headers=guard.HEADERS)
        response.set_cookie(
            self._console.cookie,
            session.secret,
            httponly=True,
            secure=self._console.secure,
            samesite="lax",
            path=place or "/",
        )
        return response

    async def _sign_out(self, request: Request) -> Response:
        session = await self.signed(request)
        form = await request.form()
        if not guard.is_own_form(str(form.get("token", "")), session):
            raise HTTPException(403, "This form was not made for you.")
        await self._sessions.end(session.secret)
        place = self._place(request)
        response = self._pages.sign_in(by_link=self._by_link, ended=place)
        response.delete_cookie(self._console.cookie, path=place or "/")
        return response

    # --- the inbox -------------------------------------------------------------------------------

    async def _home(self, request: Request) -> Response:
        return self._to(self._place(request), self._first)

    def to(self, session: Session, path: str) -> Response:
        """Send the browser to another page of the console."""
        return self._to(guard.place_of(session.secret, self._console), path)

    def _to(self, place: str, path: str) -> Response:
        where = f"{place}{self._console.path}/{path}"
        return RedirectResponse(where, 303, headers=guard.HEADERS)

    @property
    def pages(self) -> Pages:
        """The templates."""
        return self._pages

    async def form(self, request: Request, session: Session) -> dict[str, list[str]]:
        """Return a form that this session's own page has sent.

        Raises:
            HTTPException: It was made for somebody else.
        """
        async with request.form(max_files=0, max_fields=200, max_part_size=BODY) as form:
            sent = {name: [str(each) for each in form.getlist(name)] for name in form}
        if not guard.is_own_form(_one(sent, "token"), session):
            raise HTTPException(403, "This form was not made for you. Nothing was done.")
        return sent

    async def _inbox(self, request: Request) -> Response:
        session = await self.signed(request)
        query = request.query_params
        view = query.get("view", VIEWS[0])
        if view not in VIEWS:
            raise HTTPException(404)
        person = session.person
        listing = _listing(query)
        items = await self.view.listed(person, listing)
        counts = await self.view.counts(person)
        version = live.mark(await self.view.version(person, listing))
        return self._pages.inbox(session, view, items, counts, dict(query), version)

    async def _item(self, request: Request) -> Response:
        session = await self.signed(request)
        shown = await self._found(request, session)
        return await self._item_page(session, shown)

    async def _found(self, request: Request, session: Session) -> Shown:
        shown = await self.view.one(request.path_params["id"], session.person)
        if shown is None:
            raise HTTPException(404)
        return shown

    async def _item_page(
        self,
        session: Session,
        shown: Shown,
        *,
        status: int = 200,
        problem: str = "",
        note: str = "",
        fields: tuple[Field, ...] | None = None,
    ) -> Response:
        if fields is None and shown.face is not None and shown.item.kind == "form":
            fields = fields_of(json.loads(shown.face.schema))
        notes = [await self.view.note(shown, record) for record in shown.said]
        now = self._environment.clock()
        stamp = f"{now:.3f}"
        version = await self.view.item_version(session.person, shown.item.id)
        return self._pages.item(
            session,
            shown,
            notes=notes,
            fields=fields or (),
            stamp=f"{stamp}.{session.proof(_stamped(shown, stamp))}",
            status=status,
            problem=problem,
            note=note,
            version=live.mark(version),
        )

    async def _decide(self, request: Request) -> Response:
        session = await self.signed(request)
        shown = await self._found(request, session)
        async with request.form(max_files=0, max_fields=200, max_part_size=BODY) as form:
            sent = {name: [str(each) for each in form.getlist(name)] for name in form}
        if not guard.is_own_form(_one(sent, "token"), session):
            raise HTTPException(403, "This form was not made for you. Nothing was done.")
        choice = _one(sent, "choice")
        if choice not in ("approve", "decline", "answer"):
            return await self._item_page(
                session, shown, status=400, problem="Press one of the buttons."
            )
        answer = b""
        note = _one(sent, "note")
        if choice == "answer" and shown.face is not None and shown.item.kind == "form":
            filled = read_fields(json.loads(shown.face.schema), sent)
            if filled.values is None:
                return await self._item_page(
                    session, shown, status=422, note=note, fields=filled.fields,
                    problem="Some answers do not fit.",
                )  # fmt: skip
            answer = json.dumps(filled.values).encode()
        verdict = await self.view.decide(
            shown,
            session.person,
            choice,  # pyright: ignore[reportArgumentType] - checked above
            digest=_digest(_one(sent, "digest")),
            first_shown=self._first_shown(session, shown, _one(sent, "shown")),
            note=note,
            answer=answer,
        )
        if isinstance(verdict, Decided):
            return self.to(session, f"ask/{quote(shown.item.id)}")
        again = await self._found(request, session)
        status, problem = _why_not(verdict)
        return await self._item_page(session, again, status=status, problem=problem, note=note)

    def _first_shown(self, session: Session, shown: Shown, stamp: str) -> float:
        at, _, proven = stamp.rpartition(".")
        if proven and same(proven, session.proof(_stamped(shown, at))):
            return float(at)
        return 0.0

    async def _withdraw(self, request: Request) -> Response:
        session = await self.signed(request)
        shown = await self._found(request, session)
        form = await request.form()
        if not guard.is_own_form(str(form.get("token", "")), session):
            raise HTTPException(403, "This form was not made for you. Nothing was done.")
        if await self.view.withdraw(shown, session.person):
            return self.to(session, f"ask/{quote(shown.item.id)}")
        again = await self._found(request, session)
        return await self._item_page(
            session, again, status=409, problem="This can be withdrawn no more."
        )

    # --- live changes ----------------------------------------------------------------------------

    async def _events(self, request: Request) -> Response:
        session = await self._session(request)
        if session is None:
            return self._pages.plain("You are not signed in.", 401)
        if not self._streams.enter(session.secret):
            return self._pages.plain("Too many pages are open.", 429)
        query = request.query_params
        listing, id = _listing(query), query.get("item", "")

        async def version() -> str | None:
            current = await self._sessions.find(session.secret, in_use=False)
            if current is None:
                return None
            if id:
                return await self.view.item_version(current.person, id)
            return await self.view.version(current.person, listing)

        async def stream() -> AsyncGenerator[bytes]:
            try:
                async for event in live.changes(version, query.get("known", ""), self._streams):
                    yield event
            except StoreError:
                return  # the browser asks again by itself

        headers = {**guard.HEADERS, "x-accel-buffering": "no"}
        return live.LiveResponse(stream(), headers, partial(self._streams.leave, session.secret))

    async def _static(self, request: Request) -> Response:
        return self._pages.static(request.path_params["name"])

    # --- refusals --------------------------------------------------------------------------------

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 303 and error.headers is not None:
            return RedirectResponse(error.headers["location"], 303, headers=guard.HEADERS)
        if error.status_code == 401:
            return await self._signed_out(request, error.detail)
        text = error.detail if error.status_code in _SAID else _NOT_HERE
        return self._pages.error(text, error.status_code, place=self._place(request))

    async def _signed_out(self, request: Request, text: str) -> Response:
        """Say that the session has ended, lead back to the item, and lose no words.

        A stranger's form is read only if it is small and says so.
        """
        note = ""
        if 0 < _announced(request.headers) <= KEPT_WORDS:
            with suppress(HTTPException):  # no form of ours
                form = await request.form(max_files=0, max_fields=200, max_part_size=BODY)
                note = str(form.get("note", ""))[:NOTE]
        item = f"{self._console.path}/ask/{quote(request.path_params.get('id', ''))}"
        following = item if "id" in request.path_params else f"{self._console.path}/inbox"
        return self._pages.error(text, 401, following=following, note=note)

    async def _no_store(self, request: Request, error: Exception) -> Response:
        return self._pages.error(
            "The store cannot be reached. Nothing was decided; try again in a moment.",
            503,
            place=self._place(request),
        )


def _announced(headers: Mapping[str, str]) -> int:
    """Return the length that a request announces; 0 for none, as in a body in chunks."""
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _bounded(receive: Receive, most: int, seconds: float) -> Receive:
    """Read no more of a request than a form needs, and wait no longer for it as a whole."""
    left, more = most, True
    deadline: float | None = None

    async def bounded() -> Any:
        nonlocal left, more, deadline
        if not more:
            return await receive()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "The form did not come in time.") from None
        more = message.get("more_body", False)
        if message["type"] == "http.request":
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, "The form is too large.")
        return message

    return bounded


def _stamped(shown: Shown, stamp: str) -> str:
    return f"shown {shown.item.id} {shown.item.digest.hex()} {stamp}"


def _one(sent: dict[str, list[str]], name: str) -> str:
    values = sent.get(name, [])
    return values[0] if len(values) == 1 else ""


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _name(text: str) -> str | None:
    """Return a name to look for; None where nothing can have it."""
    return text if text and text.isprintable() else None


def _listing(query: Mapping[str, str]) -> Listing:
    """Return which list an address names."""
    return Listing(
        query.get("view", VIEWS[0]),
        _name(query.get("tool", "")),
        _name(query.get("role", "")),
        _after(query.get("after", "")),
    )


def _after(text: str) -> tuple[float, str] | None:
    at, _, id = text.partition("~")
    try:
        return (float(at), id) if id and id.isprintable() else None
    except ValueError:
        return None


def _why_not(verdict: Verdict) -> tuple[int, str]:
    if isinstance(verdict, Changed):
        return 409, "The question changed while you read it. Look again."
    if isinstance(verdict, Closed):
        return 409, "It was too late: this is decided already, or its time is over."
    assert not isinstance(verdict, Decided)
    return 403, _REFUSALS[verdict.reason]
