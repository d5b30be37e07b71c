"""Antiphon's own client."""

import asyncio

from antiphon import Client
from antiphon.client import Accept, FormAsk
from peers.hosts.story import CALLS, answer, arguments, problem, say, text_of


class Person:
    """Fills every form."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def elicit(self, ask: FormAsk) -> Accept:
        self._asked.append(ask.message)
        return Accept(answer(dict(ask.schema)))


async def main() -> None:
    url, asks = arguments()
    asked: list[str] = []
    found: dict[str, str] = {}
    async with Client(url, answers=Person(asked) if asks else None) as client:
        for tool, given in CALLS:
            try:
                result = await client.call_tool(tool, given)
            except Exception as error:
                found[tool] = problem(error)
            else:
                found[tool] = text_of(result, bool(result.is_error))
        say("antiphon", str(client.protocol_version), asked, found)


asyncio.run(main())
