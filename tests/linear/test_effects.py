"""Effects and memos: what happens once, what is computed once, and where values are kept."""

import asyncio
import functools
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Context,
    EffectFailed,
    Elicit,
    InputRequired,
    Limits,
    MemoryStore,
    NotDone,
    Principal,
    Server,
    ToolError,
)
from antiphon.testing import Crash, FakeClock, MortalStore, Process, Rounds
from tests.linear.one_tool_server import EU, US, Place, Plan, serving, texts

ANSWERS = {"place": EU, "plan": {"name": "big"}, "approve": True}
LEASE = 31


class Vm(BaseModel):
    name: str
    tags: set[str] = set()


@dataclass
class Price:
    amount: float


# --- a call is born in its first round ----------------------------------------------------------


async def test_effects_above_the_first_ask_are_not_protected_from_starting_over(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.once("create", tally.mark, "create")
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    await world.begin("order")
    done = await world.call("order", answers=ANSWERS)
    assert done.text == "eu"
    assert tally["create"] == 2


async def test_anchor_runs_the_first_effect_under_a_redeemed_token(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.once("create", tally.mark, "create")
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order, anchor=True))
    first = await world.begin("order")
    assert (first.waiting, first.asks, tally.marks) == (True, {}, [])
    second = await world.answer(first)
    assert (await world.replay(second)).token == second.token
    assert tally["create"] == 1
    done = await world.answer(second, ANSWERS)
    assert (done.text, done.rounds) == ("eu", 3)
    assert tally["create"] == 1


async def test_anchor_holds_for_effects_at_the_end_too(rounds, tally):
    async def order(ctx: Context) -> str:
        ctx.on_commit("tell", tally.mark, "tell")
        return "done"

    world = rounds(serving(order, anchor=True))
    first = await world.begin("order")
    assert (first.waiting, tally.marks) == (True, [])
    assert (await world.finish(first)).text == "done"
    assert tally.marks == ["tell"]


async def test_dice_and_ids_are_the_same_in_every_round_and_new_in_every_call(rounds):
    async def order(ctx: Context) -> list:
        drawn = [str(ctx.uuid()), str(ctx.uuid()), str(ctx.random()), ctx.call_id]
        await ctx.elicit("Where?", Place, details={"drawn": drawn})
        await ctx.elicit("What?", Plan)
        return drawn

    world = rounds(serving(order))
    first, second = [await world.call("order", answers=ANSWERS) for _ in range(2)]
    assert not first.is_error
    assert len(set(texts(first))) == 4
    assert 0 <= float(texts(first)[2]) < 1
    assert not set(texts(first)) & set(texts(second))


async def test_now_is_the_time_at_which_the_line_was_first_reached(rounds, fake_clock):
    async def order(ctx: Context) -> list:
        first = ctx.now()
        await ctx.elicit("Where?", Place)
        second = ctx.now()
        await ctx.elicit("What?", Plan)
        return [str(first.timestamp()), str(second.timestamp())]

    world = rounds(serving(order))
    start = fake_clock()
    step = await world.begin("order")
    fake_clock.advance(60)
    step = await world.answer(step, ANSWERS)
    fake_clock.advance(60)
    done = await world.answer(step, ANSWERS)
    assert texts(done) == [str(start), str(start + 60)]


# --- keys and arguments -------------------------------------------------------------------------


async def test_an_effect_happens_once_however_often_the_code_runs(rounds, tally):
    async def order(ctx: Context) -> str:
        vm = await ctx.once("create", create, "a1")
        await ctx.elicit("Where?", Place)
        await ctx.elicit("What?", Plan)
        return vm

    async def create(name: str) -> str:
        return f"{name}-{tally.mark('create')}"

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert (done.text, done.rounds) == ("a1-1", 3)
    assert tally["create"] == 1


async def test_one_key_twice_in_one_run_is_refused_before_it_happens(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.once("create", tally.mark, "first")
        await ctx.once("create", tally.mark, "second")
        return "never"

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "effect key 'create' is used twice" in step.text
    assert tally.marks == ["first"]


@pytest.mark.parametrize("change", ["function", "arguments"])
async def test_another_function_or_other_arguments_under_a_key_diverge(rounds, tally, change):
    def create(name: str) -> int:
        return tally.mark(name)

    def build(name: str) -> int:
        return tally.mark(name)

    async def order(ctx: Context) -> str:
        changed = ctx.round == 2
        fn = build if changed and change == "function" else create
        await ctx.once("create", fn, "b2" if changed and change == "arguments" else "a1")
        return (await ctx.elicit("Where?", Place)).region

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert done.is_error
    assert "'create'" in done.text
    assert "diverged" in done.text
    assert tally.marks == ["a1"]


async def test_the_ledger_compares_too_when_the_journal_does_not_know(rounds, tally):
    """A round that failed after its effect leaves it in the ledger only."""

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("create", tally.mark, f"vm {'b' if tally['try'] else 'a'}")
        if tally.mark("try") == 1:
            raise ZeroDivisionError
        return "done"

    world = rounds(serving(order))
    step = await world.begin("order")
    assert (await world.answer(step, ANSWERS)).is_error
    again = await world.answer(step, ANSWERS)
    assert again.is_error
    assert "new key" in again.text
    assert tally.counts == {"vm a": 1, "try": 1}


async def test_arguments_that_are_no_json_count_by_their_type_and_sets_by_content(rounds, tally):
    class Connection:
        pass

    async def order(ctx: Context) -> str:
        words = {"b", "a", "c"} if ctx.round == 1 else {"c", "a", "b"}
        await ctx.once("create", create, Connection(), words, Price(1.0))
        return (await ctx.elicit("Where?", Place)).region

    def create(connection: Connection, words: set, price: Price) -> int:
        return tally.mark("create")

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert done.text == "eu"
    assert tally["create"] == 1


async def test_a_method_of_something_unhashable_can_be_an_effect(rounds, tally):
    class Shop(BaseModel):
        name: str

        def open(self) -> str:
            tally.mark("open")
            return self.name

    async def order(ctx: Context) -> list:
        opened = await ctx.once("open", Shop(name="a").open)
        partly = await ctx.once("partly", functools.partial(tally.mark, "part"))
        await ctx.elicit("Where?", Place)
        return [opened, str(partly)]

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert texts(done) == ["a", "1"]


# --- after a crash ------------------------------------------------------------------------------


def crashing(world, process: Process):
    """A server of the world whose process may crash."""
    return world.make(store=MortalStore(world.store, process))


@pytest.mark.parametrize("point", range(1, 9))
async def test_a_second_try_sees_what_the_first_had_learned_before_its_effect(rounds, tally, point):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        price = await ctx.memo("price", tally.mark, "price")
        big = await ctx.memo("big", lambda: 2**80)
        await ctx.once("pay", pay, price, big)
        return f"pay {price}"

    async def pay(price: int, big: int) -> None:
        tally.mark(f"pay {price}")

    world = rounds(serving(order))
    step = await world.begin("order")
    with suppress(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, Process(crash_at=point)))
    world.clock.advance(LEASE)
    done = await world.answer(step, ANSWERS)
    paid = [mark for mark in tally.marks if mark.startswith("pay")]
    if point in (4, 5):  # after the claim of the effect and before its end was known
        assert "was started and its end is not known" in done.text
        assert len(paid) == point - 4
    else:
        assert paid == [done.text]


async def test_a_time_that_was_spent_is_the_same_in_the_second_try(rounds, tally, fake_clock):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        seen = ctx.now().timestamp()
        await ctx.once("pay", tally.mark, f"paid at {seen}")
        if tally.mark("try") == 1:
            raise ZeroDivisionError
        return str(seen)

    world = rounds(serving(order))
    start = fake_clock()
    step = await world.begin("order")
    assert (await world.answer(step, ANSWERS)).is_error
    fake_clock.advance(60)
    done = await world.answer(step, ANSWERS)
    assert done.text == str(start)
    assert tally[f"paid at {start}"] == 1


async def test_an_answer_that_came_in_time_is_not_late_in_the_second_try(rounds, tally, fake_clock):
    async def order(ctx: Context) -> str:
        outcome = await ctx.outcome(Elicit("Where?", Place, timeout=60))
        await ctx.once("pay", tally.mark, "pay")
        if tally.mark("try") == 1:
            raise ZeroDivisionError
        return outcome.status

    world = rounds(serving(order))
    step = await world.begin("order")
    assert (await world.answer(step, ANSWERS)).is_error
    fake_clock.advance(61)
    assert (await world.answer(step, ANSWERS)).text == "accepted"
    assert tally["pay"] == 1


# --- results ------------------------------------------------------------------------------------


async def test_what_the_first_run_returns_equals_what_a_replay_returns(rounds, tally):
    async def vm() -> Vm:
        return Vm(name="a", tags={"x"})

    def price() -> Price:
        return Price(2.5)

    def plain():
        return {"when": timedelta(seconds=90), 3: (1, 2)}

    async def order(ctx: Context) -> str:
        got = [
            await ctx.once("vm", vm),
            await ctx.once("price", price),
            await ctx.once("plain", plain),
            await ctx.once("typed", plain_vm, returns=Vm),
            await ctx.once("vms", vms),
            await ctx.memo("memo vm", vm),
            await ctx.memo("memo price", price),
            await ctx.once("large", lambda: 2**90),
        ]
        tally.mark(repr(got))
        await ctx.elicit("Where?", Place)
        return repr(got)

    def plain_vm():
        return {"name": "b"}

    def vms() -> list[Vm]:
        return [Vm(name="c")]

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    first, second = tally.marks
    assert first == second == done.text
    assert "Vm(name='a', tags={'x'})" in first
    assert "Price(amount=2.5)" in first
    assert "Vm(name='b'" in first
    assert str(2**90) in first


async def test_a_result_that_is_no_json_is_a_failure_that_names_the_effect(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.once("connect", connect)
        return "never"

    def connect():
        tally.mark("connect")
        return object()

    world = rounds(serving(order, config={"expose_errors": True}))
    step = await world.begin("order")
    assert step.is_error
    assert "effect 'connect'" in step.text
    assert "cannot be kept as JSON" in step.text


# --- failures -----------------------------------------------------------------------------------


async def test_a_failure_is_raised_in_every_run_and_its_text_is_not_for_the_client(rounds, tally):
    async def order(ctx: Context) -> str:
        try:
            await ctx.once("pay", pay)
        except EffectFailed as error:
            seen = error.error
        await ctx.elicit("Where?", Place)
        return seen

    async def unhandled(ctx: Context) -> str:
        await ctx.once("pay", pay)
        return "never"

    def pay() -> None:
        tally.mark("pay")
        raise OSError("password=hunter2")

    world = rounds(serving(order, unhandled))
    done = await world.call("order", answers=ANSWERS)
    assert done.text == "OSError: password=hunter2"
    assert tally["pay"] == 1
    told = await world.begin("unhandled")
    assert told.is_error
    assert "effect 'pay' failed" in told.text
    assert "hunter2" not in told.text


async def test_a_tool_error_of_an_effect_is_the_authors_word(rounds):
    async def order(ctx: Context) -> str:
        await ctx.once("pay", pay)
        return "never"

    def pay() -> None:
        raise ToolError("The card was refused.")

    step = await rounds(serving(order)).begin("order")
    assert (step.is_error, step.text) == (True, "effect 'pay' failed: The card was refused.")


async def test_not_done_frees_the_claim(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("pay", pay)
        return "paid"

    def pay() -> None:
        if tally.mark("pay") < 3:
            raise NotDone("the bank is closed")

    world = rounds(serving(order))
    step = await world.begin("order")
    for _ in range(2):
        closed = await world.answer(step, ANSWERS)
        assert (closed.is_error, closed.text) == (True, "the bank is closed")
    assert (await world.answer(step, ANSWERS)).text == "paid"
    assert tally["pay"] == 3


async def test_retry_calls_again_with_the_same_idempotency_key(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay, retry=True)

    def pay(idempotency_key: str) -> str:
        if tally.mark(f"pay {idempotency_key}") == 1:
            raise ConnectionError
        return "paid"

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert done.text == "paid"
    assert list(tally.counts.values()) == [2]


async def test_a_crashed_effect_with_retry_is_called_again(rounds, tally):
    process = Process()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", pay, retry=True)

    async def pay(idempotency_key: str) -> str:
        if tally.mark(f"pay {idempotency_key}") == 1:
            process.alive = False
        return "paid"

    world = rounds(serving(order))
    step = await world.begin("order")
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, process))
    world.clock.advance(LEASE)
    assert (await world.answer(step, ANSWERS)).text == "paid"
    assert list(tally.counts.values()) == [2]


# --- no context call inside an effect -----------------------------------------------------------


@pytest.mark.parametrize("place", ["async", "thread", "child", "memo", "until"])
async def test_no_context_call_inside_an_effect_or_memo(rounds, tally, place):
    async def order(ctx: Context) -> str:
        async def inside() -> None:
            await ctx.memo("inner", tally.mark, "inner")

        async def in_child() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(inside())

        def in_thread() -> None:
            ctx.now()

        if place == "memo":
            await ctx.memo("outer", inside)
        elif place == "until":
            await ctx.elicit_url("Go", "https://example.org/", until=inside)
        else:
            fn = {"async": inside, "thread": in_thread, "child": in_child}[place]
            await ctx.once("outer", fn)
        return "never"

    world = rounds(serving(order, config={"expose_errors": True}))
    done = await world.call("order", answers={"url": True})
    assert done.is_error
    key = "url" if place == "until" else "outer"
    assert f"inside the effect or memo '{key}'" in done.text
    assert tally.marks == []


async def test_an_effect_may_call_another_server(rounds, tally):
    from antiphon.testing import Rounds

    async def inner(ctx: Context) -> str:
        return str(await ctx.once("inner", tally.mark, "inner"))

    async def call_inner() -> str:
        return (await Rounds(serving(inner)).call("inner")).text

    async def outer(ctx: Context) -> str:
        return await ctx.once("outer", call_inner)

    assert (await rounds(serving(outer)).call("outer")).text == "1"


# --- once for the same arguments ----------------------------------------------------------------


async def pays_once_an_hour(ctx: Context, who: str) -> str:
    number = await ctx.once("pay", PAY[0], who, scope="arguments", window=3600)
    return f"{number} {ctx.reused('pay')}"


PAY = [lambda who: 0]
ANN = Principal(issuer="i", subject="ann")
BOB = Principal(issuer="i", subject="bob")


@pytest.fixture
def paying(tally):
    PAY[0] = lambda who: tally.mark(f"pay {who}")
    yield pays_once_an_hour
    PAY[0] = lambda who: 0


async def test_the_same_arguments_are_paid_once_within_the_window(
    rounds, tally, fake_clock, paying
):
    world = rounds(serving(paying), principal=ANN)
    name = paying.__name__
    assert (await world.call(name, {"who": "x"})).text == "1 False"
    fake_clock.advance(3599)
    assert (await world.call(name, {"who": "x"})).text == "1 True"
    assert (await world.call(name, {"who": "y"})).text == "1 False"
    assert (await world.call(name, {"who": "x"}, principal=BOB)).text == "2 False"
    fake_clock.advance(2)
    assert (await world.call(name, {"who": "x"})).text == "3 False"


async def test_the_window_outlives_the_call(rounds, fake_clock, paying):
    config = {"limits": Limits(call=timedelta(minutes=5))}
    world = rounds(serving(paying, config=config), principal=ANN)
    assert (await world.call(paying.__name__, {"who": "x"})).text == "1 False"
    fake_clock.advance(1800)
    assert (await world.call(paying.__name__, {"who": "x"})).text == "1 True"


async def test_a_shared_effect_that_was_refused_is_tried_again_by_the_next_call(rounds, tally):
    def pay() -> str:
        if tally.mark("paid") == 1:
            raise ToolError("for a moment")
        return "paid"

    async def order(ctx: Context) -> str:
        try:
            return await ctx.once("pay", pay, scope="arguments", window=86_400, scope_key="ada")
        except EffectFailed:
            await ctx.elicit("It failed. Where?", Place)
            return "failed in every round of its own call"

    world = rounds(serving(order))
    first = await world.call("order", answers={"place": EU})
    assert first.text == "failed in every round of its own call"
    assert [(await world.begin("order")).text for _ in range(2)] == ["paid", "paid"]
    assert tally["paid"] == 2


async def test_strangers_and_missing_windows_are_refused(rounds, tally, paying):
    async def endless(ctx: Context) -> str:
        await ctx.once("pay", tally.mark, "pay", scope="arguments")
        return "never"

    async def keyed(ctx: Context) -> str:
        await ctx.once("pay", tally.mark, "pay", scope="arguments", window=9, scope_key="me")
        return "paid"

    world = rounds(serving(paying, endless, keyed), principal=Principal(transport="http"))
    assert "scope_key=" in (await world.call(paying.__name__, {"who": "x"})).text
    assert "window=" in (await world.call("endless")).text
    assert (await world.call("keyed")).text == "paid"
    assert tally.marks == ["pay"]


# --- on_commit ----------------------------------------------------------------------------------


async def test_on_commit_runs_after_the_handler_and_only_when_it_succeeded(rounds, tally):
    async def order(ctx: Context, fail: bool) -> str:
        ctx.on_commit("tell", tally.mark, "told")
        await ctx.on_commit("log", tally.mark, "logged")
        await ctx.elicit("Where?", Place)
        if fail:
            raise ToolError("no")
        tally.mark("returned")
        return "done"

    world = rounds(serving(order))
    assert (await world.call("order", {"fail": True}, answers=ANSWERS)).is_error
    assert tally.marks == []
    step = await world.begin("order", {"fail": False})
    done = await world.answer(step, ANSWERS)
    assert (await world.replay(done)).text == "done"
    assert tally.marks == ["returned", "told", "logged"]


async def test_after_a_crash_the_commits_that_happened_are_not_repeated(rounds, tally):
    async def order(ctx: Context) -> str:
        ctx.on_commit("first", tally.mark, "first")
        ctx.on_commit("second", tally.mark, "second")
        await ctx.elicit("Where?", Place)
        return "done"

    world = rounds(serving(order))
    step = await world.begin("order")
    process = Process(crash_at=7)  # claim 2, begin 2, settle 2, then the second begin
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, process))
    assert tally.marks == ["first"]
    world.clock.advance(LEASE)
    assert (await world.answer(step, ANSWERS)).text == "done"
    assert tally.marks == ["first", "second"]


async def test_a_commit_that_fails_is_not_tried_again(rounds, tally):
    def tell() -> None:
        tally.mark("tried")
        raise ConnectionError

    async def order(ctx: Context) -> str:
        ctx.on_commit("tell", tell)
        return "never"

    assert (await rounds(serving(order)).begin("order")).is_error
    assert tally.marks == ["tried"]


async def test_a_commit_key_is_used_once(rounds, tally):
    async def order(ctx: Context) -> str:
        ctx.on_commit("tell", tally.mark, "told")
        ctx.on_commit("tell", tally.mark, "told")
        return "never"

    step = await rounds(serving(order)).begin("order")
    assert "'tell' is used twice" in step.text
    assert tally.marks == []


# --- uncertain effects --------------------------------------------------------------------------


async def test_an_uncertain_effect_is_named_and_an_operator_settles_it(rounds, tally):
    process = Process()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("pay", pay))

    async def pay() -> int:
        number = tally.mark("pay")
        if process.alive:
            process.alive = False
            process.point()
        return number

    world = rounds(serving(order))
    step = await world.begin("order")
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, process))
    world.clock.advance(LEASE)
    uncertain = await world.answer(step, ANSWERS)
    [row] = await world.store.calls()
    assert f"effect 'pay' of call {row.call}" in uncertain.text
    assert "antiphon" not in uncertain.text, "the text is for the model"
    [effect] = await world.store.effects(row.call)
    assert (effect.key, effect.state) == ("pay", "uncertain")
    assert await world.store.settle_uncertain(row.call, "pay", result=b"41")
    assert (await world.answer(step, ANSWERS)).text == "41"
    assert tally["pay"] == 1


async def test_the_command_that_settles_an_effect_can_be_given_to_a_shell(rounds, caplog):
    process = Process()

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay; the 'rest'", pay)

    async def pay() -> str:
        process.alive = False
        process.point()
        return "paid"

    world = rounds(serving(order))
    step = await world.begin("order")
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, process))
    world.clock.advance(LEASE)
    await world.answer(step, ANSWERS)
    [row] = await world.store.calls()
    _, _, command = caplog.messages[-1].partition("ettle")[2].partition("it: ")
    words = shlex.split(command.partition(" | ")[0])
    assert words[:5] == ["antiphon", "calls", "settle", "STORE", row.call]
    assert words[5:] == ["pay; the 'rest'", "--done", "RESULT"]


async def test_an_operator_says_that_it_was_not_done(rounds, tally):
    process = Process(crash_at=4)  # after the claim of the effect, before its body

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("pay", tally.mark, "pay"))

    world = rounds(serving(order))
    step = await world.begin("order")
    with pytest.raises(Crash):
        await world.answer(step, ANSWERS, server=crashing(world, process))
    world.clock.advance(LEASE)
    assert "end is not known" in (await world.answer(step, ANSWERS)).text
    [row] = await world.store.calls()
    assert await world.store.settle_uncertain(row.call, "pay", result=None)
    assert (await world.answer(step, ANSWERS)).text == "1"


# --- progress and logs while replaying ----------------------------------------------------------


async def test_report_and_log_are_silent_while_replaying(rounds):
    async def order(ctx: Context) -> str:
        await ctx.report(1, 3)
        await ctx.log("begun")
        await ctx.elicit("Where?", Place)
        await ctx.report(2, 3)
        await ctx.log("placed", level="warning")
        await ctx.elicit("What?", Plan)
        await ctx.report(3, 3)
        return "done"

    done = await rounds(serving(order)).call(
        "order", answers=ANSWERS, progress=True, log_level="info"
    )
    told = [[p.get("progress", p.get("data")) for _, p in step.notices] for step in done.trail]
    assert told == [[1, "begun"], [2, "placed"], [3]]


# --- memos --------------------------------------------------------------------------------------


async def test_a_memo_is_computed_once_per_call(rounds, tally):
    async def order(ctx: Context) -> str:
        price = await ctx.memo("price", tally.mark, "price")
        await ctx.elicit(f"Buy for {price}?", Place)
        return str(price)

    world = rounds(serving(order))
    assert (await world.call("order", answers=ANSWERS)).text == "1"
    assert (await world.call("order", answers=ANSWERS)).text == "2"


async def test_a_memo_that_fails_is_tried_again_and_hides_its_reason(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.memo("price", price))

    def price() -> int:
        if tally.mark("price") == 1:
            raise ValueError("token=hunter2")
        return 5

    world = rounds(serving(order))
    step = await world.begin("order")
    failed = await world.answer(step, ANSWERS)
    assert failed.is_error
    assert "hunter2" not in failed.text
    assert (await world.answer(step, ANSWERS)).text == "5"


# --- S6: size and secrets -----------------------------------------------------------------------


def large(letter: str = "x") -> str:
    return letter * 40_000


async def test_without_a_store_a_large_journal_names_its_largest_entries(rounds, tally):
    async def order(ctx: Context) -> str:
        await ctx.memo("photo", large)
        await ctx.once("pay", tally.mark, "pay")
        return (await ctx.elicit("Where?", Place)).region

    def make(**world):
        world.pop("store")
        return serving(order)(**world)

    step = await rounds(make).begin("order")
    assert step.is_error
    assert "memo photo (40," in step.text
    assert tally.marks == []


async def test_with_a_store_a_large_journal_becomes_a_segment(rounds, tally):
    async def order(ctx: Context) -> str:
        photo = await ctx.memo("photo", large)
        again = await ctx.memo("other photo", large, "y")
        await ctx.once("pay", tally.mark, "pay")
        await ctx.elicit("Where?", Place)
        await ctx.elicit("What?", Plan)
        return f"{len(photo)} {len(again)}"

    world = rounds(serving(order))
    step = await world.begin("order")
    assert len(step.token) < 2_000
    done = await world.finish(step, ANSWERS)
    assert done.text == "40000 40000"
    assert tally["pay"] == 1


async def test_a_segment_that_is_gone_or_changed_is_a_refusal(rounds):
    async def order(ctx: Context) -> str:
        await ctx.memo("photo", large)
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    step = await world.begin("order")
    store = world.store
    assert isinstance(store, MemoryStore)
    [place] = store._segments
    store._segments[place].data += b"x"
    refused = await world.answer(step, ANSWERS)
    assert refused.code == -32602
    store._segments.clear()
    assert (await world.answer(step, ANSWERS)).text == refused.text


async def test_secret_values_are_kept_in_the_store_only(rounds):
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place, secret=True)
        pin = await ctx.memo("pin", lambda: "sentinel-pin", secret=True)
        await ctx.elicit("What?", Plan)
        return f"{place.region} {pin}"

    world = rounds(serving(order))
    first = await world.begin("order")
    second = await world.answer(first, {"place": {"region": "sentinel-place"}})
    sealer = world.make()._services.sealer
    claims = await sealer.inspect(second.token)
    assert claims.journal is None
    assert claims.handle is not None
    assert (await world.answer(second, ANSWERS)).text == "sentinel-place sentinel-pin"


@pytest.mark.parametrize("what", ["ask", "memo", "native"])
async def test_a_secret_without_a_store_is_refused_where_it_is_asked_for(rounds, tally, what):
    async def order(ctx: Context) -> str | InputRequired:
        if what == "native":
            return InputRequired({"place": Elicit("Where?", Place, secret=True)})
        if what == "memo":
            return str(await ctx.memo("place", tally.mark, "computed", secret=True))
        return (await ctx.elicit("Where?", Place, secret=True)).region

    def make(**world):
        world.pop("store")
        return serving(order)(**world)

    step = await rounds(make).begin("order")
    assert step.is_error
    assert "'place' is secret=True" in step.text
    assert "Server(store=...)" in step.text
    assert tally.marks == []


# --- versions -----------------------------------------------------------------------------------


async def versioned(ctx: Context) -> str:
    place = await ctx.elicit("Where?", Place)
    made = await ctx.once("create", CREATE[0], retry=CREATE[1])
    plan = await ctx.elicit("What?", Plan)
    return f"{place.region} {made} {plan.name}"


CREATE: list = [None, True]


@pytest.fixture
def creating(tally):
    CREATE[:] = [lambda: tally.mark("create"), True]
    yield CREATE
    CREATE[:] = [None, True]


def release(version: str, **options):
    return serving(versioned, version=version, **options)


async def test_another_version_refuses_running_calls_and_names_both(rounds, creating):
    world = rounds(release("1"))
    step = await world.begin("versioned")
    await world.deploy(release("2"))
    refused = await world.answer(step, ANSWERS)
    assert refused.is_error
    assert "version '1'" in refused.text
    assert "version '2'" in refused.text
    await world.deploy(release("1"))
    assert (await world.finish(step, ANSWERS)).text == "eu 1 big"


async def test_a_duplicate_gets_what_the_other_version_recorded(rounds, creating):
    world = rounds(release("1"))
    step = await world.answer(await world.begin("versioned"), ANSWERS)
    done = await world.answer(step, ANSWERS)
    for how in ("refuse", "restart"):
        await world.deploy(release("2", on_version_change=how))
        assert (await world.replay(done)).result == done.result


async def test_restart_drops_answers_and_keeps_effects(rounds, tally, creating):
    world = rounds(release("1"))
    step = await world.answer(await world.begin("versioned"), ANSWERS)
    assert (list(step.asks), tally["create"]) == (["plan"], 1)
    await world.deploy(release("2", on_version_change="restart"))
    again = await world.answer(step, ANSWERS)
    assert list(again.asks) == ["place"]
    done = await world.finish(again, {"place": US, "plan": {"name": "small"}})
    assert done.text == "us 1 small"
    assert tally["create"] == 1


async def test_restart_works_for_journals_in_the_store_too(rounds, tally, creating):
    def roomy(version, **options):
        return serving(
            versioned, config={"limits": Limits(state_bytes=1)}, version=version, **options
        )

    world = rounds(roomy("1"))
    step = await world.answer(await world.begin("versioned"), ANSWERS)
    await world.deploy(roomy("2", on_version_change="restart"))
    again = await world.answer(step, ANSWERS)
    assert list(again.asks) == ["place"]
    assert (await world.finish(again, ANSWERS)).text == "eu 1 big"


async def test_restart_is_refused_after_an_effect_that_cannot_be_retried(rounds, tally, creating):
    CREATE[1] = False
    world = rounds(release("1"))
    step = await world.answer(await world.begin("versioned"), ANSWERS)
    await world.deploy(release("2", on_version_change="restart"))
    refused = await world.answer(step, ANSWERS)
    assert refused.is_error
    assert "retry=True" in refused.text
    assert tally["create"] == 1


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_the_words_of_a_failure_are_sealed_at_rest(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def make(**kit: Any) -> Server:
        server = Server("s", **kit)

        def fail() -> None:
            raise ValueError("SENTINEL-WORDS")

        @server.tool
        async def act(ctx: Context) -> str:
            try:
                await ctx.once("act", fail)
            except EffectFailed as failed:
                return failed.error
            return "done"

        return server

    async with Rounds(make, store=f"sqlite:///{path}", clock=FakeClock(time.time())) as world:
        done = await world.call("act", {})
    assert done.text == "ValueError: SENTINEL-WORDS"
    kept = everything_in(tmp_path)
    assert b"ValueError" not in kept
    assert b"SENTINEL" not in kept


async def test_the_most_patient_ask_of_a_round_sets_the_life_of_its_token() -> None:
    def make(**kit: Any) -> Server:
        server = Server("s", **kit)

        @server.tool
        async def ask(ctx: Context) -> str:
            got = await ctx.gather(
                quick=Elicit("Quick?", Name, ttl=5), usual=Elicit("Usual?", Name)
            )
            return f"{got['quick'].name} {got['usual'].name}"

        return server

    async with Rounds(make) as world:
        step = await world.begin("ask", {})
        world.clock.advance(60)
        done = await world.answer(step, {"quick": {"name": "a"}, "usual": {"name": "b"}})
    assert done.text == "a b"


class Name(BaseModel):
    name: str
