"""Check that invoices are paid once: the bank loses replies, is slow, answers twice, and dies.

python -m examples.payments.check
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from antiphon import Principal, Server
from antiphon.testing import Rounds
from examples.payments.bank import Bank, Mood
from examples.payments.server import BankAccount, make_server

ANNA = Principal(issuer="https://id.example", subject="anna")
PAID_AT_ONCE: tuple[Mood, ...] = ("works", "loses replies", "is slow", "answers twice")


async def call(world: Rounds, tool: str, **arguments: Any) -> str:
    """Call a tool and approve, as a model would."""
    return (await world.call(tool, arguments, answers={"approve": True})).text


async def pay(world: Rounds, invoice: str) -> str:
    return await call(world, "pay_invoice", invoice=invoice, cents=12_000)


def booked(bank: Bank, of: str) -> int:
    return sum(entry["of"] == of for entry in bank.booked.values())


async def check_moods(world: Rounds, bank: Bank) -> None:
    """Every reply that is lost or late is looked up in the same run; the payment is made once."""
    for mood in PAID_AT_ONCE:
        bank.mood = mood
        text = await pay(world, mood)
        assert text.startswith("Paid, receipt P-"), text
        assert booked(bank, mood) == 1
        if mood in ("loses replies", "is slow"):  # the model calls again all the same
            assert await pay(world, mood) == text
            assert booked(bank, mood) == 1
        print(f"the bank {mood}: {text}")


async def check_death(world: Rounds, bank: Bank) -> None:
    """A bank that dies leaves the payment uncertain until it is back; nobody pays again."""
    bank.mood = "dies"
    for _ in range(2):
        text = await pay(world, "dies")
        assert "may have happened" in text, text
        assert "Do not call this tool again" in text, text
    bank.mood = "works"
    await bank.open()
    text = await pay(world, "dies")
    assert text.startswith("Paid, receipt P-"), text
    assert booked(bank, "dies") == 1
    print(f"the bank dies and comes back: {text}")


async def check_not_paid(world: Rounds, bank: Bank) -> None:
    """What did not happen may be tried again."""
    bank.mood = "refuses"
    text = await pay(world, "refused")
    assert "not enough money" in text, text
    bank.mood = "works"
    assert (await pay(world, "refused")).startswith("Paid")
    await bank.close()
    closed = await pay(world, "closed")
    assert booked(bank, "closed") == 0
    await bank.open()
    assert (await pay(world, "closed")).startswith("Paid")
    assert booked(bank, "refused") == booked(bank, "closed") == 1
    print(f"the bank refuses: {text}")
    print(f"the bank is closed: {closed[:60]}...")


async def check_refund(world: Rounds, bank: Bank) -> None:
    """A refund is an effect like a payment."""
    bank.mood = "loses replies"
    texts = [await call(world, "refund_payment", receipt="P-1") for _ in range(2)]
    assert texts[0] == texts[1]
    assert booked(bank, "P-1") == 1
    print(f"a refund: {texts[0]}")


async def main() -> None:
    """Play every mood of the bank."""
    logging.getLogger("antiphon").setLevel(logging.CRITICAL)
    bank = Bank()
    await bank.open()

    def make(**world: Any) -> Server:
        return make_server(BankAccount(bank.url, timeout=0.5), **world)

    checks: tuple[Callable[[Rounds, Bank], Any], ...] = (
        check_moods, check_death, check_not_paid, check_refund,
    )  # fmt: skip
    async with Rounds(make, principal=ANNA, fresh=False) as world:
        for check in checks:
            await check(world, bank)
    await bank.close()
    print(f"{len(bank.booked)} bookings, none of them twice")


if __name__ == "__main__":
    asyncio.run(main())
