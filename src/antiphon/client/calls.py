"""The three kinds of calls that may ask, as fresh calls. Knows no connection."""

from collections.abc import Mapping
from typing import Any

from antiphon.client.flow_types import Call


def tool_call(name: str, arguments: Mapping[str, Any] | None = None) -> Call:
    """Make the call of a tool."""
    return Call(method="tools/call", params={"name": name, "arguments": dict(arguments or {})})


def prompt_call(name: str, arguments: Mapping[str, str] | None = None) -> Call:
    """Make the call of a prompt."""
    params: dict[str, Any] = {"name": name}
    if arguments is not None:
        params["arguments"] = dict(arguments)
    return Call(method="prompts/get", params=params)


def resource_call(uri: str) -> Call:
    """Make the call of a resource."""
    return Call(method="resources/read", params={"uri": uri})
