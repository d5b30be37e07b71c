"""FastMCP 4's client with its tasks, in its own environment, against our server.

Run as a program with a URL, or with `--` and a command for stdio; prints one JSON object with what
came of every call. FastMCP 4.1 leaves `Mcp-Name` out of requests about tasks (TASK-28), which a
server must refuse (HDR-02); before a URL, `named` makes its requests say the name.
"""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys
from typing import Any

import fastmcp_tasks
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks.client import CancelTaskRequest, GetTaskRequest, UpdateTaskRequest

ANSWERS = {
    "Who?": {"name": "Ada"},
    "First?": {"name": "one"},
    "Second?": {"name": "two"},
}


async def answer(message: str, response_type: Any, params: Any, context: Any) -> ElicitResult:
    return ElicitResult(action="accept", content=ANSWERS.get(message, {"sure": True}))


async def outcome(client: Client, tool: str, arguments: dict[str, Any] | None = None) -> str:
    try:
        result = await client.call_tool(tool, arguments or {})
    except ToolError as error:
        return f"tool error: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return result.content[0].text


def target(words: list[str]) -> Any:
    if words[0] == "named":
        for request in (GetTaskRequest, UpdateTaskRequest, CancelTaskRequest):
            request.name_param = "taskId"
        return words[1]
    if words[0] == "--":
        return StdioTransport(words[1], words[2:], env=dict(os.environ))
    return words[0]


async def main(words: list[str]) -> None:
    async with Client(target(words), elicitation_handler=answer) as client:
        said = {
            "work": await outcome(client, "work", {"label": "tea"}),
            "spoil": await outcome(client, "spoil"),
            "breach": await outcome(client, "breach"),
            "ask": await outcome(client, "ask"),
            "ask_both": await outcome(client, "ask_both"),
            "phases": await outcome(client, "phases"),
        }
        if "Mcp-Name" in said["work"]:
            print(json.dumps(said))
            return
        task = await fastmcp_tasks.call_tool_task(client, "hold", {})
        await task.cancel()
        await task.wait(state="cancelled", timeout=20)
        said["hold"] = (await task.status()).status
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
