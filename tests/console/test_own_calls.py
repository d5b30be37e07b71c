"""Nobody approves a call that they stand behind, under whatever name; and servers say so early."""

import logging
from pathlib import Path
from typing import Any

import pytest

from antiphon import Console, OAuth, Principal, Server
from antiphon.console import OIDC
from antiphon.protocol.identities import LINK_ISSUER
from antiphon.protocol.inbox import Attempt, Decided, NotAllowed, Person
from antiphon.testing import KEY
from tests.console.console_inbox import ConsoleInbox
from tests.console.shop import ANNA, BO, ISSUER, Shop

URL = "http://127.0.0.1:8401/console"


@pytest.mark.parametrize(
    "who", [ANNA, Person(f"{ISSUER}/", "Anna", "Anna", ("finance",)),
            Person(LINK_ISSUER, "anna", "Anna", ("finance",))],
)  # fmt: skip
async def test_whoever_acts_for_another_does_not_approve(who: Person, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    assert "Not done yet" in await shop.text(user="bo", actor="anna")
    (item,) = await shop.open_items()
    async with shop.inbox() as inbox:
        for person in (who, BO):
            attempt = Attempt(item.id, person, "approve", item.digest)
            assert await inbox.decide(attempt) == NotAllowed("own")
        other = Person(ISSUER, "dora", "Dora", ("finance",))
        assert isinstance(
            await inbox.decide(Attempt(item.id, other, "approve", item.digest)), Decided
        )


async def test_the_page_offers_no_button_to_who_stands_behind_the_call() -> None:
    place = ConsoleInbox()
    item = await place.put(behind=(f"{ISSUER} carl", f"{ISSUER} anna"))
    async with place.signed_in(ANNA) as anna:
        page = (await anna.get(f"/console/ask/{item.id}")).text
    assert 'value="approve"' not in page
    assert "You made this call" in page


async def test_an_author_is_asked_about_everybody_behind_the_call() -> None:
    asked: list[Principal] = []

    def same(person: Person, caller: Principal) -> bool:
        asked.append(caller)
        return caller.subject == "agent 7"

    place = ConsoleInbox(same_person=same)
    item = await place.put(behind=(f"{ISSUER} carl", "https://bots.example agent%207"))
    async with place.signed_in(ANNA) as anna:
        page = (await anna.get(f"/console/ask/{item.id}")).text
    assert 'value="approve"' not in page
    assert Principal("https://bots.example", "agent 7") in asked


def made(**settings: Any) -> Server:
    return Server("shop", environ={"ANTIPHON_KEYS": KEY}, **settings)


def named(_: object) -> Principal:
    return Principal("https://id.example", "anna")


def oidc(issuer: str) -> OIDC:
    return OIDC(issuer, client_id="console")


OAUTH = OAuth(ISSUER, audience="https://mcp.example/mcp")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"principal": named, "console": Console(URL)}, True),
        ({"auth": OAUTH, "console": Console(URL)}, True),
        ({"auth": OAUTH, "console": Console(URL, login=oidc("https://b.example"))}, True),
        ({"auth": OAUTH, "console": Console(URL, login=oidc(f"{ISSUER}:443/"))}, False),
        ({"auth": OAUTH, "console": Console(URL, same_person=lambda _, __: False)}, False),
        ({"auth": OAUTH, "console": Console(URL, login=lambda _: ANNA)}, False),
        ({"principal": named, "console": Console(URL, login=oidc(ISSUER))}, False),
        ({"console": Console(URL)}, False),
        ({"auth": OAUTH}, False),
    ],
)
async def test_a_server_says_at_its_start_if_approvers_can_never_be_callers(
    settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = made(**settings)
    assert (server.callers_vouched_elsewhere is not None) is warned
    with caplog.at_level(logging.WARNING, "antiphon"):
        async with server.running():
            pass
    assert ("approves a call of their own" in caplog.text) is warned


async def test_a_call_of_an_unknown_issuer_that_is_held_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(tmp_path)
    with caplog.at_level(logging.WARNING, "antiphon"):
        await shop.text(user="carl")
    assert f"callers of issuer {ISSUER!r} are not vouched for" in caplog.text
