"""FastMCP in its own environment, guard style: the tool looks whether the answer is there."""

import json
import sys
from typing import Any

import mcp_types as types
from fastmcp import Context, FastMCP

from bench.servers.listening import listen
from bench.story import QUESTIONS, SCHEMA, question

server = FastMCP("bench")


def _asked(part: int, text: str, answers: list[Any]) -> types.InputRequiredResult:
    form = types.ElicitRequestFormParams(message=text, requested_schema=SCHEMA)
    return types.InputRequiredResult(
        result_type="input_required",
        input_requests={f"part-{part}": types.ElicitRequest(params=form)},
        request_state=json.dumps(answers),
    )


def _answers(ctx: Context) -> list[Any]:
    answers = json.loads(ctx.request_state) if ctx.request_state else []
    given = (ctx.input_responses or {}).get(f"part-{len(answers) + 1}")
    return [*answers, given.content] if given is not None else answers


@server.tool(output_schema=None)
async def plain(name: str) -> str:
    return f"hello {name}"


@server.tool(output_schema=None)
async def mrtr(name: str, ctx: Context) -> Any:
    answers = _answers(ctx)
    if not answers:
        return _asked(1, f"Where should {name} run?", answers)
    return f"{name} in {answers[0]['region']}, size {answers[0]['size']}"


@server.tool(output_schema=None)
async def wizard(name: str, ctx: Context) -> Any:
    answers = _answers(ctx)
    if len(answers) < QUESTIONS:
        part = len(answers) + 1
        return _asked(part, question(part), answers)
    return f"{name} in {QUESTIONS} parts, size {sum(a['size'] for a in answers)}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio", show_banner=False)
    else:
        listen(server.http_app(path="/mcp", json_response=True, stateless_http=True))
