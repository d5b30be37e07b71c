"""The official types of revision 2026-07-28 as a judge of what we put on the wire.

Stricter than a peer would be: bytes are read without any coercion, the kind of a result is chosen
by what it says it is, and a member that the official types do not know fails.
"""

from typing import Any, get_args

import jsonschema
import msgspec
from mcp_types.jsonrpc import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCResponse
from mcp_types.methods import SERVER_NOTIFICATIONS, SERVER_RESULTS
from pydantic import TypeAdapter

REVISION = "2026-07-28"
CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}


def judge(method: str, message: bytes) -> dict[str, Any]:
    """Judge one message that answers a request, or comes before its answer; gives it decoded."""
    decoded = msgspec.json.decode(message)
    if "method" in decoded:
        judge_notification(decoded)
    elif "error" in decoded:
        judge_error(decoded)
    else:
        _judge(JSONRPCResponse, decoded)
        judge_result(method, decoded["result"])
    return decoded


def judge_result(method: str, result: dict[str, Any]) -> None:
    """Judge the result of a method."""
    types: Any = SERVER_RESULTS[(method, REVISION)]
    arms = {arm.__name__ == "InputRequiredResult": arm for arm in get_args(types) or (types,)}
    asks = result["resultType"] == "input_required"
    assert asks or result["resultType"] == "complete"
    _judge(arms[asks], result)
    if asks:
        assert result.get("inputRequests") or "requestState" in result
        assert "ttlMs" not in result


def judge_notification(message: dict[str, Any]) -> None:
    """Judge a notification to the client."""
    assert "id" not in message
    _judge(JSONRPCNotification, message)
    _judge(SERVER_NOTIFICATIONS[(message["method"], REVISION)], message)


def judge_error(message: dict[str, Any]) -> None:
    """Judge an error response; one without an id, which could not be read, is judged by its error.

    The revision leaves such an id out; the official Python envelope would have it null.
    """
    if "id" in message:
        _judge(JSONRPCError, message)
    else:
        assert set(message) == {"jsonrpc", "error"}
        _judge(ErrorData, message["error"])
    assert message["error"]["code"] in CODES


def judge_tool(tool: dict[str, Any]) -> None:
    """Judge the schemas of a listed tool by the dialect that they are read in."""
    jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
    jsonschema.Draft202012Validator.check_schema(tool.get("outputSchema", {}))


def judge_structured(tool: dict[str, Any], result: dict[str, Any]) -> None:
    """Judge structured content by the schema that the tool was listed with."""
    if "outputSchema" in tool and result["resultType"] == "complete" and not result["isError"]:
        jsonschema.Draft202012Validator(tool["outputSchema"]).validate(result["structuredContent"])


def _judge(type_: Any, value: dict[str, Any]) -> None:
    adapter = TypeAdapter(type_)
    read = adapter.validate_json(msgspec.json.encode(value), strict=True, by_name=False)
    kept = adapter.dump_python(read, mode="json", by_alias=True, exclude_unset=True)
    assert kept == value, "the official types do not know all of it"
