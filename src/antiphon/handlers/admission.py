"""Whether a request gets to a tool: who may know of it, and how often each may begin a call."""

import inspect
import logging
from collections.abc import Callable
from typing import TypeAlias

from antiphon.core.failures import log_failure
from antiphon.core.request import Principal, Request
from antiphon.engine.handler import call_here, is_async
from antiphon.errors import ConfigError
from antiphon.handlers.call_limits import CallLimits

_log = logging.getLogger("antiphon")

Visible: TypeAlias = Callable[[Principal], bool]


class ToolAdmission:
    """What stands before one tool."""

    __slots__ = ("_limits", "_tool", "_visible")

    def __init__(self, tool: str, visible: Visible | None, limits: CallLimits) -> None:
        self._tool = tool
        self._visible = visible
        self._limits = limits

    @property
    def restricted(self) -> bool:
        """Whether not every caller sees the tool."""
        return self._visible is not None

    def sees(self, principal: Principal) -> bool:
        """Return whether a caller may know of the tool; nobody does where that cannot be told."""
        if self._visible is None:
            return True
        try:
            return call_here(self._visible, principal) is True
        except Exception as error:  # noqa: BLE001 - whatever it is, it did not say yes
            text = "visible= of tool %r failed; the tool is hidden"
            log_failure(_log, error, text, self._tool)
            return False

    def admits(self, request: Request) -> bool:
        """Count a request to the tool; False where its caller does not know of it.

        Raises:
            TooManyCalls: The caller has begun too many calls of it.
        """
        if not self.sees(request.principal):
            return False
        self._limits.begin(request)
        return True


def admission(tool: str, visible: Visible | None, limits: CallLimits) -> ToolAdmission | None:
    """Return what stands before a tool; None where everybody may call it as often as they like."""
    return ToolAdmission(tool, visible, limits) if visible is not None or limits.has_rate else None


def check_visible(visible: object) -> None:
    """Refuse what cannot say who sees a tool."""
    if visible is None:
        return
    if not callable(visible) or is_async(visible) or inspect.isclass(visible):
        raise ConfigError(
            "visible= takes a plain function of the principal that returns True or False"
        )
