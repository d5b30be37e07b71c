import asyncio

import cloud

from antiphon import Accept, Client, Decline, Scripted

PLACE = Accept({"region": "eu"})


async def outcome(approval: Accept | Decline) -> str:
    answers = Scripted(placement=PLACE, approve=approval)
    async with Client(cloud.server, answers=answers) as client:
        result = await client.call_tool("provision", {"name": "orders"})
        return result.content[0].text


def test_a_machine_is_started_after_approval():
    assert asyncio.run(outcome(Accept({"approve": True}))) == "orders.eu is running."


def test_nothing_is_created_without_it():
    assert asyncio.run(outcome(Decline())) == "Nothing was created."
