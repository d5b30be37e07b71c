"""What each earlier revision knows: capabilities of clients, fields of results, shapes of asks.

The official SDK sends whatever it is given, so what a revision lacks is removed here. Pure.
"""

from collections.abc import Mapping
from typing import Any, cast

from antiphon.forms.schema import adapt

Json = dict[str, Any]

FORMS = "2025-06-18"
MODES = "2025-11-25"
LINKS = "2025-06-18"
AUDIO = "2025-03-26"
STRUCTURE = "2025-06-18"
PROGRESS_TEXT = "2025-03-26"

_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


# --- what the client can be asked ---------------------------------------------------------------


def abilities(declared: Mapping[str, Any], revision: str) -> Json:
    """Return what a client may be asked: what it declared, as far as its revision has it."""
    found: Json = {}
    elicitation = declared.get("elicitation")
    if isinstance(elicitation, dict) and revision >= FORMS:
        found["elicitation"] = _modes(cast("Json", elicitation), revision)
    sampling = declared.get("sampling")
    if isinstance(sampling, dict):
        # The parts of sampling were named late; before, a context could always be asked for.
        found["sampling"] = sampling if revision >= MODES else {"context": {}}
    if isinstance(declared.get("roots"), dict):
        found["roots"] = declared["roots"]
    return found


def _modes(elicitation: Json, revision: str) -> Json:
    if revision < MODES:
        return {}
    return {mode: value for mode, value in elicitation.items() if isinstance(value, dict)}


def ask_params(method: str, params: Mapping[str, Any], revision: str, id: str) -> Json:
    """Return the params of an ask as a revision knows them.

    Raises:
        UnsupportedForm: The revision has no such form.
    """
    adapted = dict(params)
    if method != "elicitation/create":
        return adapted
    if adapted.get("mode") == "url":
        return {**adapted, "elicitationId": id}
    adapted["requestedSchema"] = adapt(adapted["requestedSchema"], revision)
    if revision < MODES:
        adapted.pop("mode", None)
    return adapted


# --- what the client is sent ---------------------------------------------------------------


def degrade(method: str, result: Json, revision: str) -> Json:
    """Remove from a result what the revision does not know; the SDK drops modern members."""
    meta = result.get("_meta")
    if isinstance(meta, dict):
        kept = {k: v for k, v in cast("Json", meta).items() if k != _SERVER_INFO}
        result = {**result, "_meta": kept}
        if not kept:
            del result["_meta"]
    if method == "tools/call":
        return _tool_result(result, revision)
    if method == "prompts/get":
        messages = [
            {**message, "content": _block(message["content"], revision)}
            for message in result["messages"]
        ]
        return {**result, "messages": messages}
    if method == "tools/list":
        return {**result, "tools": [_tool(tool, revision) for tool in result["tools"]]}
    return result


def _tool_result(result: Json, revision: str) -> Json:
    adapted = {**result, "content": [_block(block, revision) for block in result["content"]]}
    structured = adapted.get("structuredContent")
    if "structuredContent" in adapted and (
        revision < STRUCTURE or not isinstance(structured, dict)
    ):
        del adapted["structuredContent"]
    return adapted


def _tool(tool: Json, revision: str) -> Json:
    schema = tool.get("outputSchema")
    if schema is None or (schema.get("type") == "object" and revision >= STRUCTURE):
        return tool
    return {name: value for name, value in tool.items() if name != "outputSchema"}


def _block(block: Json, revision: str) -> Json:
    """Replace a kind of content that the revision lacks by a text that says what it was."""
    kind = block.get("type")
    if kind == "audio" and revision < AUDIO:
        return {"type": "text", "text": f"[audio, {block.get('mimeType', 'unknown type')}]"}
    if kind == "resource_link" and revision < LINKS:
        return {"type": "text", "text": f"{block.get('name', 'resource')}: {block.get('uri')}"}
    return block


def notice(method: str, params: Mapping[str, Any], revision: str) -> Json:
    """Return the params of a notification as a revision knows them."""
    adapted = dict(params)
    if method == "notifications/progress" and revision < PROGRESS_TEXT:
        adapted.pop("message", None)
    return adapted


def server_capabilities(declared: Mapping[str, Any]) -> Json:
    """Return the declared capabilities as a handshake knows them: extensions came later."""
    return {name: value for name, value in declared.items() if name != "extensions"}
