"""What an author is told who makes a mistake: cause and cure, to the caller and in the log."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Approval,
    Completion,
    ConfigError,
    Context,
    Elicit,
    Opened,
    Root,
    Server,
)
from antiphon.testing import Rounds


class Place(BaseModel):
    region: str


Mistake = Callable[[Context], Awaitable[Any]]


def serving(handler: Mistake, **settings: Any) -> Callable[..., Server]:
    def make(**world: Any) -> Server:
        server = Server("shop", **world, **settings)
        server.tool(name="work")(handler)
        return server

    return make


async def gathered(ctx: Context) -> str:
    return str(await ctx.gather(ctx.elicit("Where?", Place)))  # type: ignore[arg-type]


async def gathered_by_name(ctx: Context) -> str:
    return str(await ctx.gather(place=ctx.elicit("Where?", Place)))  # type: ignore[arg-type]


async def gathered_nothing(ctx: Context) -> str:
    return str(await ctx.gather())


async def asked_twice(ctx: Context) -> str:
    return str(await ctx.outcome(ctx.elicit("Where?", Place)))  # type: ignore[arg-type]


async def misspelt(ctx: Context) -> str:
    return str(await ctx.elicit("Where?", Place, timout=5))  # type: ignore[call-overload]


async def misspelt_approve(ctx: Context) -> str:
    return str(await ctx.approve("Pay?", detail={"To": "ada"}))  # type: ignore[call-arg]


async def misspelt_sample(ctx: Context) -> str:
    return str(await ctx.sample("Why?", maxTokens=5))  # type: ignore[call-arg]


async def misspelt_once(ctx: Context) -> str:
    return str(await ctx.once("pay", dict, retries=3))  # type: ignore[call-arg]


async def without_form(ctx: Context) -> str:
    return str(await ctx.elicit("Where?"))  # type: ignore[call-overload]


async def with_response_type(ctx: Context) -> str:
    return str(await ctx.elicit("Sure?", response_type=bool))  # type: ignore[call-overload]


async def many_details(ctx: Context) -> str:
    return str(await ctx.approve("Pay?", details={str(n): n for n in range(17)}))


MISTAKES: list[tuple[Mistake, str]] = [
    (gathered, "ctx.gather takes asks by name and asks them itself: ctx.gather(place=Elicit("),
    (gathered_by_name, "ctx.gather takes asks by name and asks them itself"),
    (gathered_nothing, "ctx.gather needs at least one ask"),
    (asked_twice, "give the ask instead, such as Elicit(message, Form)"),
    (misspelt, "ctx.elicit has no option timout. It takes key, details, identity, secret, timeout"),
    (misspelt_approve, "ctx.approve has no option detail. It takes"),
    (
        misspelt_sample,
        "ctx.sample has no option maxTokens. It takes key, identity,",
    ),
    (misspelt_once, "ctx.once() got an unexpected keyword argument 'retries'. help("),
    (without_form, "ctx.elicit has no form: give it as the second argument"),
    (with_response_type, "ctx.elicit has no form (response_type= is none of its options): give it"),
    (many_details, "details= has 17 entries, and nobody reads more than 16"),
]


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("handler", "text"), MISTAKES, ids=lambda case: getattr(case, "__name__", "")
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_a_mistake_is_told_with_its_cure_to_the_caller_and_in_the_log(
    handler: Mistake, text: str, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rounds(serving(handler), era=era) as world:  # type: ignore[arg-type]
        failed = await world.call("work")
    assert failed.is_error
    assert text in failed.text
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert text in record.getMessage()
    assert f"{__file__}:{handler.__code__.co_firstlineno + 1}" in record.getMessage()


async def test_an_author_in_development_is_told_that_lines_above_an_ask_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def charge(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.elicit("Really?", Place)
        return "charged"

    caplog.set_level(logging.INFO, "antiphon")
    answers = {"place": {"region": "eu"}, "place-2": {"region": "eu"}}
    async with Rounds(serving(charge, expose_errors=True), fresh=False) as world:
        await world.call("work", answers=answers)
        await world.call("work", answers=answers)
    told = [text for text in caplog.messages if "runs again from its first line" in text]
    assert told == [
        "tool:work runs again from its first line in every round: what it does above its last "
        "question happens again, except in ctx.once and ctx.memo"
    ]
    caplog.clear()
    async with Rounds(serving(charge), fresh=False) as world:
        await world.call("work", answers=answers)
    assert "runs again" not in caplog.text


async def test_an_ask_of_another_wording_is_found_in_the_log_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = iter(range(9))

    async def volatile(ctx: Context) -> str:
        await ctx.elicit(f"Where, for the {next(times)}. time?", Place)
        return "done"

    async with Rounds(serving(volatile), fresh=False) as world:
        failed = await world.call("work", answers={"place": {"region": "eu"}})
    assert "diverged" in failed.text
    line = volatile.__code__.co_firstlineno + 1
    assert f"tool:work failed at {__file__}:{line}: Diverged: this re-run diverged" in caplog.text
    assert "for the 0. time" not in caplog.text


# --- at registration -----------------------------------------------------------------------------


def test_a_method_of_a_class_is_refused_with_the_cure() -> None:
    server = Server("shop")
    with pytest.raises(ConfigError, match=r"Register the method of an object"):

        class Shop:
            @server.tool
            async def refund(self, order: str) -> str:
                return order


def test_a_step_whose_value_cannot_be_kept_is_named_without_the_pages_of_a_library() -> None:
    flow = Server("shop").flow("buy")

    @flow.step
    def other() -> Server:
        return Server("other")

    def buy(other: Server) -> str:
        """Buy."""
        return ""

    with pytest.raises(ConfigError, match="the value of step 'other' is kept") as refused:
        flow.finish(buy)
    assert refused.value.__suppress_context__


def test_a_parameter_without_a_schema_is_named_without_the_pages_of_a_library() -> None:
    with pytest.raises(ConfigError, match="parameter 'other' is a Server") as refused:

        @Server("shop").tool
        def work(other: Server) -> str:
            return ""

    assert refused.value.__suppress_context__


# --- types of ours -------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_step_keeps_what_the_context_returns(fresh: bool) -> None:
    def make(**world: Any) -> Server:
        server = Server("shop", **world)
        flow = server.flow("buy")

        @flow.step
        async def page(ctx: Context) -> Opened:
            return await ctx.elicit_url("Pay", "https://example.org/pay")

        @flow.step
        async def yes(ctx: Context, page: Opened) -> Approval | None:
            return await ctx.approve("Send?")

        @flow.step
        async def folders(ctx: Context, yes: Approval) -> list[Root]:
            return await ctx.roots()

        @flow.step
        async def words(ctx: Context, folders: list[Root]) -> Completion:
            return await ctx.sample("Thank")

        @flow.step
        def place(words: Completion) -> Elicit:
            return Elicit("Where?", Place)

        @flow.finish
        def buy(
            page: Opened, yes: Approval, folders: list[Root], words: Completion, place: Place
        ) -> str:
            """Buy."""
            return f"{page.url} {yes.outcome} {folders[0].uri} {words.text} {place.region}"

        return server

    answers = {
        "url": True,
        "approve": True,
        "roots": ["file:///srv"],
        "sample": "thanks",
        "place": {"region": "eu"},
    }
    async with Rounds(make, fresh=fresh) as world:
        done = await world.call("buy", answers=answers)
    assert done.text == "https://example.org/pay approved file:///srv thanks eu"


async def test_an_effect_keeps_what_it_returns_of_ours() -> None:
    async def work(ctx: Context) -> str:
        def look() -> Opened:
            return Opened("https://example.org/")

        opened = await ctx.once("look", look)
        await ctx.elicit("Where?", Place)
        return opened.url

    async with Rounds(serving(work)) as world:
        done = await world.call("work", answers={"place": {"region": "eu"}})
    assert done.text == "https://example.org/"
