"""FastMCP mounted in an Antiphon server, in FastMCP's own environment: prints what came of it."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import json

from fastmcp_rooms import server as theirs

from antiphon import Accept, Client, Server


def fill(ask):
    if "sure" in ask.schema["properties"]:
        return Accept({"sure": True})
    return Accept({"room": "Oak", "seats": 4})


async def main() -> None:
    server = Server("house")
    server.mount(theirs, prefix="rooms")

    @server.tool
    def own() -> str:
        """One of ours."""
        return "own"

    async with Client(server, answers=fill) as client:
        names = sorted(tool.name for tool in await client.list_tools())
        booked = await client.call_tool("rooms_book", {"day": "friday"})
    print(json.dumps({"names": names, "booked": booked.content[0].text}))


if __name__ == "__main__":
    asyncio.run(main())
