"""A tool that asks, with langchain-mcp-adapters: a callback answers while the call is open.

This package speaks the earlier era of the protocol. Its calls cannot wait without a connection, and
an `interrupt()` in the callback would lose the call: use it where the person is there, and
`langgraph_interrupt.py` where they are not.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.tools import BaseTool
from langchain_mcp_adapters.callbacks import CallbackContext, Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitRequestParams, ElicitResult

Fill = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Takes the question and the schema of its form; returns the form, or None to decline."""


async def tools(url: str, fill: Fill) -> list[BaseTool]:
    """Return the tools of a server, for any agent of LangChain."""

    async def ask(mcp: Any, params: ElicitRequestParams, context: CallbackContext) -> ElicitResult:
        content = await fill(params.message, params.requestedSchema)
        if content is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=content)

    client = MultiServerMCPClient(
        {"cloud": {"transport": "streamable_http", "url": url}},
        callbacks=Callbacks(on_elicitation=ask),
    )
    return await client.get_tools()
