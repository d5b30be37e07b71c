"""The recipe for the OpenAI Agents SDK, with a model of ours; prints what was asked."""

# pyright: reportMissingImports=false

import asyncio
import json
import sys

from agents import Agent, Model, ModelResponse, Usage, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from examples.recipes import openai_agents_approval as recipe


class Scripted(Model):
    """Calls the tool, then repeats what it said."""

    async def get_response(self, system_instructions, input, *arguments, **options):
        last = input[-1] if isinstance(input, list) else {}
        if last.get("type") == "function_call_output":
            said = ResponseOutputText(
                text=f"Done: {last['output']}", type="output_text", annotations=[]
            )
            output = ResponseOutputMessage(
                id="m", role="assistant", status="completed", type="message", content=[said]
            )
        else:
            output = ResponseFunctionToolCall(
                id="f", call_id="c1", name="provision", arguments='{"name": "db"}',
                type="function_call",
            )  # fmt: skip
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *arguments, **options):
        raise NotImplementedError


async def main(answers: dict) -> None:
    set_tracing_disabled(True)

    def agent() -> Agent:
        return Agent(name="house", model=Scripted(), tools=[recipe.provision])

    kept = await recipe.start(agent(), "make a database", "a-run-that-nobody-guesses")
    while not isinstance(kept, str):
        kept = json.loads(json.dumps(kept))
        [(call, step)] = kept["context"]["context"]["steps"].items()
        print(json.dumps({key: ask["message"] for key, ask in step["asks"].items()}))
        given = {call: {key: answers[key] for key in step["asks"]}}
        kept = await recipe.go_on(agent(), kept, given)
    print(json.dumps(kept))


asyncio.run(main(json.loads(sys.argv[1])))
