"""What if: mistakes that are planted in handlers are found, and sound handlers are left alone."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Approve,
    Console,
    Context,
    Elicit,
    Image,
    InputRequired,
    Principal,
    Server,
)
from antiphon.testing import MISSING, WITH_TASKS, Person, Rounds, RoundTrip, Tally, what_if
from tests.linear.one_tool_server import EU, Place

ANNA = Person("https://id.example.com", "anna", "Anna", roles=("finance",))

Handler = Callable[..., Any]


class Confirm(BaseModel):
    sure: bool


def tool(
    handler: Callable[[Tally], Handler], config: dict[str, Any] | None = None, **options: Any
) -> Callable[[Tally], Callable[..., Server]]:
    """Return what `what_if` takes: from a tally to a factory of servers with this one tool."""

    def make(tally: Tally) -> Callable[..., Server]:
        def make_server(**world: Any) -> Server:
            server = Server("cloud", **{**world, **(config or {})})
            server.tool(name="order", **options)(handler(tally))
            return server

        return make_server

    return make


def told(**answers: Any) -> Callable[[Rounds], Awaitable[RoundTrip]]:
    async def story(world: Rounds) -> RoundTrip:
        return await world.call("order", answers=answers)

    return story


def sound(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        if not await ctx.approve(f"Create in {place.region}?"):
            return "not created"
        await ctx.once("create", tally.mark, f"create in {place.region}")
        return "created"

    return order


SOUND = told(place=EU, approve=True)


async def test_nothing_is_found_in_a_handler_that_asks_first_and_acts_once():
    report = await what_if(tool(sound), SOUND)
    report.check()
    assert not report.left_out
    for run in (
        "request 2 sent twice at once",
        "request 3 sent by somebody else, with changed tokens and other arguments before",
        "request 3 sent when its token has expired",
        "a client that starts over before request 3",
        "'approve' answered with no",
        "'place' cancelled",
    ):
        assert run in report.runs


# --- planted mistakes ----------------------------------------------------------------------------


def acts_above_its_question(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        tally.mark("reserve")
        await ctx.elicit("Where?", Place)
        return "ordered"

    return order


def acts_once_above_its_question(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.once("reserve", tally.mark, "reserve")
        await ctx.elicit("Where?", Place)
        return "ordered"

    return order


def asks_by_the_clock(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.elicit(f"Where, at {time.time_ns()}?", Place)
        return "ordered"

    return order


def asks_at_random(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.elicit(f"Where does {uuid.uuid4()} live?", Place)
        return "ordered"

    return order


def swallows_the_end_of_its_round(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        try:
            await ctx.elicit("Where?", Place)
        except BaseException:
            return "something went wrong"
        return "ordered"

    return order


def takes_any_answer_for_a_yes(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.outcome(Approve("Pay?"), key="approve")
        await ctx.once("pay", tally.mark, "pay")
        return "paid"

    return order


def does_not_read_the_form(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.elicit("Pay?", Confirm)
        await ctx.once("pay", tally.mark, "pay")
        return "paid"

    return order


def keeps_its_state_in_memory(tally: Tally) -> Handler:
    basket: list[str] = []

    async def order(ctx: Context) -> str:
        basket.append("apple")
        await ctx.elicit("Where?", Place)
        return f"{len(basket)} ordered"

    return order


@pytest.mark.parametrize(
    ("handler", "answers", "problem"),
    [
        (acts_above_its_question, {"place": EU}, "runs-again"),
        (acts_once_above_its_question, {"place": EU}, "starts-over"),
        (asks_by_the_clock, {"place": EU}, "story-fails"),
        (asks_at_random, {"place": EU}, "story-fails"),
        (swallows_the_end_of_its_round, {"place": EU}, "story-fails"),
        (takes_any_answer_for_a_yes, {"approve": True}, "refusal-acts"),
        (does_not_read_the_form, {"confirm": {"sure": True}}, "refusal-acts"),
        (keeps_its_state_in_memory, {"place": EU}, "needs-memory"),
    ],
)
async def test_a_planted_mistake_is_found(
    handler: Callable[[Tally], Handler], answers: dict[str, Any], problem: str
):
    report = await what_if(tool(handler), told(**answers))
    assert problem in {one.id for one in report.problems}
    with pytest.raises(AssertionError, match=problem):
        report.check()


async def test_a_question_that_holds_the_time_of_its_server_is_found():
    # The story itself passes: in a test no second goes by between its rounds.
    def make(tally: Tally) -> Callable[..., Server]:
        def make_server(clock: Callable[[], float], **world: Any) -> Server:
            server = Server("cloud", clock=clock, **world)

            @server.tool
            async def order(ctx: Context) -> str:
                await ctx.elicit(f"Where, at {clock():.0f}?", Place)
                return "ordered"

            return server

        return make_server

    report = await what_if(make, told(place=EU))
    assert {one.id for one in report.problems} == {"time-matters"}


async def test_a_failing_story_tells_the_cause_and_the_line():
    report = await what_if(tool(asks_at_random), told(place=EU))
    assert "diverged" in str(report)
    assert __file__ in str(report)
    report = await what_if(tool(swallows_the_end_of_its_round), told(place=EU))
    assert "swallowed" in str(report)


def native(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str | InputRequired:
        answer = ctx.answers.get("place", Place)
        if answer is None:
            return InputRequired({"place": Elicit("Where?", Place)})
        await ctx.once("create", tally.mark, "create")
        return "created"

    return order


async def test_answers_that_nobody_asked_for_are_found():
    (await what_if(tool(native), told(place=EU))).check()
    report = await what_if(tool(native, unasked="accept"), told(place=EU))
    assert "unasked-accepted" in {one.id for one in report.problems}


def counts_rounds_instead_of_answers(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str | InputRequired:
        if ctx.state is None:
            return InputRequired({"place": Elicit("Where?", Place)}, state="asked")
        await ctx.once("create", tally.mark, "create")
        return "created"

    return order


async def test_a_round_without_answers_that_acts_is_found():
    report = await what_if(tool(counts_rounds_instead_of_answers), told(place=EU))
    assert "silence-acts" in {one.id for one in report.problems}


def forgets_tokens(tally: Tally) -> Callable[..., Server]:
    """A server whose ledger is its own: another process takes the same token again."""
    make = tool(sound)(tally)

    def make_server(store: Any, **world: Any) -> Server:
        return make(**world)

    return make_server


async def test_tokens_that_are_redeemed_by_every_server_again_are_found():
    report = await what_if(forgets_tokens, SOUND)
    assert {"duplicate-differs", "other-answer-accepted"} <= {one.id for one in report.problems}


async def test_a_token_that_works_for_somebody_else_is_found(monkeypatch: pytest.MonkeyPatch):
    # The binding of a token is taken out: a planted mistake in the framework itself.
    from antiphon.engine.tokens import Tokens

    bind = Tokens.binding

    def without_caller(self: Tokens, request: Any, handler: Any) -> Any:
        principal, request.principal = request.principal, Principal(transport="process")
        try:
            return bind(self, request, handler)
        finally:
            request.principal = principal

    monkeypatch.setattr(Tokens, "binding", without_caller)
    report = await what_if(tool(sound), SOUND)
    assert "stranger-accepted" in {one.id for one in report.problems}


async def test_a_token_that_does_not_expire_is_found():
    report = await what_if(tool(sound, config={"clock": lambda: 1_700_000_000.0}), SOUND)
    assert "expired-accepted" in {one.id for one in report.problems}


async def test_a_mistake_that_is_meant_can_be_allowed():
    make = tool(acts_once_above_its_question)
    report = await what_if(make, told(place=EU), allow={"starts-over"})
    report.check()
    with pytest.raises(ValueError, match="starts-over"):
        await what_if(make, told(place=EU), allow={"start-over"})  # pyright: ignore[reportArgumentType]


# --- other calls than those of a linear tool -----------------------------------------------------


async def test_a_call_that_adopts_what_its_client_began_before_is_sound():
    who = Principal(issuer="https://id.example.com", subject="paul")
    make = tool(acts_once_above_its_question, restarts="adopt")
    (await what_if(make, told(place=EU), principal=who)).check()


async def test_a_task_is_told_with_its_questions():
    report = await what_if(
        tool(sound, task="required"), SOUND, capabilities=WITH_TASKS, allow={"starts-over"}
    )
    report.check()
    assert "'approve' declined" in report.runs


def held(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        if not await ctx.approve("Refund?", by="finance"):
            return "not refunded"
        await ctx.once("refund", tally.mark, "refund")
        return "refunded"

    return order


def held_and_careless(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str:
        await ctx.approve("Refund?", by="finance")
        await ctx.once("refund", tally.mark, "refund")
        return "refunded"

    return order


async def decided(world: Rounds) -> RoundTrip:
    step = await world.begin("order")
    await world.decide("approve", as_=ANNA)
    return await world.finish(step)


async def test_a_decision_of_somebody_else_becomes_a_no():
    console = {"console": Console("http://127.0.0.1:8401/console")}
    how = {"capabilities": WITH_TASKS, "allow": {"starts-over"}}
    report = await what_if(tool(held, console, holds=True), decided, **how)
    report.check()
    assert "decision 1 declined in the inbox" in report.runs
    report = await what_if(tool(held_and_careless, console, holds=True), decided, **how)
    assert {one.id for one in report.problems} == {"refusal-acts"}


async def test_prompts_and_resources_are_told_too():
    def make(tally: Tally) -> Callable[..., Server]:
        def make_server(**world: Any) -> Server:
            server = Server("cloud", **world)

            @server.prompt
            async def report(ctx: Context) -> str:
                place = await ctx.elicit("Where?", Place)
                return f"Report on {place.region}."

            @server.resource("cloud://usage")
            async def usage(ctx: Context) -> str:
                tally.mark("read")
                place = await ctx.elicit("Where?", Place)
                return f"usage of {place.region}"

            return server

        return make_server

    async def prompted(world: Rounds) -> RoundTrip:
        return await world.prompt("report", answers={"place": EU})

    async def read(world: Rounds) -> RoundTrip:
        return await world.read("cloud://usage", answers={"place": EU})

    (await what_if(make, prompted)).check()
    report = await what_if(make, read)
    assert {one.id for one in report.problems} == {"runs-again"}


async def test_a_story_of_single_rounds_is_told_too():
    async def story(world: Rounds) -> RoundTrip:
        step = await world.begin("order")
        step = await world.answer(step, {"place": EU})
        return await world.answer(step, {"approve": True})

    report = await what_if(tool(sound), story)
    report.check()
    assert report.left_out  # its rounds are not those of an older session


@pytest.mark.parametrize("kind", ["prompt", "resource", "image"])
async def test_results_of_every_kind_are_compared(kind: str):
    def make(tally: Tally) -> Callable[..., Server]:
        def make_server(**world: Any) -> Server:
            server, runs = Server("cloud", **world), list[int]()

            async def counted(ctx: Context) -> int:
                runs.append(1)
                await ctx.elicit("Where?", Place)
                return len(runs)

            @server.prompt
            async def report(ctx: Context) -> str:
                return f"Report {await counted(ctx)}."

            @server.resource("cloud://usage")
            async def usage(ctx: Context) -> str:
                return f"usage {await counted(ctx)}"

            @server.tool
            async def chart(ctx: Context) -> Image:
                return Image(bytes([await counted(ctx)]), "image/png")

            return server

        return make_server

    async def story(world: Rounds) -> RoundTrip:
        answers = {"place": EU}
        if kind == "prompt":
            return await world.prompt("report", answers=answers)
        if kind == "resource":
            return await world.read("cloud://usage", answers=answers)
        return await world.call("chart", answers=answers)

    report = await what_if(make, story)
    assert {one.id for one in report.problems} == {"needs-memory"}
    assert ("instead of" in str(report)) == (kind != "image")


def acts_above_its_native_question(tally: Tally) -> Handler:
    async def order(ctx: Context) -> str | InputRequired:
        tally.mark("reserve")
        if ctx.answers.get("place", Place) is None:
            return InputRequired({"place": Elicit("Where?", Place)})
        return "ordered"

    return order


async def single_rounds(world: Rounds) -> RoundTrip:
    return await world.answer(await world.begin("order"), {"place": EU})


@pytest.mark.parametrize(
    ("handler", "story"),
    [
        (acts_above_its_native_question, told(place=EU)),  # runs again in an older session too
        (acts_above_its_question, single_rounds),  # cannot be compared with an older session
    ],
)
async def test_what_runs_in_every_round_is_told_with_its_cure(handler: Any, story: Any):
    report = await what_if(tool(handler), story)
    assert {one.id for one in report.problems} == {"runs-again"}
    assert "ctx.once" in str(report)


async def test_what_runs_above_a_decision_of_somebody_else_is_told_with_its_cure():
    def above(tally: Tally) -> Handler:
        async def order(ctx: Context) -> str:
            tally.mark("reserve")
            return "yes" if await ctx.approve("Refund?", by="finance") else "no"

        return order

    console = {"console": Console("http://127.0.0.1:8401/console")}
    report = await what_if(tool(above, console, holds=True), decided, capabilities=WITH_TASKS)
    assert "ctx.once" in str(report)


async def test_a_story_of_two_calls_repeats_what_the_first_of_them_did():
    async def twice(world: Rounds) -> RoundTrip:
        await SOUND(world)
        return await SOUND(world)

    (await what_if(tool(sound), twice)).check()
    (await what_if(tool(sound, task="required"), twice, capabilities=WITH_TASKS)).check()
    wrong = await what_if(tool(acts_once_above_its_question), twice_told)
    assert {one.id for one in wrong.problems} == {"starts-over"}


async def twice_told(world: Rounds) -> RoundTrip:
    await world.call("order", answers={"place": EU})
    return await world.call("order", answers={"place": EU})


async def test_a_no_in_one_call_says_nothing_about_the_next():
    def named(tally: Tally) -> Handler:
        async def order(ctx: Context, name: str) -> str:
            if not await ctx.approve(f"Create {name}?", key=name):
                return "not created"
            await ctx.once("create", tally.mark, f"create {name}")
            return "created"

        return order

    async def two(world: Rounds) -> None:
        for name in ("one", "other"):
            await world.call("order", {"name": name}, answers={name: True})

    (await what_if(tool(named), two)).check()


async def test_questions_of_one_round_may_be_answered_one_after_the_other():
    def both(tally: Tally) -> Handler:
        async def order(ctx: Context) -> str:
            await ctx.gather(one=Elicit("One?", Place), other=Elicit("Other?", Place))
            await ctx.once("create", tally.mark, "create")
            return "created"

        return order

    (await what_if(tool(both), told(one=EU, other=[MISSING, EU]))).check()


async def test_what_is_approved_after_a_question_that_need_not_be_answered_is_approved():
    def optional(tally: Tally) -> Handler:
        async def order(ctx: Context) -> str:
            place = (await ctx.outcome(Elicit("Where?", Place), key="place")).value
            region = place.region if place is not None else "eu"
            if not await ctx.approve(f"Create in {region}?"):
                return "not created"
            await ctx.once("create", tally.mark, f"create in {region}")
            return "created"

        return order

    report = await what_if(tool(optional), SOUND)
    report.check()
    assert "'place' declined" in report.runs


async def test_a_held_call_that_goes_on_when_its_client_starts_over_is_sound():
    def asks_after(tally: Tally) -> Handler:
        async def order(ctx: Context) -> str:
            if not await ctx.approve("Refund?", by="finance", grace=0.01):
                return "not refunded"
            await ctx.elicit("Where?", Place)
            await ctx.once("refund", tally.mark, "refund")
            return "refunded"

        return order

    async def story(world: Rounds) -> RoundTrip:
        step = await world.begin("order")
        await world.decide("approve", as_=ANNA)
        return await world.finish(step, {"place": EU})

    console = {"console": Console("http://127.0.0.1:8401/console")}
    async with asyncio.timeout(15):  # nobody waits for an answer that only they could give
        make = tool(asks_after, console, holds=True)
        report = await what_if(make, story, capabilities=WITH_TASKS)
    report.check()
    assert any("its held call goes on" in line for line in report.left_out)
