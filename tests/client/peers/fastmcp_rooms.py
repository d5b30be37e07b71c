"""FastMCP 4, in its own environment: asks a room, then a confirmation, then books.

Run as a program: `stdio`, or `http`, which prints its port.
"""

# pyright: reportMissingImports=false, reportReturnType=false

import socket
import sys

import mcp_types as types
import uvicorn
from fastmcp import Context, FastMCP

server = FastMCP("rooms-by-fastmcp")

ROOM = {
    "type": "object",
    "properties": {
        "room": {"type": "string", "enum": ["Elm", "Oak"]},
        "seats": {"type": "integer", "minimum": 1, "default": 4},
    },
    "required": ["room"],
}
SURE = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


def form(message: str, schema: dict) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


@server.tool
async def book(day: str, ctx: Context) -> str:
    """Book a room."""
    answers = ctx.input_responses or {}
    if "room" in answers:
        content = answers["room"].content
        return types.InputRequiredResult(
            result_type="input_required",
            input_requests={"sure": form(f"Book {content['room']}?", SURE)},
            request_state=f"{content['room']} for {content['seats']}",
        )
    if "sure" in answers:
        return f"{ctx.request_state} on {day}" if answers["sure"].content["sure"] else "nothing"
    return types.InputRequiredResult(
        result_type="input_required", input_requests={"room": form(f"Which on {day}?", ROOM)}
    )


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
