"""Steps: what is asked together, what runs once, what a flow refuses at registration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field

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
from antiphon.testing import MISSING, Rounds
from docs_src.shapes.story import Confirm, Placement, Size

Build = Callable[[Server], None]

PLACE = {"region": "eu"}


class Quote(BaseModel):
    cents: int


def world(rounds: Any, build: Build, **options: Any) -> Any:
    def factory(**kit: Any) -> Server:
        server = Server("shop", **kit)
        build(server)
        return server

    return rounds(factory, **options)


# --- rounds --------------------------------------------------------------------------------------


async def test_independent_asks_travel_in_one_round(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def place() -> Elicit:
            return Elicit("Where?", Placement)

        @flow.step
        async def plan() -> Sample:
            return Sample("Plan it.")

        @flow.step
        async def where() -> ListRoots:
            return ListRoots()

        @flow.step
        async def page() -> ElicitUrl:
            return ElicitUrl("Look.", "https://example.com/a")

        @flow.step
        async def size(place: Placement, plan: Completion) -> Elicit:
            return Elicit(f"How large for {plan.text} in {place.region}?", Size)

        @flow.finish
        async def order(place: Placement, where: list[Root], page: Opened, size: Size) -> str:
            return f"{place.region} {where[0].uri} {page.url} {size.gb}"

    answers = {
        "placement": PLACE,
        "sample": "tests",
        "roots": ["file:///w"],
        "url": True,
        "size": {"gb": 1},
    }
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert [list(step.asks) for step in done.trail] == [
        ["placement", "sample", "roots", "url"],
        ["size"],
        [],
    ]
    assert done.trail[1].asks["size"].message == "How large for tests in eu?"
    assert done.text == "eu file:///w https://example.com/a 1"


async def test_a_step_runs_once_per_call(rounds: Any) -> None:
    ran: list[str] = []

    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def place(item: str) -> Elicit:
            ran.append("place")
            return Elicit(f"Where to send {item}?", Placement)

        @flow.step
        async def quote(place: Placement) -> Quote:
            ran.append("quote")
            return Quote(cents=100 * len(ran))

        @flow.step
        def label(quote: Quote) -> str:
            ran.append("label")
            return f"{quote.cents} cents"

        @flow.step
        async def confirm(label: str) -> Elicit:
            ran.append("confirm")
            return Elicit(f"Pay {label}?", Confirm)

        @flow.finish
        async def order(item: str, quote: Quote, confirm: Confirm) -> Quote:
            ran.append("finish")
            return quote

    async with world(rounds, build) as w:
        done = await w.call(
            "order", {"item": "tea"}, answers={"placement": PLACE, "confirm": {"go": True}}
        )
    assert ran == ["place", "quote", "label", "confirm", "finish"]
    assert done.structured == {"cents": 200}


async def test_a_step_whose_value_nobody_types_runs_again_to_read_its_answer(rounds: Any) -> None:
    ran: list[str] = []

    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def place():
            ran.append("place")
            return Elicit("Where?", Placement)

        @flow.step
        async def size(place):
            return Elicit(f"How large in {place.region}?", Size)

        @flow.finish
        async def order(place, size) -> str:
            return f"{place!r} {size!r}"

    async with world(rounds, build) as w:
        done = await w.call("order", answers={"placement": PLACE, "size": {"gb": 2}})
    assert done.text == "Placement(region='eu') Size(gb=2)"
    assert ran == ["place", "place", "place"]


async def test_a_step_without_an_answer_asks_again_and_others_do_not(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def place() -> Elicit:
            return Elicit("Where?", Placement)

        @flow.step
        async def size() -> Elicit:
            return Elicit("How large?", Size)

        @flow.step
        async def confirm(size: Size) -> Elicit:
            return Elicit(f"{size.gb}?", Confirm)

        @flow.finish
        async def order(place: Placement, size: Size, confirm: Confirm) -> str:
            return f"{place.region} {size.gb} {confirm.go}"

    answers = {"placement": [MISSING, PLACE], "size": {"gb": 1}, "confirm": {"go": True}}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert [list(step.asks) for step in done.trail] == [
        ["placement", "size"], ["placement"], ["confirm"], []
    ]  # fmt: skip
    assert done.text == "eu 1 True"


async def test_more_asks_than_a_round_may_hold_take_more_rounds(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")
        for number in range(20):
            model = type(f"Form{chr(65 + number)}", (Size,), {"__module__": __name__})

            def ask(model: Any = model) -> Any:
                async def step() -> Elicit:
                    return Elicit("How large?", model)

                return step

            flow.step(name=f"step_{chr(97 + number)}")(ask())

        @flow.finish
        async def order() -> str:
            return "done"

    sizes = {f"form_{chr(97 + number)}": {"gb": number} for number in range(20)}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=sizes)
    assert [len(step.asks) for step in done.trail] == [16, 4, 0]
    assert done.text == "done"


async def test_values_of_every_kind_come_back_as_the_first_run_saw_them(rounds: Any) -> None:
    seen: list[Any] = []

    @dataclass
    class Point:
        x: int

    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def point() -> Point | Elicit:
            return Point(1)

        @flow.step
        async def pair():
            return (1, 2)

        @flow.step
        async def nothing() -> None:
            return None

        @flow.step
        async def place(point: Point, pair: Any, nothing: None) -> Elicit:
            seen.append((point, pair, nothing))
            return Elicit("Where?", Placement)

        @flow.finish
        async def order(place: Placement, point: Point, pair: Any, nothing: None) -> str:
            seen.append((point, pair, nothing))
            return "done"

    async with world(rounds, build) as w:
        assert (await w.call("order", answers={"placement": PLACE})).text == "done"
    assert seen == [(Point(1), [1, 2], None)] * 2


async def test_a_value_that_cannot_be_kept_is_named(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def connection() -> Any:
            return object()

        @flow.finish
        async def order(connection: Any) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.call("order")
    assert done.is_error
    assert "step 'connection'" in done.text
    assert "cannot be kept as JSON" in done.text


# --- the context in steps ------------------------------------------------------------------------


async def test_a_step_may_ask_act_and_remember_through_its_context(rounds: Any) -> None:
    made: list[str] = []

    async def make(region: str) -> str:
        made.append(region)
        return f"vm-{region}"

    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def vm(ctx: Context) -> str:
            place = await ctx.elicit("Where?", Placement)
            return await ctx.once("make", make, place.region)

        @flow.step
        async def approved(ctx: Context, vm: str) -> bool:
            return bool(await ctx.approve(f"Start {vm}?"))

        @flow.finish
        async def order(ctx: Context, vm: str, approved: bool) -> str:
            backup = await ctx.elicit("And the backup?", Placement)
            return f"{vm} {approved} {backup.region}"

    answers = {"placement": PLACE, "approve": True, "placement-2": {"region": "us"}}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert done.asked == ["placement", "approve", "placement-2"]
    assert done.text == "vm-eu True us"
    assert made == ["eu"]


async def test_dice_and_time_of_later_code_do_not_change_when_a_step_is_skipped(
    rounds: Any,
) -> None:
    seen: list[tuple[str, ...]] = []

    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def first(ctx: Context) -> str:
            return f"{ctx.uuid()} {ctx.now().isoformat()}"

        @flow.step
        async def second(ctx: Context, first: str) -> str:
            return f"{ctx.uuid()} {ctx.now().isoformat()}"

        @flow.step
        async def place(second: str) -> Elicit:
            return Elicit("Where?", Placement)

        @flow.finish
        async def order(ctx: Context, first: str, second: str, place: Placement) -> str:
            seen.append((first.split()[0], second.split()[0], str(ctx.uuid())))
            await ctx.elicit("Sure?", Confirm)
            return "done"

    async with world(rounds, build) as w:
        done = await w.call("order", answers={"placement": PLACE, "confirm": {"go": True}})
    assert done.text == "done"
    assert len(set(seen)) == 1
    assert len(set(seen[0])) == 3


async def test_a_commit_in_a_step_is_refused_because_it_would_be_forgotten(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def vm(ctx: Context) -> str:
            ctx.on_commit("tell", print, "done")
            return "vm"

        @flow.finish
        async def order(vm: str) -> str:
            return vm

    async with world(rounds, build) as w:
        done = await w.call("order")
    assert done.is_error
    assert "'vm' calls ctx.on_commit" in done.text


async def test_a_sync_step_runs_in_a_thread_and_is_told_that_it_cannot_ask(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        def when(ctx: Context) -> float:
            return ctx.now().timestamp()

        @flow.step
        def place(ctx: Context, when: float) -> Any:
            return ctx.elicit("Where?", Placement)

        @flow.finish
        async def order(place: Placement) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.call("order")
    assert done.is_error
    assert "needs an async handler" in done.text


async def test_a_secret_value_never_travels_in_the_token(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step(secret=True)
        async def voucher() -> str:
            return "v" * 5_000

        @flow.step
        async def place(voucher: str) -> Elicit:
            return Elicit("Where?", Placement)

        @flow.finish
        async def order(voucher: str, place: Placement) -> str:
            return voucher

    async with world(rounds, build) as w:
        first = await w.begin("order")
        assert len(first.token) < 1_500
        assert (await w.finish(first, {"placement": PLACE})).text == "v" * 5_000


# --- refusals ------------------------------------------------------------------------------------


def asking_flow(server: Server, ran: list[str]) -> None:
    flow = server.flow("order")

    @flow.step
    async def place() -> Elicit:
        return Elicit("Where?", Placement)

    @flow.step
    async def size() -> Elicit:
        return Elicit("How large?", Size)

    @flow.step
    async def after(place: Placement) -> str:
        ran.append("after")
        return "x"

    @flow.finish
    async def order(size: Outcome[Size], after: str) -> str:
        return f"{size.status} {size.value}"


@pytest.mark.parametrize(("answer", "word"), [(Decline(), "declined"), (Cancel(), "cancelled")])
async def test_a_refusal_ends_the_call_where_a_value_is_needed(
    answer: Any, word: str, rounds: Any
) -> None:
    ran: list[str] = []
    async with world(rounds, lambda server: asking_flow(server, ran)) as w:
        done = await w.call("order", answers={"placement": answer, "size": {"gb": 1}})
    assert done.is_error
    assert done.text == f"The request for 'placement' was {word}."
    assert ran == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [(Decline(), "declined None"), (Cancel(), "cancelled None"), ({"gb": 1}, "accepted gb=1")],
)
async def test_a_parameter_declared_as_an_outcome_takes_the_refusal(
    answer: Any, text: str, rounds: Any
) -> None:
    async with world(rounds, lambda server: asking_flow(server, [])) as w:
        done = await w.call("order", answers={"placement": PLACE, "size": answer})
    assert done.text == text


async def test_a_refusal_that_nobody_takes_ends_the_call_too(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def terms() -> Elicit:
            return Elicit("Do you accept the terms?", Confirm)

        @flow.finish
        async def order() -> str:
            return "ordered"

    async with world(rounds, build) as w:
        assert (await w.call("order", answers={"confirm": Decline()})).is_error
        assert (await w.call("order", answers={"confirm": {"go": True}})).text == "ordered"


# --- keys ----------------------------------------------------------------------------------------


async def test_two_steps_that_show_one_form_are_told_apart_by_name(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def shipping() -> Elicit:
            return Elicit("Where?", Placement)

        @flow.step
        async def billing() -> Elicit:
            return Elicit("Where?", Placement)

        @flow.finish
        async def order(shipping: Placement, billing: Placement) -> str:
            return f"{shipping.region} {billing.region}"

    answers = {"placement": {"region": "eu"}, "billing": [MISSING, {"region": "us"}]}
    async with world(rounds, build) as w:
        done = await w.call("order", answers=answers)
    assert done.asked == ["placement", "billing", "billing"]
    assert done.text == "eu us"


# --- registration --------------------------------------------------------------------------------


async def test_the_tool_has_the_arguments_of_finish_and_nothing_else(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order", title="Order", annotations={"readOnlyHint": False})

        @flow.step
        async def place(item: str) -> Elicit:
            return Elicit(f"Where to send {item}?", Placement)

        @flow.finish
        async def finished(ctx: Context, item: str, place: Placement, count: int = 1) -> Quote:
            """Order something."""
            return Quote(cents=count)

    async with world(rounds, build) as w:
        (tool,) = (await w.send("tools/list", {})).result["tools"]
    assert (tool["name"], tool["title"], tool["description"]) == (
        "order", "Order", "Order something."
    )  # fmt: skip
    assert tool["annotations"] == {"readOnlyHint": False}
    assert tool["inputSchema"]["properties"].keys() == {"item", "count"}
    assert tool["inputSchema"]["required"] == ["item"]
    assert tool["outputSchema"]["properties"].keys() == {"cents"}


async def test_a_flow_can_have_a_second_handler_for_old_clients() -> None:
    server = Server("shop")
    flow = server.flow("order")

    @flow.step
    async def place() -> Elicit:
        return Elicit("Where?", Placement)

    @flow.finish
    async def order(place: Placement) -> str:
        return "never"

    @cast("Any", order).legacy
    async def old() -> str:
        return "as of old"

    round = Request(
        method="tools/call",
        target="order",
        capabilities={},
        principal=Principal(),
        version="2025-11-25",
        era="legacy",
    )
    async with server.running():
        assert b"as of old" in await server.dispatcher.dispatch(round)


def test_a_step_that_takes_what_nobody_gives_is_refused() -> None:
    flow = Server("shop").flow("order")

    @flow.step
    async def place(itme: str) -> Elicit:
        return Elicit(f"Where to send {itme}?", Placement)

    with pytest.raises(ConfigError, match=r"flow 'order': step 'place' takes 'itme'.*item"):

        @flow.finish
        async def order(item: str, place: Placement) -> str:
            return "never"


def test_steps_that_wait_for_each_other_are_refused() -> None:
    flow = Server("shop").flow("order")

    @flow.step
    async def a(c: str) -> str:
        return c

    @flow.step
    async def b(a: str) -> str:
        return a

    @flow.step
    async def c(b: str) -> str:
        return b

    with pytest.raises(ConfigError, match=r"flow 'order' can never run: .* wait for each other"):

        @flow.finish
        async def order(c: str) -> str:
            return c


async def test_a_flow_without_a_finish_is_not_served() -> None:
    server = Server("shop")
    flow = server.flow("order")

    @flow.step
    async def place() -> Elicit:
        return Elicit("Where?", Placement)

    with pytest.raises(ConfigError, match="flow 'order' has no finish"):
        server.asgi()
    with pytest.raises(ConfigError, match="flow 'order' has no finish"):
        async with server.running():
            pass


def test_a_finished_flow_takes_no_more_steps() -> None:
    flow = Server("shop").flow("order")

    @flow.finish
    async def order() -> str:
        return "done"

    with pytest.raises(ConfigError, match="comes after finish"):

        @flow.step
        async def late() -> str:
            return "late"

    with pytest.raises(ConfigError, match="two functions for finish"):
        flow.finish(order)


def test_two_steps_of_one_name_are_refused() -> None:
    flow = Server("shop").flow("order")

    @flow.step
    async def place() -> str:
        return "a"

    with pytest.raises(ConfigError, match="two steps of the name 'place'"):
        flow.step(name="place")(place)


class Partly(BaseModel):
    kept: int
    lost: int = Field(default=0, exclude=True)


@pytest.mark.parametrize("returns", [Outcome[int], Server, Partly])
def test_a_step_that_declares_what_cannot_be_kept_is_refused(returns: Any) -> None:
    flow = Server("shop").flow("order")

    async def made() -> Any: ...

    made.__annotations__["return"] = returns
    flow.step(made)
    with pytest.raises(ConfigError, match=r"flow 'order': .*step 'made'"):

        @flow.finish
        async def order(made: Any) -> str:
            return "never"


def test_a_resolver_in_a_flow_is_refused() -> None:
    async def ask() -> Elicit:
        return Elicit("Where?", Placement)

    flow = Server("shop").flow("order")
    with pytest.raises(ConfigError, match="make it a step"):

        @flow.finish
        async def order(place: Annotated[Placement, Resolve(ask)]) -> str:
            return "never"


async def test_a_parameter_of_another_form_than_the_one_shown_is_named(rounds: Any) -> None:
    def build(server: Server) -> None:
        flow = server.flow("order")

        @flow.step
        async def place() -> Elicit:
            return Elicit("Where?", Placement)

        @flow.finish
        async def order(place: Size) -> str:
            return "never"

    async with world(rounds, build) as w:
        done = await w.begin("order")
    assert done.is_error
    assert "asks for Placement" in done.text
    assert "declared as Size" in done.text


async def test_a_flow_and_a_handler_with_resolvers_can_be_parked() -> None:
    entered: list[str] = []

    async def ask_size() -> Elicit:
        return Elicit("How large?", Size)

    def factory(**kit: Any) -> Server:
        server = Server("shop", **kit)
        flow = server.flow("order", park=60)

        @flow.step
        async def place(ctx: Context) -> str:
            entered.append("place")
            return (await ctx.elicit("Where?", Placement)).region

        @flow.finish
        async def order(place: str) -> str:
            return place

        @server.tool(park=60)
        def sized(size: Annotated[Size, Resolve(ask_size)]) -> str:
            return f"{size.gb}"

        return server

    async with Rounds(factory, fresh=False) as w:
        server = w.make()
        async with server.running():
            first = await w.begin("order", server=server)
            second = await w.begin("sized", server=server)
            assert server.stats()["parked"] == 2
            assert (await w.answer(first, {"placement": PLACE}, server=server)).text == "eu"
            assert (await w.answer(second, {"size": {"gb": 3}}, server=server)).text == "3"
            assert server.stats()["parked"] == 0
    assert entered == ["place"]
