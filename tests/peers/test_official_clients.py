"""The official Python and TypeScript clients against our server, run for real, on both transports.

Our server is started by the command that users start it with.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters

from tests.child_processes import PATIENCE, ROOT, command, environment, http_server

TARGET = "tests.peers.booking_server:server"
TRANSPORTS = ("http", "stdio")
BOOKINGS = ("book", "native")
PEERS = ROOT / ".peers"
OAK = {"room": "Oak", "seats": 6}


@asynccontextmanager
async def served(transport: str) -> AsyncIterator[str | StdioServerParameters]:
    """What the Python client connects to."""
    if transport == "http":
        async with http_server(TARGET) as url:
            yield url
    else:
        program, *arguments = command(TARGET, "--stdio")
        yield StdioServerParameters(
            command=program, args=arguments, env=environment(), cwd=str(ROOT)
        )


# --- the Python client ---------------------------------------------------------------------------


class Person:
    """Answers the questions of the rooms, and keeps what it was asked."""

    def __init__(self, *, sure: bool = True) -> None:
        self.asked: list[str] = []
        self.sure = sure

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        self.asked.append(params.message)
        content: dict[str, Any] = (
            {"sure": self.sure} if "sure" in params.requested_schema["properties"] else OAK
        )
        return types.ElicitResult(action="accept", content=content)

    async def decline(self, context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        text = types.TextContent(type="text", text="carpe diem")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv")])  # type: ignore[arg-type]


def said(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


@pytest.mark.requirement("MRTR-S-01", "MRTR-S-10", "DISC-01", "HTTP-04", "STDIO-01")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_python_client_completes_calls_of_two_questions(transport: str) -> None:
    async with served(transport) as target, asyncio.timeout(PATIENCE):
        for tool in BOOKINGS:
            person = Person()
            async with Client(target, mode="auto", elicitation_callback=person.elicit) as client:
                assert client.protocol_version == "2026-07-28"
                result = await client.call_tool(tool, {"day": "Friday"})
            assert said(result) == "Oak for 6 on Friday"
            assert person.asked == ["Which on Friday?", "Book Oak?"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_python_client_answers_three_kinds_in_one_round(transport: str) -> None:
    person = Person()
    async with (
        served(transport) as target,
        asyncio.timeout(PATIENCE),
        Client(
            target,
            mode="auto",
            elicitation_callback=person.elicit,
            sampling_callback=person.sample,
            list_roots_callback=person.roots,
        ) as client,
    ):
        assert said(await client.call_tool("survey", {})) == "Oak, 'carpe diem', 1 roots"


@pytest.mark.requirement("ELICIT-03")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_refusal_in_the_python_client_is_an_error_result(transport: str) -> None:
    async with (
        served(transport) as target,
        asyncio.timeout(PATIENCE),
        Client(target, mode="auto", elicitation_callback=Person().decline) as client,
    ):
        assert (await client.call_tool("book", {"day": "Friday"})).is_error is True


# --- the TypeScript client -----------------------------------------------------------------------


async def typescript(transport: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run the TypeScript client as a program; gives what it printed."""
    async with served(transport) as target:
        where = target if isinstance(target, str) else json.dumps([target.command, *target.args])
        process = await asyncio.create_subprocess_exec(
            str(PEERS / "bin" / "node"),
            str(ROOT / "tests" / "peers" / "ts_client.mjs"),
            transport, where, tool, json.dumps(arguments),
            cwd=ROOT,
            env={**os.environ, **environment(), "PEERS_NODE": str(PEERS / "node" / "here.js")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE):
                out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, errors.decode(errors="replace")
    return json.loads(out)


@pytest.mark.requirement("MRTR-S-01", "MRTR-S-10", "HTTP-06")
@pytest.mark.parametrize("tool", BOOKINGS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_typescript_client_completes_calls_of_two_questions(
    transport: str, tool: str
) -> None:
    seen = await typescript(transport, tool, {"day": "Friday"})
    assert (seen["version"], seen["server"]) == ("2026-07-28", "rooms")
    assert seen["tools"] == ["book", "native", "survey"]
    assert seen["answers"] == ["Which on Friday?", "Book Oak?"]
    # On stdio this client drops progress that comes in one piece with the response.
    told = "one question is left" in seen["progress"]
    assert told == (tool == "book") or transport == "stdio"
    assert seen["result"]["content"] == [{"type": "text", "text": "Oak for 6 on Friday"}]


async def test_the_typescript_client_answers_three_kinds_in_one_round() -> None:
    seen = await typescript("http", "survey", {})
    assert seen["result"]["content"][0]["text"] == "Oak, 'carpe diem', 1 roots"
