"""Whether a request gets to a handler: who may know of it, which scopes it needs, how often each
caller may begin a call, and who must approve first: `@server.tool(approve=Approve(...))`."""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from antiphon.engine.context import Context
from antiphon.engine.handler import Invoke, call_here, is_async
from antiphon.errors import ConfigError, ToolError
from antiphon.handlers.call_limits import CallLimits
from antiphon.protocol.asks import TOOL_APPROVAL, Approve
from antiphon.protocol.credentials import require_scopes
from antiphon.protocol.failures import log_failure
from antiphon.protocol.request import Principal, Request

_log = logging.getLogger("antiphon")

Visible: TypeAlias = Callable[[Principal], bool]

_NOT_DONE = {
    "declined": "Declined{who}. Nothing was done.",
    "expired": "Nobody decided in time. Nothing was done.",
    "cancelled": "The question was withdrawn. Nothing was done.",
    "unavailable": "It needs an approval, and nobody can be asked. Nothing was done.",
}


class HandlerAdmission:
    """What stands before one tool, prompt, resource or template."""

    __slots__ = ("_limits", "_visible", "_what", "scopes")

    def __init__(
        self,
        what: str,
        visible: Visible | None,
        limits: CallLimits | None,
        scopes: frozenset[str] = frozenset(),
    ) -> None:
        self._what = what
        self._visible = visible
        self._limits = limits
        self.scopes: frozenset[str] = scopes
        """What the credential of a request to it must allow, where credentials have scopes."""

    @property
    def restricted(self) -> bool:
        """Whether not every caller sees the handler."""
        return self._visible is not None

    def sees(self, principal: Principal) -> bool:
        """Return whether a caller may know of it; nobody does where that cannot be told."""
        if self._visible is None:
            return True
        try:
            return call_here(self._visible, principal) is True
        except Exception as error:  # noqa: BLE001 - whatever it is, it did not say yes
            log_failure(_log, error, "visible= of %s failed; it is hidden", self._what)
            return False

    def admits(self, request: Request) -> bool:
        """Count a request to the handler; False where its caller does not know of it.

        Raises:
            InsufficientScope: The credential of the request does not allow it.
            TooManyCalls: The caller has begun too many calls of it.
        """
        if not self.sees(request.principal):
            return False
        if self.scopes:
            require_scopes(self.scopes, request.channel.scopes)
        if self._limits is not None:
            self._limits.begin(request)
        return True


def admission(
    kind: str,
    name: str,
    visible: Visible | None,
    scopes: frozenset[str],
    limits: CallLimits | None = None,
) -> HandlerAdmission | None:
    """Return what stands before a handler; None where everybody may call it as often as they like.

    Args:
        kind: What it is, for the log.
        name: Its name or URI, for the log.
        visible: Says who may know of it.
        scopes: What the credential of a request to it must allow.
        limits: How often each may begin a call of it.
    """
    limited = limits is not None and limits.has_rate
    if visible is None and not scopes and not limited:
        return None
    return HandlerAdmission(f"{kind} {name!r}", visible, limits, scopes)


def check_visible(visible: object) -> None:
    """Refuse what cannot say who sees a handler."""
    if visible is None:
        return
    if not callable(visible) or is_async(visible) or inspect.isclass(visible):
        raise ConfigError(
            "visible= takes a plain function of the principal that returns True or False"
        )


def approved_invoke(invoke: Invoke, approve: Approve) -> Invoke:
    """Ask before the handler runs; it does not run unless somebody said yes."""

    async def approved(context: Context, arguments: dict[str, Any]) -> Any:
        ask = msgspec.structs.replace(approve, message=_filled(approve.message, arguments))
        await require_approval(context, ask)
        return await invoke(context, arguments)

    return approved


async def require_approval(context: Context, ask: Approve) -> None:
    """Ask before anything else happens.

    Raises:
        ToolError: Nobody said yes; the text says why, and that nothing was done.
    """
    asked = await context.gather(**{TOOL_APPROVAL: ask})
    approval = asked[TOOL_APPROVAL]
    if not approval:
        who = f" by {approval.role}" if approval.role else ""
        raise ToolError(_NOT_DONE[approval.outcome].format(who=who))


def _filled(message: str, arguments: Mapping[str, Any]) -> str:
    """Put arguments into a message; only whole values, so that a template reaches nothing else."""
    for name, value in arguments.items():
        message = message.replace(f"{{{name}}}", str(value))
    return message
