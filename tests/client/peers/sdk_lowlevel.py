"""A hand-built server on the official low-level `Server`: form, completion, roots, pause, refusal.

Run as a program: `stdio`, or `http`, which prints its port. `hold` writes to the file `EVENTS`.
"""

import asyncio
import json
import os
import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

SCHEMA = {
    "type": "object",
    "properties": {
        "room": {"type": "string", "oneOf": [{"const": "elm", "title": "Elm"}, {"const": "oak"}]},
        "seats": {"type": "integer", "minimum": 1, "maximum": 20, "default": 4},
    },
    "required": ["room"],
}


def form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def text(body: str, *, error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=body)], is_error=error)


def asks(requests: dict[str, Any] | None, state: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(
        result_type="input_required",
        input_requests=requests,
        request_state=None if state is None else json.dumps(state),
    )


def sample() -> types.CreateMessageRequest:
    message = types.SamplingMessage(
        role="user", content=types.TextContent(type="text", text="A motto?")
    )
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=50)
    )


def page() -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestURLParams(
            message="Sign in", url="https://example.org/sign-in", elicitation_id="visit-1"
        )
    )


def on_asking(name: str, answers: dict[str, Any]) -> Any:
    """Ask one thing, and tell what came back."""
    requests = {"visit": page, "dream": sample, "where": types.ListRootsRequest}
    if name not in answers:
        return asks({name: requests[name]()}, None)
    found = answers[name]
    told = {
        "visit": lambda: found.action,
        "dream": lambda: found.content.text,
        "where": lambda: len(found.roots),
    }
    return text(f"{name}: {told[name]()}")


def note(what: str) -> None:
    with open(os.environ["EVENTS"], "a") as events:
        events.write(f"{server.name} {what}\n")


async def hold() -> types.CallToolResult:
    note("holding")
    try:
        await asyncio.Event().wait()
    finally:
        note("let go")
    return text("never")


async def count(ctx: Any, to: int) -> types.CallToolResult:
    for number in range(1, to + 1):
        await ctx.session.report_progress(number, to, f"at {number}")
    return text("counted")


async def on_call(ctx: Any, params: types.CallToolRequestParams) -> Any:
    answers = params.input_responses or {}
    state = json.loads(params.request_state) if params.request_state else None
    day = (params.arguments or {}).get("day", "someday")
    match params.name, state:
        case "book", None:
            return asks({"room": form(f"Which room on {day}?", SCHEMA)}, {"at": "room"})
        case "book", {"at": "room"}:
            answer: Any = answers["room"]
            if answer.action != "accept":
                return text(f"the room was {answer.action}", error=True)
            return asks(
                {"motto": sample(), "where": types.ListRootsRequest()},
                {"at": "paused", "content": answer.content},
            )
        case "book", {"at": "paused", "content": content}:
            motto: Any = answers["motto"]
            where: Any = answers["where"]
            found = {**content, "motto": motto.content.text, "roots": len(where.roots)}
            return asks(None, {"at": "last", "content": found})
        case "book", {"at": "last", "content": content}:
            return text(
                f"{content['room']} for {content['seats']} on {day}, "
                f"{content['motto']!r}, {content['roots']} roots"
            )
        case ("visit" | "dream" | "where") as name, _:
            return on_asking(name, answers)
        case "count", _:
            return await count(ctx, (params.arguments or {})["to"])
        case "hold", _:
            return await hold()
        case "ask", None:
            return asks({"room": form("Which?", SCHEMA)}, {"at": "room"})
        case "ask", {"at": "room"}:
            raise MCPError(code=-32602, message="Invalid requestState")
        case _:
            return text("no such tool", error=True)


async def on_list(ctx: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"day": {"type": "string"}}}
    return types.ListToolsResult(
        tools=[
            types.Tool(name="book", description="Book a room.", input_schema=schema),
            types.Tool(name="ask", description="Ask, then refuse the state.", input_schema=schema),
            *(
                types.Tool(name=name, description=f"To {name}.", input_schema={"type": "object"})
                for name in ("visit", "dream", "where", "count", "hold")
            ),
        ]
    )


async def on_prompt(ctx: Any, params: types.GetPromptRequestParams) -> Any:
    answers = params.input_responses or {}
    if "who" not in answers:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        return asks({"who": form("Who?", schema)}, None)
    who: Any = answers["who"]
    message = types.PromptMessage(
        role="user", content=types.TextContent(type="text", text=f"Hello {who.content['name']}")
    )
    return types.GetPromptResult(messages=[message])


server: Server[Any] = Server(
    "rooms-by-hand",
    version="1.0",
    on_call_tool=on_call,
    on_list_tools=on_list,
    on_get_prompt=on_prompt,
)


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    if sys.argv[1] == "stdio":
        asyncio.run(over_stdio())
        return
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
