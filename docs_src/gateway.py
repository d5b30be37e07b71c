"""Other servers behind ours: mounted in this process, and what the hooks below it do."""

from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver import MCPServer

from antiphon import (
    CallEnd,
    Client,
    Context,
    PendingCall,
    Principal,
    RawAsk,
    Server,
    Step,
    answer_from_json,
)

theirs = MCPServer("shop", version="3")


@theirs.tool()
def delete_order(order: str) -> str:
    """Delete an order."""
    return f"deleted {order}"


@theirs.tool()
def internal_reindex() -> str:
    """Build the index again."""
    return "done"


def mounted() -> Server:
    """Put their server behind ours."""
    server = Server("house", store="sqlite:///house.db")
    server.mount(theirs, prefix="shop", approve=["shop_delete_*"], deny=["shop_internal_*"])
    return server


# --- one request as a value ----------------------------------------------------------------------


async def from_another_framework(server: Server, params: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a request that another framework has received and authenticated."""
    request = server.request(
        "tools/call",
        params,
        principal=Principal(issuer="https://login.example.com", subject="ada"),
        capabilities={"elicitation": {"form": {}}},
    )
    return await server.serve(request)


# --- arguments and asks as they come ------------------------------------------------------------

relay = Server("relay")

SCHEMA = {"type": "object", "properties": {"question": {"type": "object"}}}


@relay.tool(input_schema=SCHEMA)
async def ask_client(ctx: Context, **arguments: Any) -> dict[str, Any]:
    """Put a request of the protocol to the client as it is."""
    return await ctx.ask_raw("elicitation/create", arguments["question"], key="question-1")


@relay.tool
async def look_around(ctx: Context) -> dict[str, str]:
    """Ask two things in one round; a refusal is a value."""
    found = await ctx.outcomes(
        where=RawAsk(method="roots/list"),
        again=RawAsk(method="elicitation/create", params={"message": "?", "requestedSchema": {}}),
    )
    return {key: outcome.status for key, outcome in found.items()}


# --- the end of every call -----------------------------------------------------------------------

ended: list[str] = []


@relay.on_end
def note(end: CallEnd) -> None:
    """Keep a record; it holds neither arguments nor results."""
    ended.append(f"{end.call} {end.name} {end.outcome} after {end.rounds}")


# --- one round as a function from JSON to JSON ---------------------------------------------------


async def begin(target: object, order: str, key: str) -> dict[str, Any]:
    """Begin a call; repeating it with the same key is the same call."""
    call = PendingCall.tool("refund", {"order": order}, idempotency_key=key)
    return (await Client.step(target, call)).to_json()


async def go_on(
    target: object, step: Mapping[str, Any], answers: Mapping[str, Any]
) -> dict[str, Any]:
    """Take the next round of a step that was kept as JSON."""
    given = {key: answer_from_json(answer) for key, answer in answers.items()}
    return (await Client.step(target, Step.from_json(step), given)).to_json()
