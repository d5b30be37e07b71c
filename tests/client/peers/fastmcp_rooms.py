"""FastMCP 4, in its own environment: asks a room, then a confirmation, then books.

Run as a program: `stdio`, or `http`, which prints its port. `hold` writes to the file `EVENTS`.
"""

# pyright: reportMissingImports=false, reportReturnType=false

import asyncio
import os
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


def asks(key: str, request: types.InputRequest) -> types.InputRequiredResult:
    return types.InputRequiredResult(result_type="input_required", input_requests={key: request})


@server.tool
async def visit(ctx: Context) -> str:
    """Send somebody to a page."""
    answers = ctx.input_responses or {}
    page = types.ElicitRequestURLParams(
        message="Sign in", url="https://example.org/sign-in", elicitation_id="visit-1"
    )
    if "visit" in answers:
        return f"visit: {answers['visit'].action}"
    return asks("visit", types.ElicitRequest(params=page))


@server.tool
async def dream(ctx: Context) -> str:
    """Ask for a completion."""
    answers = ctx.input_responses or {}
    text = types.TextContent(type="text", text="A motto?")
    wanted = types.CreateMessageRequestParams(
        messages=[types.SamplingMessage(role="user", content=text)], max_tokens=20
    )
    if "dream" in answers:
        return f"dream: {answers['dream'].content.text}"
    return asks("dream", types.CreateMessageRequest(params=wanted))


@server.tool
async def where(ctx: Context) -> str:
    """Ask for the roots."""
    answers = ctx.input_responses or {}
    if "where" in answers:
        return f"where: {len(answers['where'].roots)}"
    return asks("where", types.ListRootsRequest())


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count with progress."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"at {number}")
    return "counted"


def note(what: str) -> None:
    with open(os.environ["EVENTS"], "a") as events:
        events.write(f"{server.name} {what}\n")


@server.tool
async def hold() -> str:
    """Wait until cancelled."""
    note("holding")
    try:
        await asyncio.Event().wait()
    finally:
        note("let go")
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
