from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from antiphon import Server
from tests.legacy.wire import Old, old, serving

Connect = Callable[..., Awaitable[Old]]


@pytest.fixture
def server() -> Server:
    return Server("desk", version="1.0.0")


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Connect]:
    """Serve the test's server at the first use; each use is a session of its own."""
    async with AsyncExitStack() as stack:
        urls: list[str] = []

        async def open_session(
            revision: str = "2025-11-25", capabilities: dict[str, Any] | None = None, **options: Any
        ) -> Old:
            if not urls:
                urls.append(await stack.enter_async_context(serving(server, **options)))
            return await stack.enter_async_context(old(urls[0], revision, capabilities))

        yield open_session
