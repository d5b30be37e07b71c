"""Tools that are approved before their first line: `@server.tool(approve=Approve(...))`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.asks import Approve
from antiphon.engine.context import Context
from antiphon.engine.handler import Invoke
from antiphon.errors import ToolError

KEY = "approve:tool"

_NOT_DONE = {
    "declined": "Declined{who}. Nothing was done.",
    "expired": "Nobody decided in time. Nothing was done.",
    "cancelled": "The question was withdrawn. Nothing was done.",
    "unavailable": "It needs an approval, and nobody can be asked. Nothing was done.",
}


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
    asked = await context.gather(**{KEY: ask})
    approval = asked[KEY]
    if not approval:
        who = f" by {approval.role}" if approval.role else ""
        raise ToolError(_NOT_DONE[approval.outcome].format(who=who))


def _filled(message: str, arguments: Mapping[str, Any]) -> str:
    """Put arguments into a message; only whole values, so that a template reaches nothing else."""
    for name, value in arguments.items():
        message = message.replace(f"{{{name}}}", str(value))
    return message
