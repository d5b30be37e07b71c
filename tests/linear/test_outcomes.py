"""What a handler saw comes back the same in every round, whatever it does with it or was it."""

import asyncio
import gc
from functools import partial
from typing import Annotated, Any

import anyio
import pytest
import uvloop
from pydantic import AfterValidator

from antiphon import (
    Context,
    Declined,
    EffectUncertain,
    Elicit,
    ElicitUrl,
    InputRequired,
    MemoryStore,
    NotDone,
    ToolError,
)
from antiphon.errors import MemoFailed
from antiphon.testing import Rounds
from antiphon.testing.doubles import Crash, MortalStore, Process
from tests.linear.one_tool_server import EU, Place, Plan, serving

LEASE = 31
TAGS = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
    "required": ["tags"],
}


# --- values belong to whoever reads them ---------------------------------------------------------


async def test_changing_what_a_memo_or_an_effect_returned_changes_no_later_round(rounds, tally):
    def basket():
        return {"items": [100]}

    async def order(ctx: Context) -> str:
        memo = await ctx.memo("basket", basket)
        effect = await ctx.once("reserve", basket)
        memo["items"].append(19)
        effect["items"].append(19)
        tally.mark(str((memo, effect)))
        await ctx.elicit("Where?", Place)
        await ctx.elicit("What?", Plan)
        return f"{sum(memo['items'])} {sum(effect['items'])}"

    answers = {"place": EU, "plan": {"name": "x"}}
    done = await rounds(serving(order)).call("order", answers=answers)
    assert done.text == "119 119"
    assert len(set(tally.marks)) == 1


async def test_changing_an_answer_does_not_change_what_the_person_said(rounds):
    async def order(ctx: Context) -> str:
        first = await ctx.elicit("Which?", TAGS, key="tags")
        first["tags"].append("b")
        await ctx.elicit("Where?", Place)
        await ctx.elicit("What?", Plan)
        return str(first["tags"])

    answers = {"tags": {"tags": ["a"]}, "place": EU, "plan": {"name": "x"}}
    assert (await rounds(serving(order)).call("order", answers=answers)).text == "['a', 'b']"


async def test_a_native_handler_reads_answers_and_state_that_it_changed_before_as_they_were(rounds):
    async def order(ctx: Context) -> Any:
        if "tags" not in ctx.answers:
            return InputRequired({"tags": Elicit("Which?", TAGS)}, state={"seen": []})
        ctx.answers.get("tags")["tags"].append("b")
        ctx.state["seen"].append("changed")
        if "place" not in ctx.answers:
            return InputRequired({"place": Elicit("Where?", Place)}, state=ctx.state)
        return f"{ctx.answers.get('tags')} {ctx.state}"

    done = await rounds(serving(order)).call(
        "order", answers={"tags": {"tags": ["a"]}, "place": EU}
    )
    assert done.text == "{'tags': ['a']} {'seen': []}"


async def test_the_url_of_a_visit_is_known_wherever_its_answer_is_read(rounds):
    pay = ElicitUrl("Pay", "https://example.org/pay")

    async def asked(ctx: Context) -> str:
        gathered = await ctx.gather(pay=pay)
        outcome = await ctx.outcome(ElicitUrl("Sign", "https://example.org/sign"), key="sign")
        return f"{gathered['pay'].url} {outcome.unwrap().url}"

    async def native(ctx: Context) -> Any:
        answer = ctx.answers.get("pay")
        return answer.url if answer is not None else InputRequired({"pay": pay})

    world = rounds(serving(asked, native))
    done = await world.call("asked", answers={"pay": True, "sign": True})
    assert done.text == "https://example.org/pay https://example.org/sign"
    assert (await world.call("native", answers={"pay": True})).text == "https://example.org/pay"


# --- errors that are handled ---------------------------------------------------------------------


class CardDeclined(NotDone):
    pass


class Odd(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


async def test_a_handler_that_catches_the_error_of_a_memo_may_ask_and_go_on(rounds, tally):
    def price() -> int:
        tally.mark("looked up")
        raise ConnectionError("price service is down")

    async def order(ctx: Context) -> str:
        try:
            return str(await ctx.memo("price", price))
        except ConnectionError as error:
            plan = await ctx.elicit("The price service is down. What?", Plan)
            return f"{plan.name} after {error}"

    done = await rounds(serving(order)).call("order", answers={"plan": {"name": "five"}})
    assert done.text == "five after price service is down"
    assert tally.marks == ["looked up"]


async def test_an_error_of_a_memo_that_cannot_be_made_again_has_one_type_in_every_round(rounds):
    def price() -> int:
        raise Odd(code=7)

    async def order(ctx: Context) -> str:
        try:
            return str(await ctx.memo("price", price))
        except MemoFailed as error:
            await ctx.elicit("What?", Plan)
            return error.error

    done = await rounds(serving(order)).call("order", answers={"plan": {"name": "x"}})
    assert done.text == "Odd: code 7"


async def test_a_handler_may_ask_after_not_done_and_meets_it_again_in_every_round(rounds, tally):
    def charge(card: str) -> str:
        tally.mark(card)
        if card == "visa":
            raise CardDeclined("visa was declined")
        return f"paid by {card}"

    async def order(ctx: Context) -> str:
        try:
            return await ctx.once("charge", charge, "visa")
        except CardDeclined as error:
            plan = await ctx.elicit("Another card?", Plan)
            return f"{error}; {await ctx.once('charge again', charge, plan.name)}"

    done = await rounds(serving(order)).call("order", answers={"plan": {"name": "amex"}})
    assert done.text == "visa was declined; paid by amex"
    assert tally.marks == ["visa", "amex"]


async def test_an_effect_that_was_not_done_may_be_tried_again_under_its_key(rounds, tally):
    def charge() -> str:
        if tally.mark("charge") < 3:
            raise NotDone("try again")
        return "paid"

    async def order(ctx: Context) -> str:
        failures = 0
        while True:
            try:
                paid = await ctx.once("charge", charge)
                break
            except NotDone:
                failures += 1
        await ctx.elicit("Where?", Place)
        return f"{paid} after {failures}"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "paid after 2"
    assert tally["charge"] == 3


async def test_a_handler_may_ask_about_an_uncertain_effect(rounds, tally):
    process = Process()

    def charge() -> str:
        tally.mark("charge")
        process.alive = False
        return "paid"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        try:
            return await ctx.once("charge", charge)
        except EffectUncertain:
            plan = await ctx.elicit("Did it arrive?", Plan)
            return f"the person says {plan.name}"

    world = rounds(serving(order))
    step = await world.begin("order")
    server = world.make(store=MortalStore(world.store, process))
    with pytest.raises(Crash):
        await world.answer(step, {"place": EU}, server=server)
    world.clock.advance(LEASE)
    step = await world.answer(step, {"place": EU})
    assert step.asked == ["place", "plan"]
    assert (await world.answer(step, {"plan": {"name": "yes"}})).text == "the person says yes"
    assert tally["charge"] == 1


@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_timeout_around_an_effect_or_memo_fires_again_in_every_round(rounds, tally, what):
    async def slow() -> str:
        tally.mark("began")
        await asyncio.sleep(0.05)
        return "in time"

    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.01):
                return await getattr(ctx, what)("slow", slow)
        except TimeoutError:
            await ctx.elicit("It takes long. Where?", Place)
            return "went on without it"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "went on without it"
    assert tally["began"] == 1


# --- verify --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "text", "charges"),
    [
        ("happened", "paid before", 1),
        ("not done", "paid", 2),
        ("unknown", "its end is not known", 1),
    ],
)
async def test_verify_is_asked_before_an_effect_is_uncertain(rounds, tally, look, text, charges):
    process = Process()

    def charge(amount: int) -> str:
        if tally.mark("charge") == 1:
            process.alive = False
        return "paid"

    async def verify(amount: int, idempotency_key: str) -> str:
        assert amount == 5
        assert len(idempotency_key) == 32
        if look == "not done":
            raise NotDone
        if look == "unknown":
            raise ConnectionError
        return "paid before"

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("charge", charge, 5, verify=verify)

    world = rounds(serving(order))
    step = await world.begin("order")
    server = world.make(store=MortalStore(world.store, process))
    with pytest.raises(Crash):
        await world.answer(step, {"place": EU}, server=server)
    world.clock.advance(LEASE)
    assert text in (await world.answer(step, {"place": EU})).text
    assert tally["charge"] == charges


@pytest.mark.parametrize("exit_", [asyncio.CancelledError(), SystemExit(2), ZeroDivisionError()])
async def test_a_verify_that_fails_leaves_the_effect_uncertain_and_says_why(rounds, caplog, exit_):
    process = Process()

    def charge() -> str:
        process.alive = False
        return "paid"

    async def look() -> str:
        raise exit_

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("charge", charge, verify=look)

    world = rounds(serving(order))
    step = await world.begin("order")
    server = world.make(store=MortalStore(world.store, process))
    with pytest.raises(Crash):
        await world.answer(step, {"place": EU}, server=server)
    world.clock.advance(LEASE)
    for _ in range(7):  # more than the tries of a round
        assert "its end is not known" in (await world.answer(step, {"place": EU})).text
    assert "verify of effect 'charge' of tool:order could not tell" in caplog.text
    assert type(exit_).__name__ in caplog.text


# --- the end of an execution ---------------------------------------------------------------------


async def test_a_swallowed_divergence_decides_the_call(rounds):
    async def order(ctx: Context) -> str:
        try:
            await ctx.once("charge", lambda amount: amount, 100 + ctx.round)
        except Exception:
            return "nothing was paid"
        await ctx.elicit("Where?", Place)
        return "paid"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.is_error
    assert "diverged" in done.text


@pytest.mark.parametrize("kind", ["ask", "effect"])
async def test_a_rerun_that_returns_before_what_was_recorded_has_diverged(rounds, kind):
    async def order(ctx: Context) -> str:
        if ctx.round == 2:
            return "sold out, nothing was charged"
        if kind == "effect":
            await ctx.once("charge", lambda: 100)
        await ctx.elicit("Where?", Place)
        return "paid"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.is_error
    assert "the end of the handler" in done.text


async def test_a_rerun_that_returns_its_asks_before_what_was_recorded_has_diverged(rounds):
    async def order(ctx: Context) -> Any:
        if ctx.round == 2:
            return InputRequired({"plan": Elicit("What?", Plan)})
        await ctx.once("charge", lambda: 100)
        await ctx.elicit("Where?", Place)
        return "paid"

    world = rounds(serving(order))
    done = await world.answer(await world.begin("order"), {"place": EU})
    assert done.is_error
    assert "the end of the handler" in done.text


REFUSALS = {
    "tool error": lambda: ToolError("sold out, nothing was charged"),
    "refusal": lambda: Declined("place"),
    "timeout": lambda: ToolError("too slow, nothing was charged"),
}


@pytest.mark.parametrize("raised", REFUSALS)
@pytest.mark.parametrize("kind", ["ask", "effect"])
async def test_a_rerun_that_raises_before_what_was_recorded_has_diverged(rounds, kind, raised):
    async def order(ctx: Context) -> str:
        if ctx.round == 2 and raised == "timeout":
            try:
                async with asyncio.timeout(0):
                    await asyncio.sleep(10)
            except TimeoutError:
                raise REFUSALS[raised]() from None
        if ctx.round == 2:
            raise REFUSALS[raised]()
        if kind == "effect":
            await ctx.once("charge", lambda: 100)
        await ctx.elicit("Where?", Place)
        return "paid"

    world = rounds(serving(order))
    step = await world.begin("order")
    done = await world.answer(step, {"place": EU})
    assert done.is_error
    assert "diverged" in done.text
    assert "the end of the handler" in done.text


async def test_an_error_raised_after_what_was_recorded_is_the_authors_word(rounds):
    async def order(ctx: Context) -> str:
        await ctx.once("reserve", lambda: 100)
        await ctx.elicit("Where?", Place)
        raise ToolError("sold out")

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "sold out"


async def test_an_error_of_chance_in_a_rerun_is_no_divergence(rounds):
    failing = [True]

    async def order(ctx: Context) -> str:
        if ctx.round == 2 and failing.pop():
            failing.append(False)
            raise ConnectionError("no route")
        await ctx.elicit("Where?", Place)
        return "paid"

    world = rounds(serving(order))
    step = await world.begin("order")
    assert "an unexpected error" in (await world.answer(step, {"place": EU})).text
    assert (await world.answer(step, {"place": EU})).text == "paid"


@pytest.mark.parametrize("how", ["group", "handled", "gather"])
async def test_an_error_of_a_branch_ends_slower_branches_and_is_no_divergence(rounds, how):
    async def order(ctx: Context) -> str:
        async def slow() -> None:
            if ctx.round == 2:
                await asyncio.sleep(30)
            await ctx.elicit("A?", Place, key="a")

        async def quick() -> None:
            if (await ctx.elicit("B?", Place, key="b")).region == "eu":
                raise ToolError("not in the EU")

        if how == "gather":
            await asyncio.gather(slow(), quick())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(quick())
                await slow()  # in the handler's own task
        except* ToolError:
            if how == "handled":
                raise ToolError("not in the EU") from None
            raise
        return "ended"

    done = await rounds(serving(order, settle=0.01)).call("order", answers={"a": EU, "b": EU})
    assert done.is_error
    assert done.text == "not in the EU"


async def test_a_branch_that_is_slower_than_before_is_no_divergence(rounds):
    async def order(ctx: Context) -> str:
        async def first() -> str:
            if ctx.round == 2:
                await asyncio.sleep(0.2)
            return (await ctx.elicit("A?", Place, key="a")).region

        async def second() -> str:
            await ctx.elicit("B?", Place, key="b")
            return (await ctx.elicit("More?", Place, key="more")).region

        async with asyncio.TaskGroup() as group:
            one, two = group.create_task(first()), group.create_task(second())
        return one.result() + two.result()

    done = await rounds(serving(order, settle=0.002)).call(
        "order", answers={"a": EU, "b": EU, "more": EU}
    )
    assert done.text == "eueu"


async def test_an_answer_of_a_branch_that_the_author_cancelled_may_stay_unread(rounds):
    async def order(ctx: Context) -> str:
        async def slow() -> str:
            await ctx.memo("began", lambda: True)
            if ctx.round == 2:
                await asyncio.sleep(30)
            return (await ctx.elicit("A?", Place, key="a")).region

        async def quick() -> str:
            return (await ctx.elicit("B?", Place, key="b")).region

        tasks = {asyncio.create_task(slow()), asyncio.create_task(quick())}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return next(iter(done)).result()

    world = rounds(serving(order, settle=0.01))
    assert (await world.call("order", answers={"a": EU, "b": EU})).text == "eu"


@pytest.mark.parametrize("what", ["once", "elicit", "memo", "report"])
async def test_a_forgotten_await_is_an_error_of_the_handler(rounds, what):
    async def order(ctx: Context) -> str:
        match what:
            case "once":
                ctx.once("pay", lambda: None)  # pyright: ignore[reportUnusedCoroutine]
            case "elicit":
                ctx.elicit("Where?", Place)  # pyright: ignore[reportUnusedCoroutine]
            case "memo":
                ctx.memo("price", lambda: 5)  # pyright: ignore[reportUnusedCoroutine]
            case _:
                ctx.report(1)  # pyright: ignore[reportUnusedCoroutine]
        return "paid"

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert f"await ctx.{what}" in done.text


async def test_a_call_that_a_task_has_not_begun_yet_is_not_forgotten(rounds):
    async def order(ctx: Context) -> str:
        task = asyncio.create_task(ctx.memo("later", lambda: 5))
        try:
            return "done"
        finally:
            task.cancel()

    assert (await rounds(serving(order)).begin("order")).text == "done"


async def test_an_effect_that_was_left_to_a_task_and_never_begun_fails_the_call(rounds, tally):
    left: list[Any] = []

    async def order(ctx: Context) -> str:
        left.append(asyncio.create_task(ctx.once("mail", tally.mark, "mail")))
        return "sent"

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert "ctx.once(...) in line" in done.text
    assert "Await the task." in done.text
    assert tally["mail"] == 0
    await asyncio.gather(*left, return_exceptions=True)


async def test_an_effect_that_a_task_ends_while_its_handler_is_parked_logs_nothing(
    rounds, tally, caplog
):
    claimed, ended = asyncio.Event(), asyncio.Event()

    async def pay() -> int:
        claimed.set()
        await asyncio.sleep(0.01)
        return tally.mark("pay")

    async def branch(ctx: Context) -> int:
        try:
            return await ctx.once("pay", pay)
        finally:
            ended.set()

    async def order(ctx: Context) -> str:
        paying = asyncio.create_task(branch(ctx))
        await claimed.wait()
        place = await ctx.elicit("Where?", Place)
        return f"{place.region} {await paying}"

    world = rounds(serving(order, park=60))
    step = await world.begin("order")
    await ended.wait()
    assert (await world.answer(step, {"place": EU})).text == "eu 1"
    assert tally["pay"] == 1
    gc.collect()
    assert "never retrieved" not in caplog.text


class SlowToClaim(MemoryStore):
    """A store that answers a claim only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def begin(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        await self.go.wait()
        return await super().begin(*args, **options)


@pytest.mark.parametrize("inside", [False, True])
async def test_an_effect_that_was_left_to_a_task_and_not_yet_claimed_fails_the_call(
    rounds, tally, inside
):
    left: list[Any] = []
    store = SlowToClaim()

    async def send(ctx: Context) -> None:
        await ctx.once("mail", tally.mark, "mail")

    async def order(ctx: Context) -> str:
        mail = send(ctx) if inside else ctx.once("mail", tally.mark, "mail")
        left.append(asyncio.create_task(mail))
        await store.asked.wait()
        asyncio.get_running_loop().call_later(0.01, store.go.set)
        return "sent"

    done = await rounds(serving(order), store=store).begin("order")
    assert done.is_error
    assert "ctx.once('mail', ...) was left to a task" in done.text
    assert "Await the task." in done.text
    assert tally["mail"] == 0
    await asyncio.gather(*left, return_exceptions=True)


async def test_an_effect_that_was_left_to_a_task_and_claimed_is_done_before_the_call_ends(
    rounds, tally
):
    left: list[Any] = []
    claimed = asyncio.Event()

    async def mail() -> int:
        claimed.set()
        await asyncio.sleep(0.01)
        return tally.mark("mail")

    async def order(ctx: Context) -> str:
        left.append(asyncio.create_task(ctx.once("mail", mail)))
        await claimed.wait()
        return "sent"

    assert (await rounds(serving(order)).begin("order")).text == "sent"
    assert tally["mail"] == 1
    await asyncio.gather(*left, return_exceptions=True)


@pytest.mark.parametrize("how", ["gather", "task", "thread", "future"])
async def test_a_generator_exit_out_of_what_a_handler_awaits_has_failed_it(rounds, how):
    async def leave() -> None:
        raise GeneratorExit

    def leave_thread() -> None:
        raise GeneratorExit

    async def order(ctx: Context) -> str:
        future = asyncio.get_running_loop().create_future()
        if how == "gather":
            await asyncio.gather(leave(), asyncio.sleep(0.01))
        elif how == "task":
            await asyncio.create_task(leave())
        elif how == "thread":
            await asyncio.to_thread(leave_thread)
        else:
            asyncio.get_running_loop().call_soon(future.set_exception, GeneratorExit())
            await future
        return "never"

    async with asyncio.timeout(20):
        done = await rounds(serving(order)).begin("order")
    assert done.text == "tool 'order' failed: an unexpected error occurred on the server"


async def test_on_commit_does_not_run_when_the_result_cannot_be_written(rounds, tally):
    async def order(ctx: Context) -> Plan:
        await ctx.on_commit("mail", tally.mark, "mail")
        return {"name": 5}  # type: ignore[return-value]

    assert (await rounds(serving(order)).begin("order")).is_error
    assert tally.marks == []


async def test_a_key_of_a_random_value_that_is_used_twice_is_refused(rounds):
    async def order(ctx: Context) -> str:
        return str({ctx.uuid(key="order") for _ in range(2)})

    assert "'order' is used twice" in (await rounds(serving(order)).begin("order")).text


async def test_a_call_with_an_open_question_is_past_the_lines_before_it(rounds):
    async def before(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    async def after(ctx: Context) -> str:
        new = ctx.patched("budget")
        place = await ctx.elicit("Where?", Place)
        return f"{new} {place.region}"

    world = rounds(serving(before, name="order"))
    step = await world.begin("order")
    await world.deploy(serving(after, name="order"))
    step = await world.answer(step, {})  # nothing is answered yet
    assert (await world.answer(step, {"place": EU})).text == "False eu"


# --- exits in user code --------------------------------------------------------------------------


class NoException(BaseException):
    pass


EXITS = [
    SystemExit(2),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(),
    asyncio.CancelledError(),
    NoException("odd"),
    BaseExceptionGroup("several", [NoException("odd")]),
]


@pytest.mark.parametrize("exit_", EXITS, ids=lambda exit_: type(exit_).__name__)
@pytest.mark.parametrize("place", ["handler", "effect", "memo", "commit", "until", "parked"])
@pytest.mark.parametrize("where", ["here", "in a thread"])
async def test_user_code_that_raises_no_exception_has_failed_and_the_process_goes_on(
    rounds, place, where, exit_
):
    def leave() -> str:
        raise exit_

    async def leave_here() -> str:
        raise exit_

    fn = leave if where == "in a thread" else leave_here

    async def order(ctx: Context) -> str:
        match place:
            case "effect":
                await ctx.once("leave", fn)
            case "memo":
                await ctx.memo("leave", fn)
            case "commit":
                await ctx.on_commit("leave", fn)
            case "until":
                await ctx.elicit_url("Pay", "https://example.org/pay", until=fn)
            case _:
                await leave_here()
        return "ended"

    in_thread = place == "handler" and where == "in a thread"
    options: dict[str, Any] = {"park": 60} if place == "parked" else {}
    world = rounds(serving(leave if in_thread else order, name="order", **options))
    async with asyncio.timeout(10):
        done = await world.call("order", answers={"url": True})
    assert done.is_error
    acts = place in ("effect", "commit")
    assert ("Do not call this tool again" if acts else "an unexpected error") in done.text


async def in_a_group(leave: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())
        await asyncio.sleep(30)


async def in_an_anyio_group(leave: Any) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        await asyncio.sleep(30)


async def in_a_gather(leave: Any) -> None:
    await asyncio.gather(leave(), asyncio.sleep(0))


async def in_a_child_of_a_child(leave: Any) -> None:
    await asyncio.create_task(in_a_gather(leave))


async def in_a_cancelled_child(leave: Any) -> None:
    async def clean_up() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            await leave()

    child = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    child.cancel()
    await child


CHILDREN = [
    in_a_group,
    in_an_anyio_group,
    in_a_gather,
    in_a_child_of_a_child,
    in_a_cancelled_child,
]


async def leave_in_a_child(rounds: Any, child: Any, exit_: BaseException, place: str) -> None:
    async def leave() -> None:
        raise exit_

    async def order(ctx: Context) -> str:
        if place == "handler":
            await child(leave)
        elif place == "effect":
            await ctx.once("leave", partial(child, leave))
        else:
            await ctx.memo("leave", partial(child, leave))
        return "ended"

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    acts = place == "effect"
    assert ("Do not call this tool again" if acts else "an unexpected error") in done.text


@pytest.mark.parametrize("exit_", EXITS[:2], ids=lambda exit_: type(exit_).__name__)
@pytest.mark.parametrize("place", ["handler", "effect", "memo"])
@pytest.mark.parametrize("child", CHILDREN)
async def test_a_child_task_that_would_end_the_process_has_failed_with_its_handler(
    rounds, child, place, exit_
):
    async with asyncio.timeout(10):
        await leave_in_a_child(rounds, child, exit_, place)


def test_on_any_event_loop_a_child_task_cannot_end_the_process_and_others_are_left_alone():
    async def main() -> str:
        loop = asyncio.get_running_loop()
        made: list[Any] = []

        def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
            made.append(coroutine)
            return asyncio.Task(coroutine, loop=loop, **options)

        loop.set_task_factory(factory)
        await leave_in_a_child(Rounds, in_a_gather, SystemExit(2), "handler")
        other = asyncio.sleep(0)
        await loop.create_task(other)
        assert made[-1] is other, "a task that is no user code was made differently"
        return "went on"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "went on"


@pytest.mark.parametrize("exit_", EXITS, ids=lambda exit_: type(exit_).__name__)
async def test_a_validator_of_an_argument_that_raises_no_exception_has_failed(rounds, exit_):
    def leave(value: str) -> str:
        raise exit_

    async def order(ctx: Context, place: Annotated[str, AfterValidator(leave)]) -> str:
        return place

    done = await rounds(serving(order)).begin("order", {"place": "eu"})
    assert done.is_error
    assert done.text == "tool 'order' failed: an unexpected error occurred on the server"


@pytest.mark.parametrize("exit_", EXITS, ids=lambda exit_: type(exit_).__name__)
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_function_that_names_the_caller_and_exits_has_failed(era, exit_):
    def leave(arguments: Any) -> str:
        raise exit_

    async def order(ctx: Context) -> str:
        return "never"

    options: dict[str, Any] = {"restarts": "adopt", "restart_key": leave}
    async with Rounds(serving(order, **options), era=era) as world:
        done = await world.begin("order")
    assert done.is_error
    assert done.text == "tool 'order' failed: an unexpected error occurred on the server"


@pytest.mark.parametrize("exit_", EXITS, ids=lambda exit_: type(exit_).__name__)
async def test_a_tool_is_hidden_by_a_function_that_exits(rounds, exit_):
    def leave(principal: Any) -> bool:
        raise exit_

    async def order(ctx: Context) -> str:
        return "never"

    world = rounds(serving(order, visible=leave))
    assert "Unknown tool" in (await world.begin("order")).text
    assert (await world.send("tools/list", {})).result["tools"] == []


async def test_an_effect_that_was_cancelled_from_inside_is_uncertain_in_every_round(rounds, tally):
    async def charge() -> None:
        tally.mark("charge")
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def order(ctx: Context) -> str:
        try:
            await ctx.once("charge", charge)
        except EffectUncertain:
            return (await ctx.elicit("Another?", Plan)).name
        return "paid"

    done = await rounds(serving(order)).call("order", answers={"plan": {"name": "cash"}})
    assert done.text == "cash"
    assert tally["charge"] == 1


# --- parked handlers -----------------------------------------------------------------------------


@pytest.mark.parametrize("waker", ["timeout", "child"])
async def test_a_parked_handler_does_nothing_between_two_rounds(tally, waker):
    async def order(ctx: Context) -> str:
        async def impatient() -> None:
            await asyncio.sleep(0.01)
            await ctx.once("refund", tally.mark, "refund")

        child = asyncio.create_task(impatient()) if waker == "child" else None
        try:
            async with asyncio.timeout(0.01 if waker == "timeout" else None):
                place = await ctx.elicit("Where?", Place)
        except TimeoutError:
            await ctx.once("refund", tally.mark, "refund")
            return "refunded"
        finally:
            if child is not None:
                child.cancel()
        await ctx.once("ship", tally.mark, "ship")
        return f"shipped to {place.region}"

    async with Rounds(serving(order, park=60)) as world:
        server = world.make()
        step = await world.begin("order", server=server)
        assert server.stats()["parked"] == 1
        for _ in range(100):
            if not server.stats()["parked"]:
                break
            await asyncio.sleep(0.01)
        assert server.stats()["parked"] == 0
        assert tally.marks == []
        done = await world.answer(step, {"place": EU}, server=server)
        assert done.text == "shipped to eu"
    assert tally.marks == ["ship"]


# --- arguments of effects ------------------------------------------------------------------------


async def test_what_a_partial_has_bound_belongs_to_the_effect(rounds):
    async def order(ctx: Context) -> str:
        await ctx.once("charge", partial(lambda amount: amount, 100 + ctx.round))
        await ctx.elicit("Where?", Place)
        return "paid"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert "diverged" in done.text


async def test_an_effect_whose_annotation_cannot_be_read_is_refused_before_it_runs(rounds, tally):
    def charge():
        tally.mark("charge")

    charge.__annotations__["return"] = "Missing"

    async def order(ctx: Context) -> str:
        return str(await ctx.once("charge", charge))

    done = await rounds(serving(order)).begin("order")
    assert "cannot be read" in done.text
    assert tally.marks == []
