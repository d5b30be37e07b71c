"""Pages made of templates. Everything that is shown is escaped here, and nowhere is it trusted."""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, cast

from jinja2 import ChoiceLoader, PackageLoader, StrictUndefined, select_autoescape
from jinja2 import Environment as Templates
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from antiphon.apps.console import guard
from antiphon.apps.console.faces import PageGroup
from antiphon.apps.console.form_fields import Field
from antiphon.apps.console.inbox_view import MOST, PAGE, Shown
from antiphon.apps.console.sessions import Session
from antiphon.console import Console
from antiphon.protocol.text import escape, safe

STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
SOON = 3600.0
"""Seconds to the end from which on a list points at it."""

_LISTED = ("view", "tool", "role", "after")
"""What chooses the items of a list."""

_HEADINGS = {401: "Signed out", 404: "Nothing here", 503: "Not now"}
_MESSAGE, _DETAIL, _WHY = 2_000, 2_000, 4_000
_WORDS = {
    "open": "Waiting",
    "approved": "Approved",
    "declined": "Declined",
    "answered": "Answered",
    "expired": "Expired",
    "withdrawn": "Withdrawn",
}


class Pages:
    """The templates of one console."""

    def __init__(
        self,
        console: Console,
        server: str,
        clock: Callable[[], float],
        faces: Sequence[PageGroup] = (),
    ) -> None:
        self._console = console
        self._server = server
        self._clock = clock
        self._templates = Templates(
            loader=ChoiceLoader(
                [PackageLoader("antiphon.apps.console"), *(PackageLoader(f.package) for f in faces)]
            ),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = cast("dict[str, Any]", self._templates.filters)  # pyright: ignore[reportUnknownMemberType]
        filters.update(left=self._left, soon=self._soon, moment=moment, iso=iso)
        filters.update(shown=_shown_text, whole=escape)
        self._static = _static_files("antiphon.apps.console", STATIC)
        for face in faces:
            filters.update(face.filters)
            self._static |= _static_files(face.package, face.static)
        self._faces = [(face.path, face.title, face.role) for face in faces]

    def render(self, name: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Return a page made of a template."""
        session = values.get("session")
        if isinstance(session, Session):
            values["place"] = guard.place_of(session.secret, self._console)
        place = values.setdefault("place", "")
        text = self._templates.get_template(name).render(
            base=f"{place}{self._console.path}",
            console=self._console.path,
            server=self._server,
            words=_WORDS,
            faces=self._faces,
            **values,
        )
        return HTMLResponse(text, status, headers=guard.HEADERS)

    def inbox(
        self,
        session: Session,
        view: str,
        items: Sequence[Shown],
        counts: Mapping[str, int],
        query: Mapping[str, str],
        version: str,
    ) -> HTMLResponse:
        """Return the list of items."""
        last = items[-1].item if len(items) == PAGE else None
        return self.render(
            "inbox.html",
            session=session,
            token=session.proof(guard.CSRF),
            person=session.person,
            view=view,
            items=items,
            counts={name: f"{n}+" if n >= MOST else str(n) for name, n in counts.items()},
            tools=sorted({one.item.tool for one in items}),
            tool=query.get("tool", ""),
            role=query.get("role", ""),
            after="" if last is None else f"{last.created!r}~{last.id}",
            query={name: query[name] for name in _LISTED if name in query},
            version=version,
        )

    def item(
        self,
        session: Session,
        shown: Shown,
        *,
        notes: Sequence[str],
        fields: Sequence[Field],
        stamp: str,
        status: int,
        problem: str,
        note: str,
        version: str,
    ) -> HTMLResponse:
        """Return the page of one item."""
        return self.render(
            "item.html",
            status,
            session=session,
            token=session.proof(guard.CSRF),
            person=session.person,
            shown=shown,
            item=shown.item,
            face=shown.face,
            said=list(zip(shown.said, notes, strict=True)),
            fields=fields,
            errors=[field for field in fields if field.error],
            stamp=stamp,
            problem=problem,
            note=note,
            version=version,
        )

    def sign_in(self, *, by_link: bool, following: str = "", ended: str = "") -> HTMLResponse:
        """Return the page that explains how to sign in: with a one-time link, or at the login.

        Args:
            by_link: Whether people sign in with one-time links.
            following: The page that was asked for. A browser that is signed in opens it below
                the path of its session.
            ended: The path of a session that has ended, which the browser forgets.
        """
        return self.render("sign_in.html", 401, by_link=by_link, following=following, ended=ended)

    def link(self, secret: str) -> HTMLResponse:
        """Return the page of a one-time link: a button."""
        return self.render("link.html", secret=secret)

    def error(
        self, text: str, status: int, *, following: str = "", note: str = "", place: str = ""
    ) -> HTMLResponse:
        """Return a page that says what is wrong.

        Args:
            text: What is wrong, for the person.
            status: Of the response.
            following: Where signing in leads to; empty when it would not help.
            note: What the person had written.
            place: Of the session, as the address of the request names it.
        """
        heading = _HEADINGS.get(status, "Not done")
        return self.render(
            "error.html",
            status,
            heading=heading,
            text=text,
            following=following,
            note=note,
            place=place,
        )

    def plain(self, text: str, status: int) -> Response:
        """Return a text."""
        return PlainTextResponse(text, status, headers=guard.HEADERS)

    def static(self, name: str) -> Response:
        """Return the style sheet, the script or the icon."""
        if name not in self._static:
            return self.error("There is nothing here.", 404)
        data, media = self._static[name]
        headers = {**guard.HEADERS, "cache-control": "private, max-age=300"}
        return Response(data, media_type=media, headers=headers)

    def _left(self, expires: float) -> str:
        return left(expires - self._clock())

    def _soon(self, expires: float) -> bool:
        return expires - self._clock() < SOON


def _static_files(package: str, media: Mapping[str, str]) -> dict[str, tuple[bytes, str]]:
    folder = files(package).joinpath("static")
    return {name: (folder.joinpath(name).read_bytes(), kind) for name, kind in media.items()}


def left(seconds: float) -> str:
    """Return how much time is left, in words."""
    if seconds <= 0:
        return "time is over"
    minutes = int(seconds // 60)
    if minutes < 1:
        return "less than a minute left"
    if minutes < 60:
        return f"{minutes} min left"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min left"
    return f"{hours // 24} days left"


def moment(at: float) -> str:
    """Return a point in time for people, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def iso(at: float) -> str:
    """Return a point in time for programs."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _shown_text(text: str, kind: str = "detail") -> str:
    limit = {"message": _MESSAGE, "why": _WHY}.get(kind, _DETAIL)
    return safe(text, limit)
