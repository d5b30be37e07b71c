"""Functions whose first reply is lost, after they have done what they do."""

from collections.abc import Awaitable, Callable
from typing import Any


def first_reply_lost(
    fn: Callable[..., Awaitable[Any]], lost: list[str]
) -> Callable[..., Awaitable[Any]]:
    """Return the function; its first call fails after it was done, and notes so."""
    name = fn.__name__

    async def once_lost(*arguments: Any) -> Any:
        result = await fn(*arguments)
        if name not in lost:
            lost.append(name)
            raise ConnectionError("the reply was lost")
        return result

    return once_lost
