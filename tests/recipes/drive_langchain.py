"""The recipe for LangChain's own client, with a model that is a script; prints what was asked."""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import sys

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from examples.recipes import langchain_client as recipe


class Scripted(GenericFakeChatModel):
    """Calls the tool, then ends."""

    def bind_tools(self, tools, **options):
        return self


CALL = {"name": "provision", "args": {"name": "db"}, "id": "c1"}


async def main(answers: dict) -> None:
    model = Scripted(messages=iter([AIMessage("", tool_calls=[CALL]), AIMessage("Done.")]))
    made = recipe.agent(os.environ["MCP_URL"], "ada", model, InMemorySaver())
    async with made as agent:
        asks = await recipe.start(agent, "make a machine", "one")
        while asks:
            print(json.dumps(list(asks)))
            asks = await recipe.go_on(agent, {key: answers[key] for key in asks}, "one")
        state = await agent.aget_state({"configurable": {"thread_id": "one"}})
    *_, tool, last = state.values["messages"]
    print(json.dumps([tool.content[0]["text"], last.content]))


asyncio.run(main(json.loads(sys.argv[1])))
