"""FastMCP 4 with its tasks, in its own environment: finishes, fails, asks in the background.

Run as a program: `stdio`, or `http`, which prints its port.
"""

# pyright: reportMissingImports=false, reportReturnType=false

import asyncio
import socket
import sys
from datetime import timedelta

import mcp_types as types
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

server = FastMCP("tasks-by-fastmcp")
server.add_extension(TasksExtension())

TASK = TaskConfig(mode="required", poll_interval=timedelta(milliseconds=100))
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def form(message: str) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=NAME)
    )


@server.tool(task=TASK)
async def work(label: str) -> str:
    """Take a moment."""
    await asyncio.sleep(0.2)
    return f"{label} is done"


@server.tool(task=TASK)
async def spoil() -> str:
    """Report an error of the tool."""
    raise ToolError("the milk is sour")


@server.tool(task=TASK)
async def ask(ctx: Context) -> str:
    """Ask two things at once, then one more."""
    answers = ctx.input_responses or {}
    if "first" in answers:
        both = f"{answers['first'].content['name']} and {answers['second'].content['name']}"
        return types.InputRequiredResult(
            result_type="input_required",
            input_requests={"third": form(f"{both}, and who else?")},
            request_state=both,
        )
    if "third" in answers:
        return f"{ctx.request_state} and {answers['third'].content['name']}"
    return types.InputRequiredResult(
        result_type="input_required",
        input_requests={"first": form("First?"), "second": form("Second?")},
    )


@server.tool(task=TASK)
async def hold() -> str:
    """Wait until cancelled."""
    await asyncio.Event().wait()
    return "never"


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio", show_banner=False)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = server.http_app(path="/mcp")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
