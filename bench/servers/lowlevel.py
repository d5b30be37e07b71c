"""The official SDK's low-level `Server` by hand, with the SDK's sealing of the state."""

import asyncio
import json
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server

from bench.servers.listening import listen
from bench.story import QUESTIONS, SCHEMA, question

_NEEDED = {"plain": 0, "mrtr": 1, "wizard": QUESTIONS}


def _text(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def on_call(ctx: Any, params: types.CallToolRequestParams) -> Any:
    name = (params.arguments or {})["name"]
    answers = json.loads(params.request_state) if params.request_state else []
    key = f"part-{len(answers) + 1}"
    given: Any = (params.input_responses or {}).get(key)
    if given is not None:
        answers.append(given.content)
    if len(answers) < _NEEDED[params.name]:
        part = len(answers) + 1
        text = question(part) if params.name == "wizard" else f"Where should {name} run?"
        form = types.ElicitRequestFormParams(message=text, requested_schema=SCHEMA)
        return types.InputRequiredResult(
            result_type="input_required",
            input_requests={f"part-{part}": types.ElicitRequest(params=form)},
            request_state=json.dumps(answers),
        )
    if params.name == "plain":
        return _text(f"hello {name}")
    if params.name == "mrtr":
        return _text(f"{name} in {answers[0]['region']}, size {answers[0]['size']}")
    return _text(f"{name} in {QUESTIONS} parts, size {sum(a['size'] for a in answers)}")


async def on_list(ctx: Any, params: Any) -> types.ListToolsResult:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema=schema) for name in _NEEDED]
    )


server: Server[Any] = Server("bench", version="0", on_call_tool=on_call, on_list_tools=on_list)
server.middleware.append(
    RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="bench")
)


async def over_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(over_stdio())
    else:
        listen(server.streamable_http_app(json_response=True, stateless_http=True))
