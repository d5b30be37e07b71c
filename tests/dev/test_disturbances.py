"""Every button of "Do to this round" gives what the docs promise, in both eras."""

import pytest
from playwright.async_api import expect

from antiphon.apps.dev.promises import DISTURBANCES
from tests.dev.browsing import Developer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

EVERY = [label for _, label in DISTURBANCES]
CAME = {
    "modern waiting": {
        "Send again": "no effect was repeated: asks approve",
        "Send with another answer": "refused, -32602",
        "Tamper": "it was changed after it was sealed",
        "Expire": "expired 60 min ago",
        "As somebody else": "it was issued to another caller",
        "Kill the server": "The call waits on",
        "Forget the answer": "asks approve",
    },
    "modern done": {
        "Send again": "no effect was repeated: result: orders.eu-west is running.",
        "Send with another answer": "it was redeemed before with other answers",
        "Tamper": "it was changed after it was sealed",
        "Expire": "result: orders.eu-west is running.",
        "As somebody else": "it was issued to another caller",
        "Kill the server": "sent again: result: orders.eu-west is running.",
        "Forget the answer": "it was redeemed before with other answers",
    },
    "legacy waiting": {
        "Send again": "A new call: it asks: Where should orders live?",
        "Send with another answer": "the call is where it was",
        "Tamper": "HTTP 404, refused; the call is where it was",
        "As somebody else": "the call is where it was",
        "Forget the answer": "The question is asked again.",
    },
    "legacy done": {
        "Send again": "A new call: it asks: Where should orders live?",
        "Send with another answer": "HTTP 404, refused",
        "Tamper": "HTTP 404, refused",
        "Expire": "a late answer: HTTP 404",
        "As somebody else": "the call is where it was",
        "Kill the server": "back after",
        "Forget the answer": "HTTP 404",
    },
}
ENDING = {
    "Expire": "the call is failed; a late answer: HTTP 404",
    "Kill the server": "The call is failed.",
}
"""What ends a legacy call that waits."""


async def waiting(bench: Developer, client: str) -> None:
    await bench.call("provision", client, name="orders")
    await bench.place()
    await expect(bench.ask("Start orders for 12.00 EUR?")).to_be_visible()


@pytest.mark.parametrize("client", ["everything", "vscode"])
async def test_every_button_keeps_its_promise_while_the_call_waits_and_when_it_is_done(
    bench: Developer, client: str
) -> None:
    era = "modern" if client == "everything" else "legacy"
    await waiting(bench, client)
    for label, came in CAME[f"{era} waiting"].items():
        said = await bench.do(label)
        assert "as promised" in said["title"], said
        assert "not as promised" not in said["title"], said
        assert came in said["came"], said
        assert said["promised"]
    await bench.approve()
    assert await bench.result() == "orders.eu-west is running."
    assert list(CAME[f"{era} done"]) == EVERY
    for label, came in CAME[f"{era} done"].items():
        said = await bench.do(label)
        assert "not as promised" not in said["title"], said
        assert came in said["came"], said
    # One effect, however often its round was sent and its server killed.
    await expect(bench.page.locator("#effects tbody tr")).to_have_count(1)


@pytest.mark.parametrize("label", ENDING)
async def test_a_legacy_call_ends_with_its_session(bench: Developer, label: str) -> None:
    await waiting(bench, "vscode")
    said = await bench.do(label)
    assert "not as promised" not in said["title"], said
    assert ENDING[label] in said["came"], said
    await expect(bench.page.locator("#call .badge")).to_have_text("failed")


async def test_a_first_round_is_a_new_call_each_time(bench: Developer) -> None:
    await bench.call("provision", name="orders")
    await expect(bench.ask("Where should orders live?")).to_be_visible()
    said = await bench.do("Send again")
    assert said["came"].startswith("A new call: asks placement")
    assert "always a new call" in said["promised"]
