"""One round of a call as a function from JSON to JSON; the recipes are made of these.

Engines repeat a step whose reply was lost. The key makes `begin` safe to repeat, and an Antiphon
server gives the recorded outcome when the same answers come again. Other servers know neither.
"""

import os
from collections.abc import Mapping
from typing import Any

from antiphon import Client, PendingCall, Step, answer_from_json

URL = os.environ.get("MCP_URL", "http://127.0.0.1:8400/mcp")


async def begin(tool: str, arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Begin a call; the same key is the same call. Nobody else may be able to guess it."""
    call = PendingCall.tool(tool, arguments, idempotency_key=key)
    return (await Client.step(URL, call)).to_json()


async def go_on(step: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """Answer what a step asks; returns the next one."""
    given = {key: answer_from_json(answer) for key, answer in answers.items()}
    return (await Client.step(URL, Step.from_json(step), given)).to_json()


def text(step: Mapping[str, Any]) -> str:
    """Return what a step that is done says."""
    return "".join(part.get("text", "") for part in step["result"]["content"])
