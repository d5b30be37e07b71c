"""The operators' page: what waits, what is uncertain, how it goes. For the role `operator`.

Names of calls and effects and numbers are shown here, never questions, details or answers; of an
effect that has to be settled, what it was called with. It is settled by a form that needs a reason;
the person is kept with it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.apps.console import guard
from antiphon.apps.console.faces import Desk
from antiphon.apps.console.ops_view import MOST, PAGE, OpsView
from antiphon.apps.console.sessions import Session
from antiphon.console import OPERATOR

REASON = 2_000
"""Characters of a reason."""


class OpsPages:
    """The pages at `/ops`."""

    path = "ops"
    title = "Ops"
    role = OPERATOR
    package = "antiphon.apps.console"
    static: Mapping[str, str] = {"ops.css": "text/css; charset=utf-8"}

    def __init__(self, view: OpsView, base: str, clock: Callable[[], float]) -> None:
        """Take what is shown, the console's path, and the time."""
        self._view = view
        self._base = base
        self._clock = clock

    @property
    def filters(self) -> Mapping[str, Callable[[Any], str]]:
        """Filters of its templates."""
        return {
            "age": lambda at: span_of(self._clock() - at),
            "span": span_of,
            "up_to": lambda number: str(number) if number < MOST else f"{MOST} or more",
            "rate": rate_of,
        }

    def routes(self, desk: Desk) -> Sequence[Route]:
        """Return the routes."""
        return [
            Route(f"{self._base}/ops", partial(self._page, desk)),
            Route(f"{self._base}/ops/settle", partial(self._settle, desk), methods=["POST"]),
        ]

    async def _operator(self, desk: Desk, request: Request) -> Session:
        """Return the session of an operator; for everybody else there is nothing here."""
        session = await desk.signed(request)
        if OPERATOR not in session.person.roles:
            raise HTTPException(404)
        return session

    async def _page(self, desk: Desk, request: Request) -> Response:
        session = await self._operator(desk, request)
        query = request.query_params
        return await self._shown(
            desk,
            session,
            items_after=_after(query.get("items", "")),
            tasks_after=_after(query.get("tasks", "")),
            effects_after=_effect_after(query.get("effects", "")),
        )

    async def _shown(
        self, desk: Desk, session: Session, status: int = 200, problem: str = "", **after: Any
    ) -> Response:
        return desk.pages.render(
            "ops.html",
            status,
            session=session,
            person=session.person,
            token=session.proof(guard.CSRF),
            shown=await self._view.shown(**after),
            page=PAGE,
            problem=problem,
        )

    async def _settle(self, desk: Desk, request: Request) -> Response:
        session = await self._operator(desk, request)
        sent = await desk.form(request, session)
        reason = _one(sent, "reason").strip()[:REASON]
        choice = _one(sent, "choice")
        if not reason:
            return await self._shown(desk, session, 422, "Say why: the reason is kept.")
        result = None
        if choice == "happened":
            try:
                result = msgspec.json.encode(msgspec.json.decode(_one(sent, "result") or "null"))
            except msgspec.DecodeError:
                return await self._shown(desk, session, 422, "The result must be JSON.")
        elif choice != "not-happened":
            return await self._shown(desk, session, 400, "Press one of the buttons.")
        settled = await self._view.settle(
            session.person, _one(sent, "call"), _one(sent, "key"), result=result, reason=reason
        )
        if not settled:
            text = "It was too late: this effect is settled already, or its process lives."
            return await self._shown(desk, session, 409, text)
        return desk.to(session, "ops")


def span_of(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def rate_of(number: float) -> str:
    """Return a rate with as many digits as say something."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _one(sent: Mapping[str, Sequence[str]], name: str) -> str:
    values = sent.get(name, [])
    return values[0] if len(values) == 1 else ""


def _after(text: str) -> tuple[float, str] | None:
    at, _, id = text.partition("~")
    try:
        return (float(at), id) if id and id.isprintable() else None
    except ValueError:
        return None


def _effect_after(text: str) -> tuple[float, str, str] | None:
    parts = text.split("~", 2)
    found = _after("~".join(parts[:2]))
    return (*found, parts[2]) if found is not None and len(parts) == 3 else None
