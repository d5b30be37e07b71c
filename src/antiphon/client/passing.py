"""What passes through a client to the SDK's session: lists, completion, subscriptions.

Owns the bound of one reply and the names of its failures. Knows no call that may ask.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp.client.subscriptions import Subscription, listen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from antiphon.client.endings import remote_error
from antiphon.client.errors import ConnectionLost, InvalidResponse, ReplyTimeExceeded
from antiphon.client.flow_types import Lost, Patience
from antiphon.client.link import Link

MAX_PAGES = 1000
"""Pages of one list; a bound against a server whose cursors never end."""


class Passing(ABC):
    """The half of a client that no server may ask anything in."""

    _patience: Patience

    @abstractmethod
    async def _linked(self) -> Link: ...

    async def list_tools(self) -> list[types.Tool]:
        """List the tools, all pages. On HTTP, tools with wrong header annotations are left out."""
        return await self._pages("tools/list", "list_tools", "tools")

    async def list_prompts(self) -> list[types.Prompt]:
        """List the prompts, all pages."""
        return await self._pages("prompts/list", "list_prompts", "prompts")

    async def list_resources(self) -> list[types.Resource]:
        """List the resources, all pages."""
        return await self._pages("resources/list", "list_resources", "resources")

    async def list_resource_templates(self) -> list[types.ResourceTemplate]:
        """List the resource templates, all pages."""
        method = "resources/templates/list"
        return await self._pages(method, "list_resource_templates", "resource_templates")

    async def complete(
        self,
        ref: types.PromptReference | types.ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Ask the server to complete the value of an argument."""
        link = await self._linked()
        result = await self._bounded(
            link,
            link.session.complete(
                ref, {"name": argument, "value": value}, dict(context) if context else None
            ),
        )
        return result.completion.values

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Sequence[str] = (),
    ) -> AsyncGenerator[Subscription]:
        """Subscribe to changes; iterate what it yields. Modern servers only.

        Raises:
            ReplyTimeExceeded: The server did not acknowledge the subscription in time.
        """
        link = await self._linked()
        async with AsyncExitStack() as stack:
            subscription = await self._bounded(
                link,
                stack.enter_async_context(
                    listen(
                        link.session,
                        tools_list_changed=tools,
                        prompts_list_changed=prompts,
                        resources_list_changed=resources,
                        resource_subscriptions=list(uris),
                    )
                ),
            )
            yield subscription

    async def _pages(self, method: str, verb: str, field: str) -> list[Any]:
        link = await self._linked()
        ask: Callable[..., Awaitable[Any]] = getattr(link.session, verb)

        async def page(cursor: str | None) -> Any:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            return await self._bounded(link, ask(params=params))

        # Pages that follow another are not kept: their cursors are the server's own affair.
        found = await link.cache.fetch(method, "", partial(page, None))
        items: list[Any] = list(getattr(found, field))
        for _ in range(MAX_PAGES):
            if found.next_cursor is None:
                return items
            found = await page(found.next_cursor)
            items.extend(getattr(found, field))
        raise InvalidResponse(f"the list has more than {MAX_PAGES} pages")

    async def _bounded(self, link: Link, request: Awaitable[Any]) -> Any:
        try:
            with anyio.fail_after(self._patience.reply):
                return await request
        except TimeoutError:
            bound = f"no reply within {self._patience.reply:g} s"
            raise ReplyTimeExceeded(bound, "reply") from None
        except ValidationError as error:
            raise InvalidResponse(f"{error.error_count()} faults in {error.title}") from error
        except MCPError as error:
            outcome = link.outcome(error)
            if isinstance(outcome, Lost):
                raise ConnectionLost(outcome.why, sent=outcome.sent) from error
            raise remote_error(outcome) from error
