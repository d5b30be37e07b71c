"""Each claim of the pages on the linear handler, effects, approvals and divergence."""

from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import MemoryStore, Server, UnsupportedForm
from antiphon.forms.form import Form
from antiphon.testing import FakeClock, Rounds
from docs_src import approvals, divergence, effects, linear

YES = {"approve": True}


async def test_a_form_ends_the_round_and_the_handler_goes_on_with_the_answer(rounds: Any) -> None:
    done = await rounds(linear.make_server).call(
        "provision", {"name": "orders"}, answers={"placement": {"region": "eu-west", "size": 3}}
    )
    assert (done.text, done.rounds) == ("orders goes to eu-west, 3 nodes.", 2)


async def test_an_answer_that_does_not_fit_is_asked_for_again(rounds: Any) -> None:
    world = rounds(linear.make_server)
    step = await world.begin("provision", {"name": "orders"})
    step = await world.answer(step, {"placement": {"region": "eu", "size": 99}})
    assert "did not fit" in step.asks["placement"].message
    done = await world.answer(step, {"placement": {"region": "eu", "size": 9}})
    assert done.text == "orders goes to eu, 9 nodes."


async def test_asks_in_a_loop_get_keys_of_their_own(rounds: Any) -> None:
    world = rounds(linear.make_server)
    step = await world.begin("invite", {"team": "ops"})
    step = await world.answer(step, {"contact": {"name": "Ada"}})
    step = await world.answer(step, {"contact-2": {"name": "Grace"}})
    refusal = {"contact-3": {"action": "decline"}}
    done = await world.send(
        "tools/call",
        {"name": "invite", "arguments": {"team": "ops"}, "requestState": step.token}
        | {"inputResponses": refusal},
    )
    assert done.text == "ops: Ada, Grace"


async def test_a_client_that_cannot_ask_is_told_another_way(rounds: Any) -> None:
    world = rounds(linear.make_server, capabilities={})
    done = await world.call("provision_asking", {"name": "orders"})
    assert (done.code, done.is_error) == (0, True)
    assert done.text == "Ask for the region, then call provision_in(name, region)."
    other = await world.call("provision_in", {"name": "orders", "region": "eu"})
    assert other.text == "orders goes to eu."
    asked = rounds(linear.make_server)
    answers = {"placement": {"region": "eu"}}
    done = await asked.call("provision_asking", {"name": "orders"}, answers=answers)
    assert done.text == "orders goes to eu."


async def test_prompts_and_resources_ask_as_tools_do(rounds: Any) -> None:
    world = rounds(linear.make_server)
    letter = await world.prompt("letter", {"to": "Ann"}, answers={"contact": {"name": "Ada"}})
    assert "Write a letter to Ann, signed Ada." in str(letter.result)
    card = await world.read("cloud://databases/orders/card", answers={"contact": {"name": "Bo"}})
    assert "orders: Bo" in str(card.result)


def test_a_field_named_like_a_secret_is_asked_for_only_when_it_is_marked() -> None:
    class Leaflet(BaseModel):
        access_token: str

    with pytest.raises(UnsupportedForm, match="looks like a secret"):
        Form.of(Leaflet)
    assert set(Form.of(linear.Voucher).schema["properties"]) == {"access_token"}


async def test_gather_asks_three_kinds_in_one_round(rounds: Any) -> None:
    step = await rounds(linear.make_server).begin("plan", {"goal": "a launch"})
    assert {key: ask.method for key, ask in step.asks.items()} == {
        "place": "elicitation/create",
        "idea": "sampling/createMessage",
        "where": "roots/list",
    }


@pytest.mark.parametrize("fresh", [True, False])
async def test_an_effect_a_memo_and_the_time_are_the_same_in_every_run(fresh: bool) -> None:
    cloud = effects.Cloud()
    store = MemoryStore(clock=(clock := FakeClock()))

    def make(**kit: Any) -> Server:
        return effects.make_server(cloud, **kit)

    async with Rounds(make, fresh=fresh, store=store, clock=clock) as world:
        done = await world.call(
            "provision", {"name": "db"}, answers={"placement": {"region": "eu"}, "approve": YES}
        )
    assert done.text.startswith("db-")
    assert "runs for 0.25 since" in done.text
    assert cloud.machines == ["db"]
    assert len(cloud.mails) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("taken", "Not done: the name is taken."),
        ("other", "It failed, in every run: ValueError: no such zone."),
    ],
)
async def test_an_effect_that_ends_badly_says_how(name: str, said: str) -> None:
    async with Rounds(lambda **kit: effects.make_server(effects.Cloud(), **kit)) as world:
        assert (await world.call("reserve", {"name": name})).text == said


async def test_a_client_that_starts_over_finds_the_machine_again() -> None:
    cloud = effects.Cloud()
    async with Rounds(lambda **kit: effects.make_server(cloud, **kit)) as world:
        left = await world.begin("move", {"name": "db"})
        left = await world.answer(left, {"placement": {"region": "eu"}})
        answers = {"placement": {"region": "eu"}, "approve": YES}
        done = await world.call("move", {"name": "db"}, answers=answers)
        assert (await world.answer(left, {"approve": YES})).code == -32602
    assert done.text.startswith("db is on db.eu-")
    assert cloud.machines == ["db.eu"]


async def test_a_payment_is_made_once_for_each_of_its_effects() -> None:
    async with Rounds(lambda **kit: effects.make_server(effects.Cloud(), **kit)) as world:
        done = await world.call("pay", {"amount": 5})
    first, rest = done.text.split(", ")
    assert first.endswith("of 5")
    assert rest.endswith("of 5")
    assert first != rest  # each effect has an idempotency key of its own


async def test_a_payment_with_a_timeout_of_its_own_is_looked_up_at_once() -> None:
    class SlowCloud(effects.Cloud):
        async def charge(self, amount: int, idempotency_key: str) -> str:
            raise TimeoutError

        async def find_charge(self, amount: int, idempotency_key: str) -> str:
            return f"found a charge of {amount}"

    async with Rounds(lambda **kit: effects.make_server(effects.Cloud(), **kit)) as world:
        assert (await world.call("pay_soon", {"amount": 5})).text.endswith("of 5")
    async with Rounds(lambda **kit: effects.make_server(SlowCloud(), **kit)) as world:
        done = await world.call("pay_soon", {"amount": 5})
    assert done.text == "found a charge of 5"


BILL = {"cents": 4200, "to": "ACME"}


async def test_only_an_explicit_yes_pays_and_only_once() -> None:
    paid: list[int] = []
    async with Rounds(lambda **kit: approvals.make_server(paid, **kit)) as world:
        step = await world.begin("pay", BILL)
        assert '• To: "ACME"' in step.asks["approve"].message
        done = await world.answer(step, {"approve": YES})
        again = await world.replay(done)
    assert done.text == again.text == "Paid, tx-1."
    assert paid == [4200]


async def test_a_no_and_an_unticked_box_pay_nothing() -> None:
    paid: list[int] = []
    async with Rounds(lambda **kit: approvals.make_server(paid, **kit)) as world:
        for answer in ({"action": "accept", "content": {"approve": False}}, {"action": "decline"}):
            step = await world.begin("pay", BILL)
            params = {"name": "pay", "arguments": BILL, "requestState": step.token}
            done = await world.send("tools/call", params | {"inputResponses": {"approve": answer}})
            assert done.text == "Not paid: declined."
    assert paid == []


async def test_a_client_that_cannot_be_asked_pays_nothing() -> None:
    async with Rounds(lambda **kit: approvals.make_server([], **kit), capabilities={}) as world:
        done = await world.call("pay", BILL)
    assert done.text == "This client cannot ask anybody; nothing was paid."


async def begun_under(first: Any, store: MemoryStore, clock: FakeClock) -> tuple[Rounds, Any]:
    world = Rounds(first, store=store, clock=clock)
    step = await world.begin("resize", {})
    return world, step


@pytest.mark.parametrize(
    ("release", "ends"),
    [(divergence.careless_release, "diverged"), (divergence.careful_release, "Resize to 3?")],
)
async def test_new_code_under_a_running_call(release: Any, ends: str) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    _, step = await begun_under(divergence.first_release, store, clock)
    later = Rounds(release, store=store, clock=clock)
    step = await later.answer(step, {"size": {"nodes": 3}})
    said = step.text if not step.waiting else step.asks["approve"].message
    assert ends in said


async def test_a_call_that_begins_with_the_new_code_takes_the_new_path() -> None:
    async with Rounds(divergence.careful_release) as world:
        done = await world.call(
            "resize", {}, answers={"zone": {"zone": "b"}, "size": {"nodes": 3}, "approve": YES}
        )
    assert done.text == "3 in b approved"
