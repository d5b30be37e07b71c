"""What an author gives `Server(...)`: checked, and put into the surroundings of a command."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from antiphon.apps.console.serving import ServedConsole, counting
from antiphon.engine.environment import Redeem
from antiphon.engine.handler import check_choice
from antiphon.errors import ConfigError
from antiphon.handlers.middleware import Middleware
from antiphon.protocol.request import Era
from antiphon.server.assembly import ServerParts, ServerPlan, ServerSettings, TaskRunsIn
from antiphon.transports.http.principal import Authorization, PrincipalOf

if TYPE_CHECKING:
    from antiphon.apps.console.counting import RoundCounts
    from antiphon.auth import OAuth
    from antiphon.console import Console

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a command puts around the servers that it loads, instead of what their authors say."""

    store: str
    console: "Console"
    middleware: tuple[Middleware, ...] = ()
    """Outside of the author's. The keys are those of the environment."""

    auth: Authorization | None = None
    """In place of the author's `auth=` or `principal=`."""

    everywhere: bool = False
    """Whether `auth` also says who calls a server whose author does not ask."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    """What the author's own `auth=` or `principal=` is given with every request."""

    def access_for(self, principal: PrincipalOf | None, auth: "OAuth | None") -> "Access":
        """Return who may call a server of which the author says this."""
        asks = self.everywhere or principal is not None or auth is not None
        return Access(principal, auth, self.auth if asks else None, self.headers)

    def put_around(self, plan: ServerPlan) -> ServerPlan:
        """Return a plan with this store, the keys of the environment, and tasks run in place."""
        seal = replace(plan.seal, keys=(), keys_file=None, codec=None)
        settings: ServerSettings = {
            **plan.settings,
            "carrier": "leases:",
            "task_runs": "in_process",
        }
        return replace(plan, seal=seal, store=self.store, settings=settings)

    def console_for(self, authors: "Console | None") -> "Console":
        """Return the console, with the roles that the author's has."""
        if authors is None or authors.roles is None:
            return self.console
        return replace(self.console, roles={role: role for role in authors.roles})


loading_within: ContextVar[Surroundings | None] = ContextVar("antiphon_loading", default=None)
"""Set by a command while it loads a server, as `antiphon dev` does in the server's own process."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call over HTTP, as the author says it."""

    principal: PrincipalOf | None
    auth: "OAuth | None"
    stand_in: Authorization | None = None
    """What a command puts in the place of both."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    """What a command adds to every request, to be identified by."""

    def __post_init__(self) -> None:
        """Refuse two that would say who calls.

        Raises:
            ConfigError: Names the settings.
        """
        if self.auth is not None and self.principal is not None:
            raise ConfigError("Server(auth=...) says who calls: leave out principal=")


def check(name: str, settings: ServerSettings) -> None:
    """Refuse at start what would fail later.

    Raises:
        ConfigError: Names the setting and the cure.
    """
    if not name:
        raise ConfigError("Server(name) must not be empty")
    for unknown in settings.keys() - ServerSettings.__optional_keys__:
        raise ConfigError(f"Server() has no setting {unknown!r}")
    check_choice("redeem", settings.get("redeem", "once"), get_args(Redeem))
    check_choice("task_runs", settings.get("task_runs", "in_process"), get_args(TaskRunsIn))
    eras = settings.get("eras", ("modern",))
    for era in eras:
        check_choice("eras", era, get_args(Era))
    if "modern" not in eras:
        raise ConfigError('eras= must contain "modern"; only the legacy era can be closed')


def enter(lifespan: Callable[[S], object], server: S) -> AbstractAsyncContextManager[object]:
    """Return what is open while a server runs.

    Raises:
        ConfigError: The author's function makes no context manager.
    """
    manager = lifespan(server)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigError(
            f"Server(lifespan=...) returned a {type(manager).__name__}: put @asynccontextmanager "
            "of contextlib above the function"
        )
    return cast("AbstractAsyncContextManager[object]", manager)


def counted(settings: ServerSettings) -> "RoundCounts":
    """Count rounds for the operators' page as well, whatever telemetry the author has."""
    counts = counting(settings.get("telemetry"), settings.get("clock", time.time))  # noqa: TID251
    settings["telemetry"] = counts
    return counts


def served(console: "Console", counts: "RoundCounts | None", parts: ServerParts) -> ServedConsole:
    """Return the console of a server, with what is counted for it."""
    assert counts is not None
    return ServedConsole(console, counts, parts.environment, lambda: parts.tasks.inbox)
