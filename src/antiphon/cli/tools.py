"""`antiphon tools`: list the tools of a server."""

from collections.abc import Mapping
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.cli.connect import (
    ENV,
    ERA,
    HEADER,
    TARGET,
    TIMEOUT,
    VERBOSE,
    connected,
    read_named,
    settings_of,
)
from antiphon.cli.output import JSON, as_json, failed
from antiphon.client.errors import ClientError
from antiphon.protocol.text import safe, safe_line


def tools(
    target: TARGET,
    json: JSON = False,
    header: HEADER = None,
    env: ENV = None,
    era: ERA = "auto",
    timeout: TIMEOUT = 30.0,
    verbose: VERBOSE = False,
) -> None:
    """List the tools of a server and their arguments.

    Examples:

    \b
      antiphon tools http://127.0.0.1:8400/mcp
      antiphon tools "python server.py" --json
    """
    where = read_named(target, json=json)
    settings = settings_of(header, env, era, timeout, verbose, json)
    with connected(where, settings, None) as client:
        try:
            found = client.list_tools()
        except ClientError as error:
            failed(error, json=json)
        dumped = [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in found]
        if json:
            as_json("done", tools=dumped)
            return
        _table(dumped)


def _table(found: list[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    if not found:
        console.print("The server has no tools.")
        return
    table = Table("tool", "arguments", "description", show_lines=False)
    for tool in found:
        table.add_row(
            Text(safe_line(tool["name"], 128), style="bold"),
            Text(_signature(tool.get("inputSchema") or {})),
            Text(safe(tool.get("description") or "", 400)),
        )
    console.print(table)


def _signature(schema: Mapping[str, Any]) -> str:
    required: list[str] = schema.get("required") or []
    parts: list[str] = []
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name, prop in properties.items():
        kind = cast("dict[str, Any]", prop).get("type", "") if isinstance(prop, dict) else ""
        part = f"{name}={kind}" if isinstance(kind, str) and kind else str(name)
        parts.append(part if name in required else f"[{part}]")
    return safe_line(" ".join(parts), 400)
