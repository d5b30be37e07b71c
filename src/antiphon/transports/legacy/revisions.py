"""What each earlier revision knows: abilities of clients, fields of results, shapes of asks. Pure.

The official SDK sends whatever it is given, so what a revision lacks is taken out here. Knows no
SDK and no session.
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
    """Give what a client may be asked: what it declared, as far as its revision has it."""
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
    """Tell the params of an ask to a revision.

    Raises:
        UnsupportedForm: The revision has no such form.
    """
    told = dict(params)
    if method != "elicitation/create":
        return told
    if told.get("mode") == "url":
        return {**told, "elicitationId": id}
    told["requestedSchema"] = adapt(told["requestedSchema"], revision)
    if revision < MODES:
        told.pop("mode", None)
    return told


# --- what the client is told --------------------------------------------------------------------


def degrade(method: str, result: Json, revision: str) -> Json:
    """Take out of a result what the revision does not know; the SDK drops modern members."""
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
    told = {**result, "content": [_block(block, revision) for block in result["content"]]}
    structured = told.get("structuredContent")
    if "structuredContent" in told and (
        revision < STRUCTURE or not isinstance(structured, dict)  # LEGACY-28
    ):
        del told["structuredContent"]
    return told


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
    """Tell the params of a notification to a revision."""
    told = dict(params)
    if method == "notifications/progress" and revision < PROGRESS_TEXT:
        told.pop("message", None)
    return told


def server_capabilities(declared: Mapping[str, Any]) -> Json:
    """Give the declared capabilities as a handshake knows them: extensions came later."""
    return {name: value for name, value in declared.items() if name != "extensions"}
