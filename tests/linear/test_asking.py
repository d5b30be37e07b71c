"""Asking, seen from the handler, in new worlds and in a kept one."""

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

import anyio
import pytest
from pydantic import BaseModel, Field, field_validator

from antiphon import (
    Cancelled,
    Context,
    Declined,
    Elicit,
    ElicitUrl,
    Expired,
    InputRequired,
    Limits,
    ListRoots,
    Principal,
    Refused,
    Sample,
)
from antiphon.client.asks import Cancel, Decline
from antiphon.testing import MISSING, Raw, Unscripted
from tests.linear.one_tool_server import EU, US, Place, Plan, serving, texts

# --- every kind of ask, and what comes back -----------------------------------------------------


async def test_a_handler_reads_straight_down_over_every_kind_of_ask(rounds):
    async def order(ctx: Context) -> dict:
        place = await ctx.elicit("Where?", Place)
        visit = await ctx.elicit_url("Sign here", "https://example.org/sign")
        said = await ctx.sample("Say hello", max_tokens=5)
        roots = await ctx.roots()
        extra = await ctx.elicit("Anything else?", {"type": "object", "properties": {}})
        yes = await ctx.approve("Go?")
        return {
            "place": place.model_dump(),
            "url": visit.url,
            "said": said.text,
            "roots": [root.uri for root in roots],
            "extra": extra,
            "yes": bool(yes),
        }

    done = await rounds(serving(order)).call(
        "order",
        answers={
            "place": EU,
            "url": True,
            "sample": "hello",
            "roots": ["file:///work"],
            "form": {},
            "approve": True,
        },
    )
    assert done.structured == {
        "place": {"region": "eu", "size": 2},
        "url": "https://example.org/sign",
        "said": "hello",
        "roots": ["file:///work"],
        "extra": {},
        "yes": True,
    }
    assert done.asked == ["place", "url", "sample", "roots", "form", "approve"]
    assert done.rounds == 7


async def test_prompts_and_resources_ask_too(rounds):
    def make(**world):
        from antiphon import Server

        server = Server("cloud", **world)

        @server.prompt
        async def letter(ctx: Context, name: str) -> str:
            return f"Dear {name}, {(await ctx.elicit('What?', Plan)).name}"

        @server.resource("shop://orders/{order}")
        async def one(ctx: Context, order: str) -> str:
            return f"{order}: {(await ctx.elicit('Which?', Plan)).name}"

        return server

    world = rounds(make)
    letter = await world.prompt("letter", {"name": "Ann"}, answers={"plan": {"name": "hi"}})
    assert letter.result["messages"][0]["content"]["text"] == "Dear Ann, hi"
    assert letter.rounds == 2
    order = await world.read("shop://orders/7", answers={"plan": {"name": "blue"}})
    assert order.result["contents"][0]["text"] == "7: blue"


async def test_refusals_are_raised_and_unhandled_they_are_for_the_model_to_read(rounds):
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    no = await world.call("order", answers={"place": Decline()})
    gone = await world.call("order", answers={"place": Cancel()})
    assert (no.is_error, no.text) == (True, "The request for 'place' was declined.")
    assert (gone.is_error, gone.text) == (True, "The request for 'place' was cancelled.")


async def test_a_refusal_can_be_handled_and_an_outcome_is_never_truthy_by_accident(rounds):
    async def order(ctx: Context) -> list:
        said = []
        try:
            await ctx.elicit("Where?", Place)
        except Declined as refusal:
            said.append(refusal.key)
        try:
            await ctx.elicit("Where?", Place, key="other")
        except Cancelled as refusal:
            said.append(refusal.key)
        outcome = await ctx.outcome(Elicit("Where?", Place), key="third")
        return [*said, outcome.status, bool(outcome), outcome.value]

    done = await rounds(serving(order)).call(
        "order", answers={"place": Decline(), "other": Cancel(), "third": Decline()}
    )
    assert done.text == '["place","other","declined",false,null]'


async def test_gather_asks_in_one_round_and_gives_values_by_name(rounds):
    async def order(ctx: Context) -> list:
        got = await ctx.gather(
            place=Elicit("Where?", Place), said=Sample("Hello"), where=ListRoots()
        )
        return [got["place"].region, got["said"].text, got["where"][0].uri]

    done = await rounds(serving(order)).call(
        "order", answers={"place": EU, "said": "hi", "where": ["file:///a"]}
    )
    assert texts(done) == ["eu", "hi", "file:///a"]
    assert done.rounds == 2


async def test_asks_in_loops_and_in_called_functions(rounds):
    async def region(ctx: Context, number: int) -> str:
        return (await ctx.elicit(f"Region {number}?", Place)).region

    async def order(ctx: Context) -> str:
        return ",".join([await region(ctx, number) for number in range(3)])

    done = await rounds(serving(order)).call(
        "order", answers={"place": EU, "place-2": US, "place-3": {"region": "ap"}}
    )
    assert done.text == "eu,us,ap"
    assert done.asked == ["place", "place-2", "place-3"]


async def test_the_kit_says_which_answer_is_not_in_the_script(rounds):
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    with pytest.raises(Unscripted, match="place"):
        await rounds(serving(order)).call("order", answers={"plan": {}})


# --- when a round ends --------------------------------------------------------------------------


async def test_an_ask_in_the_handlers_own_task_ends_the_round_at_once(rounds, tally):
    async def order(ctx: Context) -> str:
        tally.mark("before")
        place = await ctx.elicit("Where?", Place)
        tally.mark("after")
        return place.region

    world = rounds(serving(order))
    step = await world.begin("order")
    assert list(step.asks) == ["place"]
    assert tally.marks == ["before"]
    done = await world.answer(step, {"place": EU})
    assert done.text == "eu"
    assert tally.marks == ["before", "before", "after"]


async def by_gather(ctx: Context) -> list:
    found = await asyncio.gather(ctx.elicit("Where?", Place), ctx.elicit("What?", Plan))
    return [found[0].region, found[1].name]


async def by_task_group(ctx: Context) -> list:
    async with asyncio.TaskGroup() as group:
        place = group.create_task(ctx.elicit("Where?", Place))
        plan = group.create_task(ctx.elicit("What?", Plan))
    return [place.result().region, plan.result().name]


async def by_anyio(ctx: Context) -> list:
    found = {}

    async def ask(name, form):
        found[name] = await ctx.elicit(f"{name}?", form)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "place", Place)
        group.start_soon(ask, "plan", Plan)
    return [found["place"].region, found["plan"].name]


@pytest.mark.parametrize("handler", [by_gather, by_task_group, by_anyio])
async def test_asks_in_child_tasks_ride_in_one_round(rounds, handler):
    world = rounds(serving(handler))
    done = await world.call(handler.__name__, answers={"place": EU, "plan": {"name": "big"}})
    assert texts(done) == ["eu", "big"]
    assert (done.rounds, sorted(done.asked)) == (2, ["place", "plan"])


async def test_branches_that_work_on_are_cut_and_their_effects_settle(rounds, tally):
    started = asyncio.Event()

    async def slow(key: str) -> str:
        started.set()
        await asyncio.sleep(0.06)
        return tally.mark(key) and key

    async def work(ctx: Context) -> str:
        made = await ctx.once("make", slow, "make")
        tally.mark("went on")
        return made

    async def ask(ctx: Context) -> str:
        await started.wait()
        return (await ctx.elicit("Where?", Place)).region

    async def order(ctx: Context) -> list:
        started.clear()
        async with asyncio.TaskGroup() as group:
            place = group.create_task(ask(ctx))
            if ctx.round == 1:
                made = group.create_task(work(ctx))
            else:
                started.set()
                made = group.create_task(work(ctx))
        return [place.result(), made.result()]

    world = rounds(serving(order, settle=0.01))
    step = await world.begin("order")
    assert list(step.asks) == ["place"]
    assert tally.marks == ["make"]
    done = await world.answer(step, {"place": EU})
    assert texts(done) == ["eu", "make"]
    assert tally.counts == {"make": 1, "went on": 1}


# --- keys, and a context whose round has ended --------------------------------------------------


async def test_a_dead_context_claims_nothing_and_asks_nothing(rounds, tally):
    async def order(ctx: Context) -> str:
        try:
            return (await ctx.elicit("Where?", Place)).region
        finally:
            await ctx.once("release", tally.mark, "release")
            await ctx.elicit("Really?", Plan)

    world = rounds(serving(order))
    step = await world.begin("order")
    assert list(step.asks) == ["place"]
    assert tally.marks == []
    step = await world.answer(step, {"place": EU})
    assert list(step.asks) == ["plan"]
    assert tally.marks == ["release"]
    done = await world.answer(step, {"plan": {"name": "x"}})
    assert done.text == "eu"
    assert tally.marks == ["release"]


async def test_given_keys_may_not_look_derived(rounds):
    async def order(ctx: Context) -> str:
        number = 2
        return (await ctx.elicit("Where?", Place, key=f"place-{number}")).region

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "'place-2'" in step.text


async def test_derived_and_given_keys_share_one_namespace(rounds):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place, key="plan")
        return (await ctx.elicit("What?", Plan)).name

    world = rounds(serving(order))
    done = await world.call("order", answers={"plan": EU})
    assert done.is_error
    assert "'plan' is used twice" in done.text


async def test_two_branches_with_one_derived_key_are_ambiguous(rounds):
    async def order(ctx: Context) -> list:
        found = await asyncio.gather(ctx.elicit("A?", Place), ctx.elicit("B?", Place))
        return [place.region for place in found]

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "derived key 'place'" in step.text
    assert "key=" in step.text


async def test_branches_with_given_keys_cannot_swap_answers(rounds):
    async def branch(ctx: Context, key: str, delay: float) -> str:
        await asyncio.sleep(delay)
        return (await ctx.elicit("Where?", Place, key=key)).region

    async def order(ctx: Context) -> list:
        late = 0.01 if ctx.round == 1 else 0.0
        early = 0.0 if ctx.round == 1 else 0.01
        return list(await asyncio.gather(branch(ctx, "a", late), branch(ctx, "b", early)))

    done = await rounds(serving(order)).call("order", answers={"a": EU, "b": US})
    assert texts(done) == ["eu", "us"]
    assert sorted(done.asked) == ["a", "b"]


# --- digests and divergence ---------------------------------------------------------------------


@dataclass
class Titled:
    name: str


async def test_identity_replaces_wording_that_changes(rounds, tally):
    async def order(ctx: Context) -> str:
        count = tally.mark("run")
        return (await ctx.elicit(f"Run {count}: where?", Place, identity="where")).region

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "eu"


async def test_details_are_bound_in_the_digest(rounds, tally):
    async def order(ctx: Context) -> str:
        price = tally.mark("run")
        return str(bool(await ctx.approve("Buy?", details={"price": price})))

    done = await rounds(serving(order)).call("order", answers={"approve": True})
    assert done.is_error
    assert "diverged" in done.text


async def test_volatile_wording_is_reported_on_the_first_re_run(rounds, tally):
    async def order(ctx: Context) -> str:
        count = tally.mark("run")
        await ctx.elicit(f"Run {count}: where?", Place)
        return (await ctx.elicit("What?", Plan)).name

    done = await rounds(serving(order)).call("order", answers={"place": EU, "plan": {"name": "x"}})
    assert done.rounds == 2
    assert done.is_error
    assert "Run 1: where?" in done.text
    assert "Run 2: where?" in done.text


@pytest.mark.parametrize("new", ["ask", "memo", "effect", "pause", "now"])
async def test_something_new_before_what_was_recorded_is_divergence(rounds, tally, new):
    async def order(ctx: Context) -> str:
        if ctx.round == 2:
            if new == "ask":
                await ctx.elicit("Another?", Plan)
            elif new == "memo":
                await ctx.memo("new", tally.mark, "new")
            elif new == "effect":
                await ctx.once("new", tally.mark, "new")
            elif new == "pause":
                await ctx.pause()
            else:
                ctx.now()
        return (await ctx.elicit("Where?", Place)).region

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.is_error
    assert "'place'" in done.text
    assert "diverged" in done.text
    assert tally.marks == []


async def test_an_answer_that_no_branch_reads_any_more_is_found_when_the_handler_returns(rounds):
    async def order(ctx: Context) -> str:
        key = "a" if ctx.round == 1 else "b"
        async with asyncio.TaskGroup() as group:
            place = group.create_task(ctx.elicit("Where?", Place, key=key))
        return place.result().region

    world = rounds(serving(order, settle=0.001))
    done = await world.call("order", answers={"a": EU, "b": EU})
    assert done.is_error
    assert "'a'" in done.text
    assert "the end of the handler" in done.text
    assert done.rounds == 3


async def test_patched_code_is_new_for_new_calls_and_old_for_running_ones(rounds):
    async def before(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        plan = await ctx.elicit("What?", Plan)
        return f"{place.region} {plan.name}"

    async def after(ctx: Context) -> str:
        asked = ""
        if ctx.patched("budget"):
            asked = (await ctx.elicit("Budget?", Plan, key="budget")).name
        place = await ctx.elicit("Where?", Place)
        plan = await ctx.elicit("What?", Plan)
        return f"{asked} {place.region} {plan.name}"

    answers = {"place": EU, "plan": {"name": "big"}, "budget": {"name": "ten"}}
    world = rounds(serving(before, name="order"))
    old = await world.answer(await world.begin("order"), answers)
    await world.deploy(serving(after, name="order"))
    assert (await world.finish(old, answers)).text == " eu big"
    new = await world.call("order", answers=answers)
    assert new.text == "ten eu big"
    assert new.asked == ["budget", "place", "plan"]


async def test_a_patch_holds_for_the_whole_run_and_its_mark_may_go_unread(rounds):
    async def with_mark(ctx: Context) -> str:
        sides = {ctx.patched("loop")}
        await ctx.elicit("Where?", Place)
        sides.add(ctx.patched("loop"))
        await ctx.elicit("What?", Plan)
        sides.add(ctx.patched("loop"))
        return str(sides)

    async def without_mark(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.elicit("What?", Plan)
        return "clean"

    answers = {"place": EU, "plan": {"name": "big"}}
    world = rounds(serving(with_mark, name="order"))
    assert (await world.call("order", answers=answers)).text == "{True}"
    step = await world.begin("order")
    await world.deploy(serving(without_mark, name="order"))
    assert (await world.finish(step, answers)).text == "clean"


async def test_a_running_call_stays_on_the_old_side_in_a_loop(rounds):
    async def old(ctx: Context) -> str:
        return "".join([(await ctx.elicit(f"{n}?", Place)).region for n in range(3)])

    async def new(ctx: Context) -> str:
        said = ""
        for n in range(3):
            said += "new" if ctx.patched("x") else "old"
            said += (await ctx.elicit(f"{n}?", Place)).region
        return said

    answers = {"place": EU, "place-2": EU, "place-3": EU}
    world = rounds(serving(old, name="order"))
    step = await world.answer(await world.begin("order"), answers)
    await world.deploy(serving(new, name="order"))
    assert (await world.finish(step, answers)).text == "oldeuoldeuoldeu"


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers",
    ["text", [1], {"place": "eu"}, {"place": {"action": "maybe"}}, {"place": {"content": {}}}],
)
async def test_answers_of_the_wrong_shape_spend_nothing(rounds, answers):
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    step = await world.begin("order")
    wrong = await world.send_raw(step, answers)
    assert wrong.code == -32602
    assert (await world.answer(step, {"place": EU})).text == "eu"


async def test_content_that_does_not_fit_is_asked_again_with_the_reason(rounds):
    async def order(ctx: Context) -> str:
        return str((await ctx.elicit("Where?", Place)).size)

    world = rounds(serving(order))
    step = await world.begin("order")
    again = await world.answer(step, {"place": {"region": "eu", "size": "enormous"}})
    assert again.waiting
    assert "size" in again.asks["place"].message
    assert "enormous" not in again.asks["place"].message
    done = await world.answer(again, {"place": {"region": "eu", "size": 3}})
    assert done.text == "3"


async def test_after_three_repeats_the_call_ends(rounds):
    async def order(ctx: Context) -> str:
        return str((await ctx.elicit("Where?", Place)).size)

    bad = {"size": 1}
    done = await rounds(serving(order)).call(
        "order", answers={"place": [bad, bad, MISSING, bad, bad, EU]}
    )
    assert done.is_error
    assert done.asked == ["place"] * 5
    assert done.text == (
        "The answer to 'place' did not fit after 3 more tries: region: an answer is required"
    )


class Meal(BaseModel):
    amount: Annotated[Decimal, Field(gt=0)]

    @field_validator("amount")
    @classmethod
    def affordable(cls, value: Decimal) -> Decimal:
        if value > 200:
            raise ValueError(f"meals over 200 EUR need a travel request, you asked for {value} EUR")
        return value


TOO_DEAR = "amount: meals over 200 EUR need a travel request, you asked for 300 EUR"


async def test_the_person_reads_a_validators_own_words(rounds):
    async def claim(ctx: Context) -> str:
        return str((await ctx.elicit("How much?", Meal)).amount)

    world = rounds(serving(claim))
    step = await world.begin("claim")
    again = await world.answer(step, {"meal": {"amount": 300}})
    assert again.asks["meal"].message == f"How much?\n\nThe last answer did not fit: {TOO_DEAR}"
    assert (await world.answer(again, {"meal": {"amount": 19.5}})).text == "19.5"
    done = await world.call("claim", answers={"meal": [{"amount": 300}] * 4})
    assert done.text == f"The answer to 'meal' did not fit after 3 more tries: {TOO_DEAR}"


async def test_a_native_handlers_person_reads_them_too(rounds):
    async def claim(ctx: Context) -> str | InputRequired:
        meal = ctx.answers.get("meal", Meal)
        if meal is None:
            return InputRequired({"meal": Elicit("How much?", Meal)})
        return str(meal.amount)

    done = await rounds(serving(claim)).call("claim", answers={"meal": [{"amount": 300}] * 4})
    assert done.text == f"The answer to 'meal' did not fit after 3 more tries: {TOO_DEAR}"


async def test_an_answer_that_is_kept_secret_is_not_quoted(rounds):
    async def claim(ctx: Context) -> str:
        return str((await ctx.elicit("How much?", Meal, secret=True)).amount)

    world = rounds(serving(claim))
    again = await world.answer(await world.begin("claim"), {"meal": {"amount": 300}})
    assert "travel request" in again.asks["meal"].message
    assert "300" not in again.asks["meal"].message


async def test_unknown_keys_and_members_are_dropped_and_a_missing_key_is_asked_again(rounds):
    async def order(ctx: Context) -> str:
        got = await ctx.gather(place=Elicit("Where?", Place), plan=Elicit("What?", Plan))
        return f"{got['place'].region} {got['plan'].name}"

    world = rounds(serving(order))
    step = await world.begin("order")
    more = {"action": "accept", "content": {**EU, "colour": "red"}, "_meta": {"x": 1}}
    step = await world.send_raw(step, {"place": more, "stranger": {"action": "accept"}})
    assert list(step.asks) == ["plan"]
    done = await world.answer(step, {"plan": {"name": "big"}})
    assert done.text == "eu big"


async def test_a_linear_handler_never_sees_answers_that_nobody_asked_for(rounds):
    async def order(ctx: Context) -> str:
        return str(bool(await ctx.approve("Go?")))

    world = rounds(serving(order, unasked="accept"))
    early = {"approve": {"action": "accept", "content": {"approve": True}}}
    step = await world.send("tools/call", {"name": "order", "inputResponses": early})
    assert list(step.asks) == ["approve"]


async def test_answers_shows_the_latest_question_only(rounds):
    async def order(ctx: Context) -> str | InputRequired:
        if ctx.state is None:
            return InputRequired({"place": Elicit("Where?", Place)}, state="first")
        first = ctx.answers.get("place", Place)
        if ctx.state == "first":
            return InputRequired({"place": Elicit("Sure?", Place)}, state=first and first.region)
        second = ctx.answers.get("place", Place)
        return f"{ctx.state} {second.region if second else None}"

    world = rounds(serving(order))
    step = await world.answer(await world.begin("order"), {"place": EU})
    assert step.asks["place"].message == "Sure?"
    assert (await world.answer(step)).text == "eu None"
    other = await world.call("order", answers={"place": [EU, US]})
    assert other.text == "eu us"


async def test_unasked_answers_are_for_tools_that_opted_in(rounds):
    async def order(ctx: Context) -> str:
        place = ctx.answers.get("place", Place)
        return place.region if place else "none"

    early = {"place": {"action": "accept", "content": EU}}
    params = {"name": "order", "inputResponses": early}
    assert (await rounds(serving(order)).send("tools/call", params)).text == "none"
    opted = rounds(serving(order, unasked="accept"))
    assert (await opted.send("tools/call", params)).text == "eu"


async def test_an_answer_counts_in_the_call_and_for_the_principal_that_was_asked(rounds):
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    one, two = await world.begin("order"), await world.begin("order")
    assert one.token != two.token
    stranger = Principal(issuer="i", subject="stranger")
    assert (await world.answer(one, {"place": EU}, principal=stranger)).code == -32602
    assert (await world.answer(one, {"place": EU})).text == "eu"
    assert (await world.answer(two, {"place": US})).text == "us"


# --- approvals ----------------------------------------------------------------------------------


async def ask_approval(ctx: Context) -> str:
    approval = await ctx.approve("Start?", details={"vm": "a1", "cost": 5})
    return f"{approval.outcome} {bool(approval)}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (True, "approved True"),
        (False, "declined False"),
        (Decline(), "declined False"),
        (Cancel(), "cancelled False"),
    ],
)
async def test_only_an_explicit_yes_approves(rounds, answer, said):
    done = await rounds(serving(ask_approval)).call("ask_approval", answers={"approve": answer})
    assert done.text == said


@pytest.mark.parametrize("content", [{}, {"approve": "true"}, {"approve": 1}, {"yes": True}])
async def test_anything_but_a_boolean_is_asked_again(rounds, content):
    world = rounds(serving(ask_approval))
    step = await world.begin("ask_approval")
    again = await world.send_raw(step, {"approve": {"action": "accept", "content": content}})
    assert again.waiting
    assert (await world.answer(again, {"approve": False})).text == "declined False"


async def test_the_form_is_one_required_boolean_without_default(rounds):
    step = await rounds(serving(ask_approval)).begin("ask_approval")
    ask = step.asks["approve"]
    assert ask.schema["required"] == ["approve"]
    assert ask.schema["properties"]["approve"]["type"] == "boolean"
    assert "default" not in ask.schema["properties"]["approve"]
    assert '• vm: "a1"' in ask.message
    assert "cost: 5" in ask.message


async def test_a_client_that_cannot_be_asked_is_unavailable_in_every_round(rounds):
    async def order(ctx: Context) -> str:
        first = (await ctx.approve("Start?")).outcome
        said = await ctx.sample("Hello")
        return f"{first} {said.text}"

    world = rounds(serving(order), capabilities={"sampling": {}})
    step = await world.begin("order")
    assert list(step.asks) == ["sample"]
    able = {"sampling": {}, "elicitation": {}}
    done = await world.answer(step, {"sample": "hi"}, capabilities=able)
    assert done.text == "unavailable hi"


# --- capabilities, links, timeouts, text --------------------------------------------------------


async def test_what_the_client_can_do_is_read_once(rounds):
    async def order(ctx: Context) -> str:
        can = ctx.can(Sample)
        place = await ctx.elicit("Where?", Place)
        return f"{can} {ctx.can(Sample)} {ctx.can(ListRoots)} {ctx.era} {place.region}"

    world = rounds(serving(order), capabilities={"elicitation": {}})
    step = await world.begin("order")
    more = {"elicitation": {}, "sampling": {}, "roots": {}}
    done = await world.answer(step, {"place": EU}, capabilities=more)
    assert done.text == "False False True modern eu"


async def test_a_new_ask_is_gated_on_the_current_request_an_answered_one_never_again(rounds):
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        said = await ctx.sample("Hello")
        return f"{place.region} {said.text}"

    world = rounds(serving(order))
    step = await world.begin("order")
    poor = await world.answer(step, {"place": EU}, capabilities={"elicitation": {}})
    assert poor.code == -32021
    assert poor.error.data == {"requiredCapabilities": {"sampling": {}}}
    step = await world.answer(step, {"place": EU}, capabilities={"sampling": {}})
    done = await world.answer(step, {"sample": "hi"}, capabilities={})
    assert done.text == "eu hi"


async def test_declared_asks_are_gated_before_the_first_line(rounds, tally):
    async def order(ctx: Context) -> str:
        tally.mark("ran")
        return "never asked"

    declared = rounds(serving(order, asks=(Elicit, Sample)), capabilities={"elicitation": {}})
    refused = await declared.begin("order")
    assert refused.code == -32021
    assert refused.error.data == {"requiredCapabilities": {"sampling": {}}}
    assert tally.marks == []
    assert (await rounds(serving(order), capabilities={}).begin("order")).text == "never asked"


async def test_elicit_url_waits_until_the_visit_has_done_its_work(rounds, tally):
    async def arrived() -> bool:
        return tally.mark("looked") >= 3

    async def order(ctx: Context) -> str:
        await ctx.elicit_url("Pay", "https://example.org/pay", until=arrived, every=0.001)
        place = await ctx.elicit("Where?", Place)
        return place.region

    done = await rounds(serving(order)).call("order", answers={"url": True, "place": EU})
    assert done.text == "eu"
    assert done.asked == ["url", "place"]
    assert done.rounds == 3  # the server looks while it holds the second one
    assert tally["looked"] == 3


async def test_without_until_consent_is_enough(rounds):
    async def order(ctx: Context) -> str:
        outcome = await ctx.outcome(ElicitUrl("Pay", "https://example.org/pay"))
        return outcome.status

    done = await rounds(serving(order)).call("order", answers={"url": Decline()})
    assert done.text == "declined"


@pytest.mark.parametrize(
    "url",
    ["https://evil.example\\@good.example/", "https://good.example@evil.example/", "file:///x"],
)
async def test_nobody_is_asked_to_visit_a_url_that_browsers_read_otherwise(rounds, url):
    async def order(ctx: Context) -> str:
        return str(await ctx.elicit_url("Pay", url))

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "ElicitUrl needs an absolute http(s) URL" in step.text


@pytest.mark.parametrize("answer", [EU, MISSING])
async def test_past_its_timeout_an_answer_is_expired(rounds, fake_clock, answer):
    async def order(ctx: Context) -> str:
        try:
            place = await ctx.elicit("Where?", Place, timeout=60)
        except Expired as late:
            return f"too late: {isinstance(late, Refused)}"
        return place.region

    world = rounds(serving(order))
    step = await world.begin("order")
    fake_clock.advance(59)
    step_again = await world.answer(step)
    assert step_again.waiting
    fake_clock.advance(2)
    done = await world.answer(step_again, {"place": answer} if answer is not MISSING else {})
    assert done.text == "too late: True"


async def test_a_native_handler_sees_what_has_expired(rounds, fake_clock):
    async def order(ctx: Context) -> str | InputRequired:
        outcome = ctx.answers.outcome("place", Place)
        if outcome.status == "missing":
            return InputRequired({"place": Elicit("Where?", Place, timeout=60)})
        return outcome.status

    world = rounds(serving(order))
    step = await world.begin("order")
    fake_clock.advance(61)
    assert (await world.answer(step)).text == "expired"


async def test_pauses_are_state_only_rounds_and_counted_apart(rounds, tally):
    async def order(ctx: Context) -> str:
        for leg in range(4):
            await ctx.memo(f"leg {leg} done", tally.mark, "leg")
            await ctx.pause()
        return (await ctx.elicit("Where?", Place)).region

    small = {"limits": Limits(rounds=1, pauses=4)}
    done = await rounds(serving(order, config=small)).call("order", answers={"place": EU})
    assert done.text == "eu"
    assert done.rounds == 6
    assert tally["leg"] == 4
    less = {"limits": Limits(rounds=1, pauses=3)}
    spent = await rounds(serving(order, config=less)).call("order", answers={"place": EU})
    assert spent.is_error
    assert "3 state-only rounds" in spent.text


async def test_text_that_could_hide_something_is_escaped(rounds):
    async def order(ctx: Context) -> str:
        await ctx.approve("Pay \u202eann\x1b[2J?", details={"to\u200b": "bob\x07"})
        return "done"

    step = await rounds(serving(order)).begin("order")
    message = step.asks["approve"].message
    assert not {"\u202e", "\x1b", "\u200b", "\x07"} & set(message)
    assert "\\u202e" in message


async def test_a_call_that_asks_too_often_or_too_much_is_told_so(rounds):
    async def order(ctx: Context) -> str:
        for number in range(3):
            await ctx.elicit(f"{number}?", Place)
        return "done"

    answers = {"place": EU, "place-2": EU, "place-3": EU}
    few = {"limits": Limits(rounds=2)}
    spent = await rounds(serving(order, config=few)).call("order", answers=answers)
    assert "2 question rounds" in spent.text

    async def many(ctx: Context) -> str:
        await ctx.gather(a=Elicit("a", Place), b=Elicit("b", Place), c=Elicit("c", Place))
        return "done"

    narrow = {"limits": Limits(asks_per_round=2)}
    step = await rounds(serving(many, config=narrow)).begin("many")
    assert "more than 2 asks in one round" in step.text


async def test_a_raw_answer_goes_over_the_wire_as_it_is(rounds):
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    raw = Raw({"action": "accept", "content": EU})
    assert (await rounds(serving(order)).call("order", answers={"place": raw})).text == "eu"
