"""Tools of an HTTP API, in an environment that has FastMCP: prints what came of each call as JSON.

The document and the URL of the API are its arguments.
"""

# pyright: reportMissingImports=false

import asyncio
import json
import sys
from pathlib import Path

import httpx2
import yaml

from antiphon import Accept, Client, ConfigError, Decline, Server
from docs_src.openapi import orders

KEY = {"X-Api-Key": "secret"}


async def told(client, tool, arguments=None):
    result = await client.call_tool(tool, arguments or {})
    text = result.content[0].text if result.content else ""
    return {"error": bool(result.is_error), "text": text, "value": result.structured_content}


async def first(document: str, url: str) -> dict:
    """Calls with a key, of somebody who declines once and accepts then."""
    decisions = iter([Decline(), Accept({"approve": True})])
    asked: list[str] = []

    def decide(ask):
        asked.append(ask.message)
        return next(decisions)

    server = orders(document, url, KEY["X-Api-Key"])
    async with Client(server, answers=decide) as client:
        return {
            "tools": {tool.name: tool.input_schema for tool in await client.list_tools()},
            "server": [server.name, server.version],
            "found": await told(client, "find_orders", {"item": ["tea", "a b&c"]}),
            "placed": await told(client, "place_order", {"item": "cup", "amount": 3}),
            "got": await told(client, "get_order", {"id": "7/../8"}),
            "unfit": await told(client, "place_order", {"item": "cup", "amount": "many"}),
            "kept": await told(client, "Delete_an_order", {"id": "7"}),
            "deleted": await told(client, "Delete_an_order", {"id": "7"}),
            "again": await told(client, "get_order", {"id": "7"}),
            "asked": asked,
        }


async def second(document: str, url: str) -> dict:
    """The same document without a key, in too short a time; and a server that runs twice."""
    nobody = Server.from_openapi(
        json.loads(document), url=url, allow=["GET *", "be_slow"], timeout=1
    )
    found = {}
    for run in ("once", "twice"):
        async with Client(nobody) as client:
            found[run] = await told(client, "find_orders")
    async with Client(nobody) as client:
        found["slow"] = await told(client, "be_slow")
        found["tools"] = sorted(tool.name for tool in await client.list_tools())
    async with httpx2.AsyncClient(base_url=url, headers=KEY) as http:
        own = Server.from_openapi(json.loads(document), name="own", http_client=http)
        async with Client(own) as client:
            found["own"] = await told(client, "find_orders")
    gone = Server.from_openapi(json.loads(document))  # where the document says; nobody listens
    async with Client(gone) as client:
        found["gone"] = await told(client, "find_orders")
    return found


def refused(document, **options) -> str:
    try:
        Server.from_openapi(document, **options)
    except ConfigError as error:
        return str(error)
    return ""


async def main(file: str, url: str) -> None:
    document = yaml.safe_load(Path(file).read_text())  # noqa: ASYNC240 - nobody else waits
    report = {
        "first": await first(file, url),
        "second": await second(json.dumps(document), url),
        "refused": {
            "typo": refused(file, approve=["DELET *"]),
            "name": refused(file, deny=["drop_*"]),
            "role": refused(file, approve=["DELETE *=ops"]),
            "nowhere": refused({**document, "servers": []}),
            "old": refused({"swagger": "2.0"}),
            "broken": refused({**document, "paths": {"/x": {"get": {"parameters": 3}}}}),
            "file": refused(file + ".none"),
            "both": refused(file, url=url, http_client=object()),
        },
    }
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:]))
