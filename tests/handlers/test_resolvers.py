"""Resolvers: on tools, prompts and resources; batched, memoised, invisible, checked."""

import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from antiphon import (
    Completion,
    ConfigError,
    Context,
    Elicit,
    ElicitUrl,
    ListRoots,
    Opened,
    Outcome,
    Resolve,
    Root,
    Sample,
    Server,
)
from antiphon.client.asks import Cancel, Decline
from antiphon.protocol.request import Principal, Request
from antiphon.testing import MISSING, BackChannel
from docs_src.shapes.story import Confirm, Placement, Size

PLACE = {"region": "eu"}


def world(rounds: Any, build: Callable[[Server], None], **options: Any) -> Any:
    def factory(**kit: Any) -> Server:
        server = Server("shop", **kit)
        build(server)
        return server

    return rounds(factory, **options)


async def ask_place() -> Elicit:
    return Elicit("Where?", Placement)


async def ask_size() -> Elicit:
    return Elicit("How large?", Size)


async def ask_confirm(place: Annotated[Placement, Resolve(ask_place)]) -> Elicit:
    return Elicit(f"Really {place.region}?", Confirm)


# --- where they stand ----------------------------------------------------------------------------


async def test_a_prompt_may_ask_through_a_resolver(rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.prompt
        async def brief(topic: str, place: Annotated[Placement, Resolve(ask_place)]) -> str:
            return f"{topic} in {place.region}"

    async with world(rounds, build) as w:
        listed = await w.send("prompts/list", {})
        done = await w.prompt("brief", {"topic": "tea"}, answers={"placement": PLACE})
    assert listed.result["prompts"][0]["arguments"] == [{"name": "topic", "required": True}]
    assert done.result["messages"][0]["content"]["text"] == "tea in eu"


async def test_a_template_resource_may_ask_through_a_resolver(rounds: Any) -> None:
    async def ask_for(order: str) -> Elicit:
        return Elicit(f"Show order {order} for which region?", Placement)

    def build(server: Server) -> None:
        @server.resource("shop://orders/{order}")
        async def show(order: str, place: Annotated[Placement, Resolve(ask_for)]) -> str:
            return f"{order} in {place.region}"

    async with world(rounds, build) as w:
        done = await w.read("shop://orders/7", answers={"placement": PLACE})
    assert done.trail[0].asks["placement"].message == "Show order 7 for which region?"
    assert done.result["contents"][0]["text"] == "7 in eu"


async def test_a_sync_tool_may_have_resolvers(rounds: Any) -> None:
    def look_up(item: str) -> int:
        return len(item)

    def build(server: Server) -> None:
        @server.tool
        def order(
            ctx: Context,
            item: str,
            place: Annotated[Placement, Resolve(ask_place)],
            price: Annotated[int, Resolve(look_up)],
        ) -> str:
            return f"{item} {place.region} {price} {ctx.round}"

    async with world(rounds, build) as w:
        done = await w.call("order", {"item": "tea"}, answers={"placement": PLACE})
    assert done.text == "tea eu 3 2"


async def test_resolvers_ask_over_the_back_channel_of_an_old_session() -> None:
    server = Server("shop")

    @server.tool
    async def order(
        place: Annotated[Placement, Resolve(ask_place)],
        size: Annotated[Size, Resolve(ask_size)],
        confirm: Annotated[Confirm, Resolve(ask_confirm)],
    ) -> str:
        return f"{place.region} {size.gb} {confirm.go}"

    given = {"placement": PLACE, "size": {"gb": 2}, "confirm": {"go": True}}
    channel = BackChannel(lambda key, _: {"action": "accept", "content": given[key]})
    assert "eu 2 True" in await legacy_call(server, "order", channel)
    assert channel.batches == [["placement", "size"], ["confirm"]]


async def legacy_call(server: Server, tool: str, channel: BackChannel) -> str:

    round = Request(
        method="tools/call",
        target=tool,
        capabilities={"elicitation": {}},
        principal=Principal(transport="http"),
        version="2025-11-25",
        era="legacy",
        channel=channel,
    )
    async with server.running():
        return (await server.dispatcher.dispatch(round)).decode()


# --- rounds --------------------------------------------------------------------------------------


async def test_every_kind_of_ask_comes_back_as_its_value(rounds: Any) -> None:
    async def plan() -> Sample:
        return Sample("Plan it.")

    async def where() -> ListRoots:
        return ListRoots()

    async def page() -> ElicitUrl:
        return ElicitUrl("Look.", "https://example.com/a")

    async def form() -> Elicit:
        return Elicit("How many?", {"type": "object", "properties": {"n": {"type": "integer"}}})

    def build(server: Server) -> None:
        @server.tool
        async def order(
            plan: Annotated[Completion, Resolve(plan)],
            where: Annotated[list[Root], Resolve(where)],
            page: Annotated[Opened, Resolve(page)],
            form: Annotated[dict[str, Any], Resolve(form)],
            last: Annotated[Confirm, Resolve(ask_confirm)],
        ) -> str:
            return f"{plan.text} {where[0].uri} {page.url} {form} {last.go}"

    answers = {
        "sample": "tests", "roots": ["file:///w"], "url": True, "form": {"n": 2},
        "placement": PLACE, "confirm": {"go": True},
    }  # fmt: skip
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert [list(step.asks) for step in done.trail] == [
        ["sample", "roots", "url", "form", "placement"], ["confirm"], []
    ]  # fmt: skip
    assert done.text == "tests file:///w https://example.com/a {'n': 2} True"


async def test_an_ask_behind_a_value_travels_with_asks_that_need_none(rounds: Any) -> None:
    async def look_up(item: str) -> int:
        return len(item)

    async def sized(price: Annotated[int, Resolve(look_up)]) -> Elicit:
        return Elicit(f"How many at {price}?", Size)

    def build(server: Server) -> None:
        @server.tool
        async def order(
            item: str,
            size: Annotated[Size, Resolve(sized)],
            place: Annotated[Placement, Resolve(ask_place)],
        ) -> str:
            return f"{size.gb} {place.region}"

    async with world(rounds, build) as w:
        done = await w.call(
            "order", {"item": "tea"}, answers={"placement": PLACE, "size": {"gb": 1}}
        )
    assert [set(step.asks) for step in done.trail] == [{"placement", "size"}, set()]


async def test_a_resolver_runs_at_most_once_per_round_and_not_again_once_answered(
    rounds: Any,
) -> None:
    ran: list[str] = []

    async def price(item: str) -> int:
        ran.append("price")
        return len(item)

    async def place(price: Annotated[int, Resolve(price)]) -> Elicit:
        ran.append("place")
        return Elicit("Where?", Placement)

    async def confirm(
        place: Annotated[Placement, Resolve(place)], price: Annotated[int, Resolve(price)]
    ) -> Elicit:
        ran.append("confirm")
        return Elicit(f"{price} to {place.region}?", Confirm)

    def build(server: Server) -> None:
        @server.tool
        async def order(
            item: str,
            price: Annotated[int, Resolve(price)],
            place: Annotated[Placement, Resolve(place)],
            confirm: Annotated[Confirm, Resolve(confirm)],
        ) -> str:
            ran.append("order")
            return "done"

    async with world(rounds, build) as w:
        done = await w.call(
            "order", {"item": "tea"}, answers={"placement": PLACE, "confirm": {"go": True}}
        )
    assert done.text == "done"
    assert ran == ["price", "place", "price", "confirm", "price", "order"]


async def test_a_resolver_that_must_not_run_again_remembers_through_its_context(
    rounds: Any,
) -> None:
    looked: list[str] = []

    async def look_up(item: str) -> int:
        looked.append(item)
        return len(looked)

    async def price(ctx: Context, item: str) -> int:
        return await ctx.memo("price", look_up, item)

    def build(server: Server) -> None:
        @server.tool
        async def order(
            item: str,
            price: Annotated[int, Resolve(price)],
            confirm: Annotated[Confirm, Resolve(ask_confirm)],
        ) -> str:
            return f"at {price}"

    async with world(rounds, build) as w:
        done = await w.call(
            "order", {"item": "tea"}, answers={"placement": PLACE, "confirm": {"go": True}}
        )
    assert done.text == "at 1"
    assert looked == ["tea"]


async def test_the_body_may_ask_on_after_its_resolvers(rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(ctx: Context, place: Annotated[Placement, Resolve(ask_place)]) -> str:
            backup = await ctx.elicit("And the backup?", Placement)
            sure = await ctx.approve(f"{place.region} and {backup.region}?")
            return f"{place.region} {backup.region} {bool(sure)}"

    answers = {"placement": PLACE, "placement-2": {"region": "us"}, "approve": True}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert done.asked == ["placement", "placement-2", "approve"]
    assert done.text == "eu us True"


async def test_an_answer_that_does_not_fit_is_asked_for_again(rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(
            size: Annotated[Size, Resolve(ask_size)],
            place: Annotated[Placement, Resolve(ask_place)],
        ) -> str:
            return f"{size.gb} {place.region}"

    answers = {"size": [{"gb": "many"}, {"gb": 3}], "placement": PLACE}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert done.asked == ["size", "placement", "size"]
    assert "did not fit" in done.trail[1].asks["size"].message
    assert done.text == "3 eu"


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "word"), [(Decline(), "declined"), (Cancel(), "cancelled")])
async def test_a_refusal_ends_the_call(answer: Any, word: str, rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(place: Annotated[Placement, Resolve(ask_place)]) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.call("order", answers={"placement": answer})
    assert (done.is_error, done.text) == (True, f"The request for 'placement' was {word}.")


@pytest.mark.parametrize(
    ("answer", "text"),
    [(Decline(), "declined None"), (Cancel(), "cancelled None"), (PLACE, "accepted region='eu'")],
)
async def test_an_outcome_receives_the_refusal(answer: Any, text: str, rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(place: Annotated[Outcome[Placement], Resolve(ask_place)]) -> str:
            return f"{place.status} {place.value}"

    async with world(rounds, build) as w:
        done = await w.call("order", answers={"placement": answer})
    assert done.text == text


async def test_one_consumer_that_needs_the_value_makes_a_refusal_final(rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(
            place: Annotated[Outcome[Placement], Resolve(ask_place)],
            confirm: Annotated[Confirm, Resolve(ask_confirm)],
        ) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.call("order", answers={"placement": Decline()})
    assert (done.is_error, done.rounds) == (True, 2)


async def test_a_value_is_an_accepted_outcome(rounds: Any) -> None:
    async def known(ctx: Context) -> Placement:
        return Placement(region="home")

    async def undecided(ctx: Context) -> Outcome[Any]:
        return Outcome("declined", None, "x")

    def build(server: Server) -> None:
        @server.tool
        async def order(
            place: Annotated[Outcome[Placement], Resolve(known)],
            other: Annotated[Outcome[Placement], Resolve(undecided)],
        ) -> str:
            return f"{place.unwrap().region} {other.status}"

    async with world(rounds, build) as w:
        assert (await w.call("order")).text == "home declined"


# --- keys ----------------------------------------------------------------------------------------


async def test_two_resolvers_that_show_one_form_are_told_apart_by_parameter(rounds: Any) -> None:
    async def ask_other() -> Elicit:
        return Elicit("Where?", Placement)

    def build(server: Server) -> None:
        @server.tool
        async def order(
            shipping: Annotated[Placement, Resolve(ask_place)],
            billing: Annotated[Placement, Resolve(ask_other)],
        ) -> str:
            return f"{shipping.region} {billing.region}"

    answers = {"placement": [MISSING, {"region": "eu"}], "billing": {"region": "us"}}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert done.asked == ["placement", "billing", "placement"]
    assert done.text == "eu us"


async def test_a_key_stays_with_its_resolver_when_another_begins_to_ask(rounds: Any) -> None:
    known = [True]

    async def ask_or_know() -> Elicit | Placement:
        return Placement(region="known") if known[0] else Elicit("Where?", Placement)

    def build(server: Server) -> None:
        @server.tool
        async def order(
            shipping: Annotated[Placement, Resolve(ask_or_know)],
            billing: Annotated[Placement, Resolve(ask_place)],
        ) -> str:
            return f"{shipping.region} {billing.region}"

    async with world(rounds, build) as w:
        first = await w.begin("order")
        assert list(first.asks) == ["placement"]
        known[0] = False
        second = await w.answer(first, {})
        assert list(second.asks) == ["shipping", "placement"]
        done = await w.finish(second, {"shipping": PLACE, "placement": {"region": "us"}})
    assert done.text == "eu us"


# --- arguments -----------------------------------------------------------------------------------


async def test_a_value_from_the_client_is_ignored(rounds: Any) -> None:
    def build(server: Server) -> None:
        @server.tool
        async def order(item: str, place: Annotated[Placement, Resolve(ask_place)]) -> str:
            return f"{item} {place.region}"

    async with world(rounds, build) as w:
        listed = await w.send("tools/list", {})
        done = await w.call(
            "order", {"item": "tea", "place": {"region": "evil"}}, answers={"placement": PLACE}
        )
    assert list(listed.result["tools"][0]["inputSchema"]["properties"]) == ["item"]
    assert done.text == "tea eu"


async def test_methods_partials_and_objects_can_resolve(rounds: Any) -> None:
    class Shop:
        async def ask(self, item: str) -> Elicit:
            return Elicit(f"Where to send {item}?", Placement)

        async def __call__(self, ctx: Context) -> int:
            return ctx.round

    async def price(item: str, factor: int) -> int:
        return len(item) * factor

    shop = Shop()

    def build(server: Server) -> None:
        @server.tool
        async def order(
            item: str,
            place: Annotated[Placement, Resolve(shop.ask)],
            same: Annotated[Placement, Resolve(shop.ask)],
            round: Annotated[int, Resolve(shop)],
            price: Annotated[int, Resolve(functools.partial(price, factor=2))],
        ) -> str:
            return f"{place.region} {same.region} {round} {price}"

    async with world(rounds, build) as w:
        done = await w.call("order", {"item": "tea"}, answers={"placement": PLACE})
    assert done.text == "eu eu 2 6"


def test_a_resolver_that_takes_what_nobody_gives_is_refused() -> None:
    server = Server("shop")

    async def ask(itme: str) -> Elicit:
        return Elicit(itme, Placement)

    with pytest.raises(ConfigError, match=r"tool 'order': the resolver of 'place' takes 'itme'"):

        @server.tool
        async def order(item: str, place: Annotated[Placement, Resolve(ask)]) -> str:
            return "never"


def test_a_resolver_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes the function itself"):
        Resolve(Elicit("Where?", Placement))  # pyright: ignore[reportArgumentType]


async def waits_for_late(x: "Annotated[int, Resolve(late)]") -> int:  # pyright: ignore[reportUndefinedVariable]
    return x


async def late(y: Annotated[int, Resolve(waits_for_late)]) -> int:
    return y


def test_resolvers_that_wait_for_each_other_are_refused() -> None:
    server = Server("shop")
    with pytest.raises(ConfigError, match=r"its resolvers wait for each other: place → x → place"):

        @server.tool
        async def order(place: Annotated[int, Resolve(waits_for_late)]) -> str:
            return "never"


async def test_a_failing_resolver_fails_the_call(rounds: Any) -> None:
    async def broken() -> Elicit:
        raise RuntimeError("no")

    def build(server: Server) -> None:
        @server.tool
        async def order(place: Annotated[Placement, Resolve(broken)]) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.begin("order")
    assert done.is_error
    assert "'order' failed" in done.text
