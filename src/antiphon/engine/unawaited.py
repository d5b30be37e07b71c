"""An approval that was not awaited yet. Owns one refusal: it has no truth before it has an answer.

`if ctx.approve(...)` without `await` would find a coroutine, and every coroutine is true. Knows no
run; it is a coroutine like the one it holds, for task groups and `gather`.
"""

from collections.abc import Coroutine, Generator
from typing import Any

from antiphon.core.asks import Approval
from antiphon.errors import HandlerError


class Unawaited(Coroutine[Any, Any, Approval]):
    """What `ctx.approve` gives: await it, and only then look whether it is true."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Approval]) -> None:
        self._inner = inner

    def __bool__(self) -> bool:
        """Refuse to be taken for a yes."""
        self._inner.close()
        raise HandlerError(
            "ctx.approve was not awaited, so nobody was asked. Write `if await ctx.approve(...)`."
        )

    def __await__(self) -> Generator[Any, Any, Approval]:
        """Ask, and wait for the answer."""
        return self._inner.__await__()

    def send(self, value: Any, /) -> Any:
        """Go on, as the coroutine does."""
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise inside, as the coroutine does."""
        return self._inner.throw(*error)

    def close(self) -> None:
        """End it, as the coroutine does."""
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        """Give what task groups look at in a coroutine (`cr_running` and its like)."""
        return getattr(self._inner, name)
