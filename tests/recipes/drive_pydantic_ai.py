"""The recipe for Pydantic AI, with a model that is a function; prints what was asked and said."""

# pyright: reportMissingImports=false

import asyncio
import json
import sys

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from examples.recipes import pydantic_ai_deferred as recipe


def reply(messages, info):
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"Done: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("provision", {"name": "db"})])


async def main(answers: dict) -> None:
    model = FunctionModel(reply)
    kept = await recipe.start(model, "make a database")
    while "output" not in kept:
        kept = json.loads(json.dumps(kept))
        [(call, step)] = kept["steps"].items()
        print(json.dumps({key: ask["message"] for key, ask in step["asks"].items()}))
        kept = await recipe.go_on(model, kept, {call: {key: answers[key] for key in step["asks"]}})
    print(json.dumps(kept["output"]))


asyncio.run(main(json.loads(sys.argv[1])))
