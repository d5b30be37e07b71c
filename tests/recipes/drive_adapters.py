"""The recipe for langchain-mcp-adapters: calls the tool; prints what was asked."""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys

from examples.recipes import langchain_adapters as recipe


async def main(answers: dict) -> None:
    async def fill(message, schema):
        print(json.dumps(message))
        [key] = [key for key in answers if set(schema["properties"]) & set(answers[key]["content"])]
        return answers[key]["content"]

    [provision] = await recipe.tools(os.environ["MCP_URL"], fill)
    call = {"name": "provision", "args": {"name": "db"}, "id": "c1", "type": "tool_call"}
    message = await provision.ainvoke(call)
    print(json.dumps(message.content[0]["text"]))


asyncio.run(main(json.loads(sys.argv[1])))
