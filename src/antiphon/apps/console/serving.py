"""The console as a part of a running server: its pages, its notices and what is counted for it.

What the pages and the notices are made with is loaded when they are, because most servers have no
console.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from antiphon.console import Console
from antiphon.engine.environment import Environment
from antiphon.errors import ConfigError
from antiphon.ports import Clock, Inbox, Overview, Telemetry

if TYPE_CHECKING:
    from antiphon.apps.console.app import ConsoleApp
    from antiphon.apps.console.counting import RoundCounts


def counting(telemetry: Telemetry | None, clock: Clock) -> "RoundCounts":
    """Return what counts rounds for the operators' page, around the author's telemetry."""
    from antiphon.apps.console.counting import RoundCounts

    return RoundCounts(telemetry, clock)


class ServedConsole:
    """The console of one server."""

    def __init__(
        self,
        settings: Console,
        counts: "RoundCounts",
        environment: Environment,
        inbox: Callable[[], Inbox],
    ) -> None:
        """Take what is counted, and where the inbox is found once it is needed."""
        self.settings = settings
        self._counts = counts
        self._environment = environment
        self._inbox = inbox

    def pages(self) -> "ConsoleApp":
        """Return the pages as an ASGI application.

        Raises:
            ConfigError: What the pages are made with is not installed.
        """
        try:
            from antiphon.apps.console.app import ConsoleApp
        except ImportError as error:
            raise ConfigError(
                f"the console's pages need {error.name}: install antiphon[console]"
            ) from error
        return ConsoleApp(self._environment, self._inbox(), self.settings)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Send notices while the server runs, and add up what operators are shown."""
        environment, store = self._environment, self._environment.store
        async with AsyncExitStack() as stack:
            if isinstance(store, Overview):
                from antiphon.apps.console.counting import CountWriter, writing

                writer = CountWriter(
                    self._counts, environment.trouble, store, environment.sealer.audience
                )
                await stack.enter_async_context(writing(writer))
            if self.settings.notify:
                from antiphon.apps.console.notices import sending

                await stack.enter_async_context(sending(environment, self._inbox(), self.settings))
            yield
