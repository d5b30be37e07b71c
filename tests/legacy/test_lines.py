"""Both eras in one process on standard input and output."""

from typing import Any

from tests.child_processes import Stdio, stdio_server

DESK = "tests.legacy.asking_server:server"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


def request(id: int | str, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def shake_hands(server: Stdio, revision: str) -> dict[str, Any]:
    greeting = await server.ask(
        request(
            "hello",
            "initialize",
            protocolVersion=revision,
            capabilities={"sampling": {}, "roots": {}, "elicitation": {}},
            clientInfo={"name": "old", "version": "1"},
        )
    )
    await server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return greeting["result"]


async def test_the_oldest_revision_is_served_on_lines() -> None:
    async with stdio_server(DESK) as server:
        assert (await shake_hands(server, "2024-11-05"))["protocolVersion"] == "2024-11-05"
        ask = await server.ask(request(1, "tools/call", name="sample", arguments={}))
        assert ask["method"] == "sampling/createMessage"
        result = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}}
        answer = await server.ask({"jsonrpc": "2.0", "id": ask["id"], "result": result})
        assert answer["id"] == 1
        assert answer["result"]["content"] == [{"type": "text", "text": "hi"}]
        refused = await server.ask(
            request(2, "tools/call", name="form", arguments={"what": "orders"})
        )
        assert "2024-11-05" in refused["result"]["content"][0]["text"]
        status, rest = await server.close()
        assert (status, rest) == (0, b"")


async def test_eras_interleave_on_one_process() -> None:
    async with stdio_server(DESK) as server:
        await shake_hands(server, "2025-11-25")
        ask = await server.ask(request(1, "tools/call", name="form", arguments={"what": "a"}))
        assert ask["method"] == "elicitation/create"
        # A modern call with the same id, from its first round to its last, while the other waits.
        call = {"name": "form", "arguments": {"what": "b"}, "_meta": META}
        first = await server.ask(request(1, "tools/call", **call))
        assert first["result"]["resultType"] == "input_required"
        answers = {"placement": {"action": "accept", "content": {"region": "us"}}}
        state = first["result"]["requestState"]
        second = await server.ask(
            request(2, "tools/call", **call, inputResponses=answers, requestState=state)
        )
        assert second["result"]["content"][0]["text"] == "b in us, 2"
        result = {"action": "accept", "content": {"region": "eu"}}
        old = await server.ask({"jsonrpc": "2.0", "id": ask["id"], "result": result})
        assert old["id"] == 1
        assert old["result"]["content"][0]["text"] == "a in eu, 2"
        assert "resultType" not in old["result"]


async def test_the_end_of_input_ends_a_session_in_the_middle_of_an_ask() -> None:
    async with stdio_server(DESK) as server:
        await shake_hands(server, "2025-11-25")
        ask = await server.ask(request(1, "tools/call", name="form", arguments={"what": "a"}))
        assert ask["method"] == "elicitation/create"
        status, _ = await server.close()
        assert status == 0


async def test_a_legacy_request_is_cancelled_by_its_notification() -> None:
    async with stdio_server(DESK) as server:
        await shake_hands(server, "2025-11-25")
        await server.send(request(1, "tools/call", name="wait_for_ever", arguments={}))
        cancelled = {"method": "notifications/cancelled", "params": {"requestId": 1}}
        await server.send({"jsonrpc": "2.0", **cancelled})
        assert (await server.ask(request(2, "ping")))["result"] == {}
        assert (await server.close())[0] == 0
