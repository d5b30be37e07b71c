"""Leaving and re-entering a stranger's coroutine: each trap with the test that catches it."""

import asyncio
import contextlib
import sys
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from antiphon import Context, Server
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, US, Place, Plan, serving, texts

ANSWERS = {"place": EU, "plan": {"name": "big"}}
BOTH = {"a": EU, "b": US}


@pytest.fixture(autouse=True)
async def balanced():
    """No test may leave a cancellation behind for the caller's own scopes."""
    yield
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def calm() -> None:
    """Check that no stray cancellation is on its way to this task."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


# --- transactions ------------------------------------------------------------------------------


@asynccontextmanager
async def transaction(tally):
    tally.mark("begin")
    try:
        yield
    except BaseException:
        await asyncio.sleep(0.002)  # a cleanup that awaits must not be cut
        tally.mark("rollback")
        raise
    else:
        tally.mark("commit")


async def test_a_transaction_around_an_ask_rolls_back(rounds, tally):
    async def order(ctx: Context) -> str:
        async with transaction(tally):
            return (await ctx.elicit("Where?", Place)).region

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert done.text == "eu"
    assert tally.marks == ["begin", "rollback", "begin", "commit"]
    await calm()


async def test_a_transaction_around_concurrent_asks_rolls_back_also_in_the_branches(rounds, tally):
    async def branch(ctx: Context, key: str) -> str:
        async with transaction(tally):
            return (await ctx.elicit("Where?", Place, key=key)).region

    async def order(ctx: Context) -> list:
        async with transaction(tally), asyncio.TaskGroup() as group:
            a = group.create_task(branch(ctx, "a"))
            b = group.create_task(branch(ctx, "b"))
        return [a.result(), b.result()]

    done = await rounds(serving(order, settle=0.005)).call("order", answers=BOTH)
    assert texts(done) == ["eu", "us"]
    assert tally.counts == {"begin": 6, "rollback": 3, "commit": 3}
    await calm()


# --- catching too much -------------------------------------------------------------------------


async def passes_except_exception(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Where?", Place)).region
    except Exception:
        return "swallowed"


async def passes_suppress(ctx: Context) -> str:
    with suppress(Exception):
        return (await ctx.elicit("Where?", Place)).region
    return "swallowed"


async def passes_except_star(ctx: Context) -> str:
    place = None
    try:
        async with asyncio.TaskGroup() as group:
            place = group.create_task(ctx.elicit("Where?", Place))
    except* Exception:
        return_value = "swallowed"
    else:
        return_value = place.result().region
    return return_value


@pytest.mark.parametrize("handler", [passes_except_exception, passes_suppress, passes_except_star])
async def test_catching_exceptions_lets_the_end_of_a_round_pass(rounds, handler):
    done = await rounds(serving(handler)).call(handler.__name__, answers=ANSWERS)
    assert done.text == "eu"
    await calm()


async def swallows_base_exception(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Where?", Place)).region
    except BaseException:
        return "swallowed"


async def swallows_bare(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Where?", Place)).region
    except:  # noqa: E722
        return "swallowed"


async def swallows_by_return_in_finally(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Where?", Place)).region
    finally:
        return "swallowed"  # noqa: B012, SIM107


async def swallows_by_converting(ctx: Context) -> str:
    try:
        return (await ctx.elicit("Where?", Place)).region
    except BaseException as error:
        raise RuntimeError("converted") from error


async def swallows_in_a_group(ctx: Context) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("Where?", Place))
    except BaseException:
        pass
    return "swallowed"


async def swallows_cancellation(ctx: Context) -> str:
    branch = asyncio.create_task(ctx.elicit("Where?", Place))
    with suppress(asyncio.CancelledError):
        await branch
    return "swallowed"


SWALLOWERS = [
    swallows_base_exception,
    swallows_bare,
    swallows_by_return_in_finally,
    swallows_by_converting,
    swallows_in_a_group,
    swallows_cancellation,
]


@pytest.mark.parametrize("handler", SWALLOWERS)
async def test_swallowing_the_end_of_a_round_is_reported_with_its_ask(rounds, handler):
    step = await rounds(serving(handler)).begin(handler.__name__)
    assert step.is_error
    assert "swallowed the end of the round at ask 'place'" in step.text
    await calm()


@pytest.mark.parametrize("where", ["own", "branch"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_loop_that_swallows_and_asks_again_is_given_up(rounds, where):
    looping = True

    async def loop(ctx: Context) -> str:
        while looping:
            with suppress(BaseException):
                return (await ctx.elicit("Where?", Place)).region
        return "stopped by the test"

    async def order(ctx: Context) -> str:
        if where == "own":
            return await loop(ctx)
        async with asyncio.TaskGroup() as group:
            place = group.create_task(loop(ctx))
        return place.result()

    async with asyncio.timeout(20):
        step = await rounds(serving(order, settle=0.002)).begin("order")
    looping = False
    assert step.is_error
    assert "swallowed the end of the round" in step.text
    await calm()


async def test_many_branches_that_clean_up_are_not_taken_for_swallowers(rounds, tally):
    async def branch(ctx: Context, key: str) -> str:
        try:
            return (await ctx.elicit("Where?", Place, key=key)).region
        finally:
            for number in range(3):
                with suppress(BaseException):
                    await ctx.once(f"clean {key} {number} up", tally.mark, "clean")

    async def order(ctx: Context) -> str:
        return "".join(await asyncio.gather(*(branch(ctx, f"k{n}") for n in range(12))))

    world = rounds(serving(order, settle=0.005))
    step = await world.begin("order")
    assert len(step.asks) == 12
    assert tally.marks == []
    done = await world.answer(step, {f"k{n}": EU for n in range(12)})
    assert done.text == "eu" * 12
    assert tally["clean"] == 36


async def test_an_ask_while_unwinding_asks_and_claims_nothing(rounds, tally):
    class Closing:
        def __init__(self, ctx):
            self.ctx = ctx

        async def __aenter__(self):
            return self

        async def __aexit__(self, *exc):
            await self.ctx.once("close", tally.mark, "close")
            await self.ctx.elicit("What?", Plan)

    async def order(ctx: Context) -> str:
        async with Closing(ctx):
            return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    step = await world.begin("order")
    assert list(step.asks) == ["place"]
    assert tally.marks == []
    done = await world.finish(step, ANSWERS)
    assert done.text == "eu"
    assert tally.marks == ["close"]


# --- timeouts ----------------------------------------------------------------------------------


async def in_asyncio_timeout(ctx: Context) -> str:
    async with asyncio.timeout(20):
        return (await ctx.elicit("Where?", Place)).region


async def in_wait_for(ctx: Context) -> str:
    return (await asyncio.wait_for(ctx.elicit("Where?", Place), 20)).region


async def in_fail_after(ctx: Context) -> str:
    with anyio.fail_after(20):
        return (await ctx.elicit("Where?", Place)).region


async def in_move_on_after(ctx: Context) -> str:
    with anyio.move_on_after(5):
        return (await ctx.elicit("Where?", Place)).region
    return "moved on"


async def group_in_timeout(ctx: Context) -> str:
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        place = group.create_task(ctx.elicit("Where?", Place))
    return place.result().region


async def group_in_fail_after(ctx: Context) -> str:
    found = []

    async def ask():
        found.append(await ctx.elicit("Where?", Place))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
    return found[0].region


async def shielded(ctx: Context) -> str:
    return (await asyncio.shield(ctx.elicit("Where?", Place))).region


async def in_anyio_shield(ctx: Context) -> str:
    found = []

    async def ask():
        found.append(await ctx.elicit("Where?", Place))

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
    return found[0].region


async def by_as_completed(ctx: Context) -> str:
    for first in asyncio.as_completed([ctx.elicit("Where?", Place)]):
        return (await first).region
    return "nothing"


async def by_wait(ctx: Context) -> str:
    task = asyncio.create_task(ctx.elicit("Where?", Place))
    done, _ = await asyncio.wait({task}, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result().region


async def behind_a_lock(ctx: Context) -> str:
    lock = asyncio.Lock()

    async def branch(key: str) -> str:
        async with lock:
            return (await ctx.elicit("Where?", Place, key=key)).region

    async with asyncio.TaskGroup() as group:
        a = group.create_task(branch("place"))
        group.create_task(branch("again"))
    return a.result()


async def behind_an_event(ctx: Context) -> str:
    asked = asyncio.Event()

    async def branch() -> str:
        place = await ctx.elicit("Where?", Place)
        asked.set()
        return place.region

    task = asyncio.create_task(branch())
    await asked.wait()
    return await task


WAITERS = [
    in_asyncio_timeout,
    in_wait_for,
    in_fail_after,
    in_move_on_after,
    group_in_timeout,
    group_in_fail_after,
    shielded,
    in_anyio_shield,
    by_as_completed,
    by_wait,
    behind_a_lock,
    behind_an_event,
]


@pytest.mark.parametrize("handler", WAITERS)
async def test_the_round_ends_whatever_the_ask_is_wrapped_in(rounds, handler):
    world = rounds(serving(handler, settle=0.005))
    async with asyncio.timeout(20):
        step = await world.begin(handler.__name__)
    assert list(step.asks) == ["place"], step.text
    await calm()
    done = await world.finish(step, {"place": EU, "again": US})
    assert done.text == "eu"
    await calm()


async def test_an_ask_in_wait_for_twice_works_or_is_refused_with_the_cure(rounds):
    async def order(ctx: Context) -> str:
        first = await asyncio.wait_for(ctx.elicit("From?", Place), 5)
        second = await asyncio.wait_for(ctx.elicit("To?", Place), 5)
        return f"{first.region} {second.region}"

    answers = {"place": EU, "place-2": {"region": "us"}}
    done = await rounds(serving(order)).call("order", answers=answers)
    if sys.version_info >= (3, 12):
        assert done.text == "eu us"
    else:
        assert done.is_error
        assert "use `asyncio.timeout` in its place" in done.text


async def test_a_timeout_that_fires_first_takes_the_ask_back(rounds):
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.005), asyncio.TaskGroup() as group:
                group.create_task(ctx.elicit("Where?", Place))
        except TimeoutError:
            await asyncio.sleep(0.04)
            return "nobody asked"
        return "asked"

    step = await rounds(serving(order, settle=0.02)).begin("order")
    assert step.text == "nobody asked"
    await calm()


# --- cancellation ------------------------------------------------------------------------------


async def test_a_client_that_goes_away_as_the_round_ends_leaves_nothing_recorded(rounds, tally):
    handler_task: list[asyncio.Task] = []

    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.005, task.cancel)
        with suppress(ZeroDivisionError):
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.elicit("What?", Plan))
        tally.mark("past")
        return place.region

    world = rounds(serving(order, settle=0.005))
    step = await world.begin("order")
    sending = asyncio.create_task(world.answer(step, ANSWERS))
    handler_task.append(sending)
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert tally.marks == []
    [row] = await world.store.calls()
    assert row.state == "released"


async def test_a_branch_that_fails_while_a_sibling_asks_wins(rounds):
    async def fails() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("broken")

    async def order(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("Where?", Place))
            group.create_task(fails())
        return "never"

    async def handled(ctx: Context) -> str:
        try:
            return await order(ctx)
        except* ValueError:
            pass
        return "handled"

    world = rounds(serving(order, handled, config={"expose_errors": True}, settle=0.5))
    step = await world.begin("order")
    assert step.is_error
    assert "ValueError: broken" in step.text
    assert (await world.begin("handled")).text == "handled"
    await calm()


async def test_a_result_in_the_moment_of_an_ask_wins(rounds):
    async def order(ctx: Context) -> str:
        task = asyncio.create_task(ctx.elicit("Where?", Place))
        await asyncio.sleep(0)
        assert not task.done()
        return "result"

    step = await rounds(serving(order)).begin("order")
    assert step.text == "result"
    await calm()


async def test_a_handler_that_is_cancelled_from_inside_has_failed(rounds):
    async def order(ctx: Context) -> str:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
        return "never"

    step = await rounds(serving(order)).begin("order")
    assert step.is_error
    assert "'order' failed" in step.text


async def test_a_group_with_a_foreign_error_is_not_the_end_of_the_round(rounds):
    async def fails_in_cleanup(ctx: Context) -> None:
        try:
            await ctx.elicit("Where?", Place)
        finally:
            raise ValueError("cleanup")

    async def order(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails_in_cleanup(ctx))
        return "never"

    step = await rounds(serving(order, settle=0.005)).begin("order")
    assert step.is_error
    assert "swallowed the end of the round at ask 'place'" in step.text


# --- neighbours --------------------------------------------------------------------------------


async def inner_asks(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        plan = group.create_task(ctx.elicit("What?", Plan))
    return plan.result().name


async def test_a_handler_that_calls_another_server_takes_only_its_own_end(rounds):
    async def outer(ctx: Context) -> str:
        async with Rounds(serving(inner_asks, settle=0.002)) as inner:
            step = await inner.begin("inner_asks")
            place = await ctx.elicit(f"Where? ({next(iter(step.asks))})", Place)
            done = await inner.answer(step, ANSWERS)
        return f"{place.region} {done.text}"

    done = await rounds(serving(outer)).call("outer", answers=ANSWERS)
    assert done.text == "eu big"
    assert done.asked == ["place"]
    await calm()


async def test_the_end_of_another_calls_round_is_not_mistaken_for_ones_own(rounds):
    contexts: list[Context] = []

    async def meddles(ctx: Context) -> str:
        return (await contexts[0].elicit("Where?", Place)).region

    async def outer(ctx: Context) -> str:
        contexts[:] = [ctx]
        step = await Rounds(serving(meddles)).begin("meddles")
        return step.text

    step = await rounds(serving(outer)).begin("outer")
    assert step.is_error
    assert "swallowed the end of the round" in step.text


async def test_a_background_task_of_a_library_survives_the_round(rounds):
    ticks = asyncio.Queue()
    reapers: list[asyncio.Task] = []

    async def reap():
        while True:
            await asyncio.sleep(0.001)
            ticks.put_nowait("tick")

    async def order(ctx: Context) -> str:
        if not reapers:
            reapers.append(asyncio.create_task(reap()))
        return (await ctx.elicit("Where?", Place)).region

    world = rounds(serving(order))
    done = await world.call("order", answers=ANSWERS)
    assert done.text == "eu"
    async with asyncio.timeout(20):
        await ticks.get()
    assert not reapers[0].done()
    reapers[0].cancel()


async def test_a_task_that_outlived_its_handler_is_refused(rounds, tally):
    go = asyncio.Event()
    strays: list[asyncio.Task] = []

    async def stray(ctx: Context) -> None:
        await go.wait()
        await ctx.once("late", tally.mark, "late")

    async def order(ctx: Context) -> str:
        strays.append(asyncio.create_task(stray(ctx)))
        await asyncio.sleep(0)
        return "done"

    world = rounds(serving(order))
    assert (await world.begin("order")).text == "done"
    go.set()
    with pytest.raises(Exception, match="after its call had ended"):
        await strays[0]
    assert tally.marks == []


async def test_async_generators_close_in_time_with_aclosing(rounds, tally):
    async def rows():
        try:
            yield 1
            yield 2
        finally:
            tally.mark("closed")

    async def order(ctx: Context) -> str:
        async with contextlib.aclosing(rows()) as found:
            async for _ in found:
                return (await ctx.elicit("Where?", Place)).region
        return "never"

    world = rounds(serving(order))
    step = await world.begin("order")
    assert tally.marks == ["closed"]
    assert (await world.answer(step, ANSWERS)).text == "eu"


async def test_a_memo_of_a_branch_that_was_cut_is_computed_again(rounds, tally):
    async def slow() -> int:
        await asyncio.sleep(0.03)
        return tally.mark("computed")

    async def order(ctx: Context) -> list:
        async with asyncio.TaskGroup() as group:
            place = group.create_task(ctx.elicit("Where?", Place))
            price = group.create_task(ctx.memo("price", slow))
        return [place.result().region, str(price.result())]

    world = rounds(serving(order, settle=0.005))
    done = await world.call("order", answers=ANSWERS)
    assert texts(done) == ["eu", "1"]
    assert tally["computed"] == 1


async def test_a_sync_handler_is_told_that_it_cannot_ask(rounds):
    def order(ctx: Context) -> str:
        asked = ctx.elicit("Where?", Place)
        return f"never {asked}"

    def clock(ctx: Context) -> str:
        assert ctx.uuid() != ctx.uuid()
        return str(ctx.now().year)

    world = rounds(serving(order, clock))
    step = await world.begin("order")
    assert step.is_error
    assert "async def" in step.text
    assert (await world.begin("clock")).text == "2027"


async def test_two_branches_with_the_same_wording_cannot_swap_answers(rounds):
    async def order(ctx: Context) -> str:
        found = await asyncio.gather(
            ctx.elicit("Where?", Place), ctx.elicit("Where?", Place), return_exceptions=True
        )
        raise next(error for error in found if isinstance(error, Exception))

    done = await rounds(serving(order)).call("order", answers=ANSWERS)
    assert done.is_error
    assert "derived key 'place'" in done.text


def test_the_signal_teaches_whoever_meets_it():
    from antiphon.engine.suspension import Suspended

    assert "let it pass" in str(Suspended(None))
    assert not issubclass(Suspended, Exception)


async def test_a_kept_server_counts_nothing_running_after_all_this():
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    world = Rounds(serving(order), fresh=False)
    await world.call("order", answers=ANSWERS)
    server = world.make()
    assert isinstance(server, Server)
    assert server.stats()["rounds"] == 0
