"""What an ask or an effect is refused for before it happens. Reads a run and changes nothing."""

import inspect
from typing import TYPE_CHECKING

from antiphon.engine.call import Rejected
from antiphon.errors import HandlerError, ToolError

if TYPE_CHECKING:
    from antiphon.engine.execution import Execution


def check_secret(run: "Execution", kind: str, key: str, *, secret: bool) -> None:
    """Refuse a secret that could be kept nowhere but in the token (S6-2)."""
    if secret and not run.services.spill and run.round.era == "modern":
        raise HandlerError(
            f"{kind} {key!r} is secret=True, so its value must stay out of the token, and this "
            "server has no store to keep it in. Give Server(store=...) one."
        )


def check_function(what: str, key: object, fn: object) -> None:
    """Refuse what cannot be called, before it is claimed and fails for good."""
    if callable(fn) and isinstance(key, str):
        return
    if inspect.iscoroutine(fn):
        fn.close()  # it was never going to be awaited
    raise HandlerError(
        f"ctx.{what} takes a key, a function and its arguments, and calls the function itself: "
        f'ctx.{what}("create", create, name), not ctx.{what}(create(name)).'
    )


def check_tries(key: str, rejected: Rejected, limit: int) -> None:
    """Give up on an ask whose answers never fit."""
    if rejected.tries > limit:
        raise ToolError(f"The answer to {key!r} did not fit after {limit} more tries.")
