"""The page on testing, calls that wait for somebody's decision; needs `antiphon[console]`."""

import pytest

from antiphon import Console, Context, Server
from antiphon.testing import Person, Undecided, hosts


def bank(tally):
    def make_server(**world) -> Server:
        server = Server("bank", console=Console("http://127.0.0.1:8401/console"), **world)

        @server.tool(holds=True)
        async def refund(ctx: Context, order: str) -> str:
            approval = await ctx.approve(f"Refund {order}?", by="finance", grace=0.1)
            if not approval:
                return f"Not refunded: {approval.outcome}."
            number = await ctx.once("refund", tally.mark, order)
            return f"Refunded, number {number}. {approval.note}"

        return server

    return make_server


ANNA = Person("https://id.example.com", "anna", "Anna", roles=("finance",))
DORA = Person("https://id.example.com", "dora", "Dora")


async def test_a_refund_is_paid_after_somebody_else_said_yes(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(bank(antiphon_tally), **hosts.CLAUDE_CODE.client)
    step = await world.begin("refund", {"order": "4711"})  # a task that waits
    with pytest.raises(Undecided, match="may see none"):
        await world.decide("approve", as_=DORA)
    await world.decide("approve", as_=ANNA, note="Checked.")
    done = await world.finish(step)
    assert done.text == "Refunded, number 1. Checked."


async def test_no_answer_is_no_yes(antiphon_rounds, antiphon_tally):
    world = antiphon_rounds(bank(antiphon_tally), **hosts.CLAUDE_DESKTOP.client)
    step = await world.begin("refund", {"order": "4711"})
    assert "Not done yet" in step.text
    await world.nobody_decides()
    again = await world.call("refund", {"order": "4711"})
    assert again.text == "Not refunded: expired."
    assert antiphon_tally.marks == []
