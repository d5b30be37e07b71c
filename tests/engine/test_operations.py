"""What a round asks of its store, and when, in simulated time."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from antiphon import Context, EffectUncertain, Limits, MemoryStore, NotDone, Principal, Server
from antiphon.errors import StoreError
from antiphon.ports import Spent
from antiphon.protocol.envelope import CLIENT_CAPABILITIES, PROTOCOL_VERSION, admit
from antiphon.protocol.request import MODERN, ConnectedChannel
from antiphon.testing import EVERYTHING, Rounds, RoundTrip
from tests.linear.one_tool_server import EU, Place, serving
from tests.simulated_time import LoopClock, SimulatedLoop

ANN = Principal(issuer="i", subject="ann")
LEASE = {"limits": Limits(lease=timedelta(seconds=30))}
ROUND = ("claim", "record", "renew", "release")
EFFECT = ("begin", "hold", "settle", "abandon")


class Watched(MemoryStore):
    """A store in memory that notes each operation and when it came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(clock=LoopClock(loop))
        self._loop = loop
        self.seen: list[tuple[str, float]] = []
        self.given: list[tuple[str, dict[str, Any]]] = []
        """The options of each operation."""

        self.fails: dict[str, int] = {}
        """How often an operation fails from now on."""

        self.takes: dict[str, float] = {}
        """How many seconds an operation takes from now on."""

    def times(self, *operations: str) -> list[float]:
        return [round(when, 3) for name, when in self.seen if name in operations]

    def options(self, operation: str, name: str) -> list[Any]:
        return [options[name] for given, options in self.given if given == operation]

    async def _note(self, operation: str, options: dict[str, Any]) -> None:
        self.seen.append((operation, self._loop.time()))
        self.given.append((operation, options))
        if operation in self.takes:
            await asyncio.sleep(self.takes[operation])
        if self.fails.get(operation, 0) > 0:
            self.fails[operation] -= 1
            raise StoreError("the disk is gone")

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("claim", kwargs)
        return await super().claim(*args, **kwargs)

    async def record(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("record", kwargs)
        return await super().record(*args, **kwargs)

    async def renew(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("renew", kwargs)
        return await super().renew(*args, **kwargs)

    async def release(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("release", kwargs)
        return await super().release(*args, **kwargs)

    async def begin(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("begin", kwargs)
        return await super().begin(*args, **kwargs)

    async def hold(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("hold", kwargs)
        return await super().hold(*args, **kwargs)

    async def settle(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("settle", kwargs)
        return await super().settle(*args, **kwargs)

    async def settled(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("settled", kwargs)
        return await super().settled(*args, **kwargs)

    async def fetch(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("fetch", kwargs)
        return await super().fetch(*args, **kwargs)

    async def end_call(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("end_call", kwargs)
        return await super().end_call(*args, **kwargs)

    async def abandon(self, *args: Any, **kwargs: Any) -> Any:
        await self._note("abandon", kwargs)
        return await super().abandon(*args, **kwargs)


def simulated(
    play: Callable[[Rounds, Watched], Awaitable[None]],
    *tools: Any,
    store: type[Watched] = Watched,
    **options: Any,
) -> None:
    """Play with a world of its own whose time is simulated."""

    async def main() -> None:
        watched = store(asyncio.get_running_loop())
        clock = LoopClock(asyncio.get_running_loop())
        world = Rounds(
            serving(*tools, config=LEASE, **options),
            store=watched,
            clock=clock,
            principal=ANN,
            fresh=False,
        )
        async with world:
            await play(world, watched)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(main())


async def order(ctx: Context, work: float = 0.0) -> str:
    place = await ctx.elicit("Where?", Place)
    await asyncio.sleep(work)
    return place.region


def test_a_round_is_claimed_once_and_recorded_once() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        done = await world.call("order", answers={"place": EU})
        assert done.text == "eu"
        assert [name for name, _ in store.seen if name in ROUND] == ["claim", "record"]

    simulated(play, order)


def test_the_lease_of_a_round_is_renewed_at_every_third_while_it_runs() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        for start in (0.0, 135.0):  # the renewal begins anew with the next round
            step = await world.begin("order", {"work": 35.0})
            assert (await world.answer(step, {"place": EU})).text == "eu"
            assert store.times("renew") == [start + 10, start + 20, start + 30]
            store.seen.clear()
            await asyncio.sleep(100)
            assert store.times("renew") == []

    simulated(play, order)


def test_rounds_at_the_same_time_are_renewed_by_one_timer() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        steps = [await world.begin("order", {"work": 25.0}) for _ in range(3)]
        first = asyncio.create_task(world.answer(steps[0], {"place": EU}))
        await asyncio.sleep(4)
        others = [world.answer(step, {"place": EU}) for step in steps[1:]]
        await asyncio.gather(first, *others)
        assert store.times("renew") == [10, 10, 10, 20, 20, 20]

    simulated(play, order)


def test_the_lease_of_an_effect_is_renewed_at_every_third_while_it_runs() -> None:
    async def pay(ctx: Context, work: float) -> str:
        return await ctx.once("pay", asyncio.sleep, work, "paid")

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("pay", {"work": 35.0})).text == "paid"
        assert store.times("begin", "settle") == [0, 35]
        assert store.times("hold") == [20, 30]
        await asyncio.sleep(100)
        assert store.times("hold") == [20, 30]
        store.seen.clear()
        assert (await world.call("pay", {"work": 9.0})).text == "paid"
        await asyncio.sleep(100)
        assert store.times("hold") == []

    simulated(play, pay)


def test_a_renewal_that_fails_is_tried_again_at_the_next_third() -> None:
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", asyncio.sleep, 45.0, "paid")

    async def play(world: Rounds, store: Watched) -> None:
        store.fails = {"hold": 1, "renew": 1}
        done = await world.call("pay", answers={"place": EU})
        assert done.text == "paid"
        assert store.times("hold") == [20, 30, 40]
        assert store.times("renew") == [10, 20, 30, 40]

    simulated(play, pay)


def test_an_effect_with_retry_is_called_again_after_growing_pauses() -> None:
    called: list[float] = []

    async def pay() -> None:
        called.append(round(asyncio.get_running_loop().time(), 3))
        raise ConnectionError("no route")

    async def paying(ctx: Context, retry: bool) -> str:
        try:
            await ctx.once("pay", pay, retry=retry)
        except EffectUncertain as error:
            return error.reason
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("paying", {"retry": True})).text == "raised"
        assert called == [0.0, 0.1, 0.6, 2.6]
        called.clear()
        await world.call("paying", {"retry": False})
        assert called == [2.6]

    simulated(play, paying)


def test_who_waits_for_a_shared_effect_sees_its_end_soon() -> None:
    async def pay(ctx: Context) -> str:
        return await ctx.once("pay", asyncio.sleep, 10.0, "paid", scope="arguments", window=60)

    async def play(world: Rounds, store: Watched) -> None:
        both = await asyncio.gather(world.call("pay"), world.call("pay"))
        assert [done.text for done in both] == ["paid", "paid"]
        assert 9.99 < asyncio.get_running_loop().time() < 10.1
        assert len(store.times("settle")) == 1

    simulated(play, pay)


class Forgetful(Watched):
    """A store in which another process takes every round over and then gives it back."""

    async def record(self, call: str, number: int, fence: int, *args: Any, **kwargs: Any) -> bool:
        await MemoryStore.release(self, call, number, fence, spend=False, counts=False)
        return False


def test_one_request_runs_its_round_three_times_at_most() -> None:
    entered: list[int] = []

    async def plain(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        entered.append(1)
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        done = await world.call("plain", answers={"place": EU})
        assert done.code == -32603
        assert "take this round over again and again" in done.text
        assert len(entered) == len(store.times("claim")) == 3

    simulated(play, plain, store=Forgetful)


@pytest.mark.parametrize("operation", ["begin", "settle"])
def test_a_store_that_fails_for_a_moment_is_asked_again_for_an_effect(operation: str) -> None:
    async def pay(ctx: Context) -> str:
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        store.fails = {operation: 3}
        assert (await world.call("pay")).text == "paid"
        assert store.times(operation) == [0, 0.05, 0.15, 0.35]

    simulated(play, pay)


@pytest.mark.parametrize("operation", ["begin", "settle"])
def test_a_store_that_is_gone_is_asked_for_a_third_of_the_lease(operation: str) -> None:
    async def pay(ctx: Context) -> str:
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        store.fails = {operation: 10_000}
        assert (await world.call("pay")).code == -32603
        tries = store.times(operation)
        assert tries[:6] == [0, 0.05, 0.15, 0.35, 0.75, 1.55]
        assert [round(b - a, 3) for a, b in pairwise(tries[5:])] == [1.0] * 9

    simulated(play, pay)


class Elsewhere(Watched):
    """A store that other processes see, and that answers after a second."""

    shared = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.takes = {"claim": 1.0, "record": 1.0}


@pytest.mark.parametrize(("after", "left"), [(0.5, "claim release"), (1.5, "claim record")])
def test_what_a_store_elsewhere_does_goes_on_when_its_client_leaves(
    after: float, left: str
) -> None:
    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        leaving = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(after)
        leaving.cancel()
        await asyncio.wait({leaving})
        await asyncio.sleep(2)
        assert [name for name, _ in store.seen if name in ROUND] == left.split()
        assert store.options("release", "counts") == [False] * left.count("release")
        assert (await world.answer(step, {"place": EU})).text == "eu"

    simulated(play, order, store=Elsewhere)


def test_a_store_that_fails_when_nobody_waits_any_more_is_no_stray_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order")
        store.fails = {"claim": 1}
        leaving = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(0.5)
        leaving.cancel()
        await asyncio.wait({leaving})
        await asyncio.sleep(2)
        gc.collect()

    simulated(play, order, store=Elsewhere)
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("what", ["once", "memo"])
def test_a_cancellation_that_nothing_repeats_is_waited_for_a_second_longer(what: str) -> None:
    async def pay() -> str:
        await asyncio.sleep(7)
        return "paid"

    async def paying(ctx: Context) -> str:
        wanted = asyncio.create_task(getattr(ctx, what)("pay", pay))
        if ctx.round == 1:
            await asyncio.sleep(5)
            wanted.cancel()
            await asyncio.wait({wanted})
            await ctx.elicit("Where?", Place)
        begun = asyncio.get_running_loop().time()
        paid = await wanted
        waited = asyncio.get_running_loop().time() - begun
        await ctx.elicit("Where?", Place)
        return f"{paid} after {waited:.0f} s"

    async def play(world: Rounds, store: Watched) -> None:
        await asyncio.sleep(100)
        done = await world.call("paying", answers={"place": EU})
        # The effect was finished before it was left, and is looked up; the memo is computed again.
        assert done.text == ("paid after 8 s" if what == "once" else "paid after 13 s")

    simulated(play, paying)


@pytest.mark.parametrize("store", [Watched, Elsewhere])
@pytest.mark.parametrize(("ttl", "kept"), [(600, 600), (3600, 3500)])
def test_an_outcome_is_kept_for_the_life_of_its_token_and_at_least_for_that_of_a_new_one(
    store: type[Watched], ttl: float, kept: float
) -> None:
    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {}
        step = await world.begin("order")
        await asyncio.sleep(100)
        await world.answer(step, {"place": EU})
        assert store.options("claim", "ttl") == [pytest.approx(ttl - 100)]
        assert store.options("claim", "lease") == [30]
        assert store.options("record", "ttl") == [pytest.approx(kept)]

    simulated(play, order, store=store, ttl=ttl)


@pytest.mark.parametrize("store", [Watched, Elsewhere])
def test_a_round_says_whether_its_call_has_ended(store: type[Watched]) -> None:
    async def twice(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return (await ctx.elicit("Where to?", Place)).region

    async def play(world: Rounds, store: Watched) -> None:
        await world.call("twice", answers={"place": EU, "place-2": EU})
        assert store.options("record", "final") == [False, True]

    simulated(play, twice, store=store)


@pytest.mark.parametrize("store", [Watched, Elsewhere])
def test_only_a_run_that_failed_by_itself_counts_as_a_try(store: type[Watched]) -> None:
    async def failing(ctx: Context, how: str) -> str:
        await ctx.elicit("Where?", Place)
        if how == "error":
            raise ZeroDivisionError
        if how == "not done":
            raise NotDone("later")
        await asyncio.sleep(60)
        return "never"

    async def play(world: Rounds, store: Watched) -> None:
        for how, counts in (("error", True), ("not done", False), ("left", False)):
            step = await world.begin("failing", {"how": how})
            store.given.clear()
            sent = asyncio.create_task(world.answer(step, {"place": EU}))
            await asyncio.sleep(10)
            sent.cancel()
            await asyncio.wait({sent})
            assert store.options("release", "counts") == [counts]
            assert store.options("release", "spend") == [False]

    simulated(play, failing, store=store)


def test_a_round_whose_lease_was_lost_is_never_begun_anew() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        await world.call("order", answers={"place": EU})
        assert store.options("claim", "ttl") == [pytest.approx(600), 0.0, 0.0]

    simulated(play, order, store=Forgetful)


def test_a_call_that_ended_in_its_first_round_frees_its_effects_at_once() -> None:
    async def pay(ctx: Context) -> str:
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        assert (await world.call("pay")).text == "paid"
        assert store.options("end_call", "ttl") == [0.0]

    simulated(play, pay)


def test_a_call_that_ended_in_its_first_round_is_freed_although_its_client_left() -> None:
    calls: list[str] = []

    async def pay(ctx: Context) -> str:
        calls.append(ctx.call_id)
        return await ctx.once("pay", lambda: "paid")

    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {"end_call": 5.0}
        sent = asyncio.create_task(world.call("pay"))
        await asyncio.sleep(2)
        assert [row.key for row in await store.effects(calls[0])] == ["pay"]
        sent.cancel()
        await asyncio.wait({sent})
        await asyncio.sleep(10)
        assert await store.effects(calls[0]) == []

    simulated(play, pay, store=Elsewhere)


def test_a_renewal_that_is_slow_is_not_begun_again_while_it_lasts() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {"renew": 15.0}
        step = await world.begin("order", {"work": 55.0})
        assert (await world.answer(step, {"place": EU})).text == "eu"
        assert store.times("renew") == [10, 30, 50]

    simulated(play, order)


def test_a_round_that_cannot_be_given_back_is_tried_again_with_pauses() -> None:
    async def failing(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        raise ZeroDivisionError

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("failing")
        store.fails = {"release": 4}
        await world.answer(step, {"place": EU})
        assert store.times("release") == [0]
        await asyncio.sleep(10)
        assert store.times("release") == [0, 0.05, 0.15, 0.35, 0.75]

    simulated(play, failing)


def test_a_server_that_ends_does_not_wait_long_for_a_store_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        raise ZeroDivisionError

    async def play(world: Rounds, store: Watched) -> None:
        server = world.make()
        async with server.running():
            step = await world.begin("failing", server=server)
            store.takes = {"release": 1e9}
            sent = asyncio.create_task(world.answer(step, {"place": EU}, server=server))
            await asyncio.sleep(5)
            sent.cancel()
            await asyncio.wait({sent})
        assert asyncio.get_running_loop().time() == pytest.approx(7)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    simulated(play, failing, store=Elsewhere)
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_an_effect_is_kept_to_the_deadline_of_its_call_and_for_its_window_beyond() -> None:
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("own", lambda: 1)
        await ctx.once("shared", lambda: 1, scope="arguments", window=600)
        return "paid"

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        await asyncio.sleep(100)
        assert (await world.answer(step, {"place": EU})).text == "paid"
        day = 86_400 - 100
        assert store.options("begin", "ttl") == [pytest.approx(day), pytest.approx(day + 600)]
        assert store.options("begin", "lease") == [30, 30]
        assert store.options("begin", "window") == [None, 600]
        one, other = store.options("begin", "nonce")
        assert one != other

    simulated(play, pay)


def test_an_effect_of_unknown_end_is_settled_by_what_the_world_says_and_then_given() -> None:
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", forever, verify=lambda: "paid before")

    async def forever() -> str:
        entered.append(1)
        return await asyncio.sleep(1e9, "never")

    entered: list[int] = []

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(1)
        [call] = await store.calls()
        [row] = await store.effects(call.call)
        assert row.state == "started"
        store.fails = {"hold": 10, "renew": 10}  # the process hangs: its leases end
        await asyncio.sleep(60)
        second = await world.answer(step, {"place": EU}, server=world.make())
        assert second.text == "paid before"
        assert entered == [1]
        first.cancel()

    simulated(play, pay)


def test_a_verify_that_hangs_is_given_up_after_the_time_of_a_lease() -> None:
    async def forever() -> str:
        return await asyncio.sleep(1e9, "never")

    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", forever, verify=forever)

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        first = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(1)
        store.fails = {"hold": 10, "renew": 10}  # the process hangs: its leases end
        await asyncio.sleep(60)
        before = asyncio.get_running_loop().time()
        second = await world.answer(step, {"place": EU}, server=world.make())
        assert "its end is not known" in second.text
        assert asyncio.get_running_loop().time() - before == pytest.approx(30)
        first.cancel()

    simulated(play, pay)


@pytest.mark.parametrize("store", [Watched, Elsewhere])
def test_a_round_that_could_not_be_recorded_is_free_at_once(store: type[Watched]) -> None:
    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {}
        step = await world.begin("order")
        store.fails = {"record": 1}
        assert (await world.answer(step, {"place": EU})).code == -32603
        assert (await world.answer(step, {"place": EU})).text == "eu"
        assert asyncio.get_running_loop().time() < 1
        assert store.options("release", "counts") == [False]

    simulated(play, order, store=store)


def test_a_journal_that_cannot_be_fetched_uses_up_no_try() -> None:
    async def large(ctx: Context) -> str:
        await ctx.memo("photo", lambda: "x" * 100_000)
        return (await ctx.elicit("Where?", Place)).region

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("large")
        store.fails = {"fetch": 1}
        assert (await world.answer(step, {"place": EU})).code == -32603
        assert store.options("release", "counts") == [False]
        assert (await world.answer(step, {"place": EU})).text == "eu"

    simulated(play, large)


def test_a_store_that_fails_while_another_process_has_the_round_is_unavailable() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order", {"work": 20.0})
        first = asyncio.create_task(world.answer(step, {"place": EU}, server=world.make()))
        await asyncio.sleep(5)
        store.fails = {"settled": 1}
        assert (await world.answer(step, {"place": EU}, server=world.make())).code == -32603
        assert store.options("settled", "timeout") == [30]
        again = await world.answer(step, {"place": EU}, server=world.make())
        assert again.text == (await first).text == "eu"

    simulated(play, order)


class Gone(Watched):
    """A store that has lost every round when it is to be recorded, and begins none anew."""

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs["ttl"] <= 0:
            return Spent("expired")
        return await super().claim(*args, **kwargs)

    async def record(self, *args: Any, **kwargs: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (2.0, "the round was lost to another process and is gone"),
        (5.5, "expired 0 s ago (is a clock wrong?)"),
        (65.0, "expired 60 s ago (is a clock wrong?)"),
    ],
)
def test_the_log_tells_a_round_that_was_lost_from_one_that_came_too_late(
    caplog: pytest.LogCaptureFixture, work: float, told: str
) -> None:
    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order", {"work": work})
        await asyncio.sleep(595)
        assert (await world.answer(step, {"place": EU})).code == -32602

    simulated(play, order, store=Gone)
    assert f"token refused (tool:order): {told}" in caplog.messages


def test_a_round_whose_client_left_goes_on_until_the_last_who_waits_for_it_has_left() -> None:
    def send(server: Server, step: RoundTrip) -> tuple[asyncio.Task[bytes], ConnectedChannel]:
        meta = {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: EVERYTHING}
        answer = {"place": {"action": "accept", "content": EU}}
        params = {"name": "order", "arguments": {"work": 60.0}, "requestState": step.token}
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {**params, "inputResponses": answer, "_meta": meta},
        }
        channel = ConnectedChannel()
        request = admit(message, server.dispatcher.served, ANN, channel=channel)
        task = asyncio.create_task(server.dispatcher.dispatch(request))
        channel.runs_in(task.cancel)
        return task, channel

    async def play(world: Rounds, store: Watched) -> None:
        server = world.make()
        step = await world.begin("order", {"work": 60.0}, server=server)
        first, channel = send(server, step)
        await asyncio.sleep(1)
        second, _ = send(server, step)
        third, _ = send(server, step)
        await asyncio.sleep(1)
        channel.disconnect()
        second.cancel()
        await asyncio.sleep(1)
        assert not first.done()
        third.cancel()
        await asyncio.sleep(1)
        assert first.cancelled()
        assert store.options("release", "counts") == [False]

    simulated(play, order)


def test_a_round_that_is_not_claimed_yet_is_not_renewed() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        store.takes = {}
        first, second = [await world.begin("order", {"work": 25.0}) for _ in range(2)]
        running = asyncio.create_task(world.answer(first, {"place": EU}))
        await asyncio.sleep(5)
        store.takes = {"claim": 10.0}
        await asyncio.gather(running, world.answer(second, {"place": EU}))
        assert store.times("renew") == [10, 20, 20, 30, 40]

    simulated(play, order, store=Elsewhere)


def test_an_effect_that_an_operator_settled_while_it_hung_is_not_ours_to_report() -> None:
    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return await ctx.once("pay", asyncio.sleep, 50.0, "ours")

    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("pay")
        store.fails = {"hold": 10}
        running = asyncio.create_task(world.answer(step, {"place": EU}))
        await asyncio.sleep(40)
        [call] = await store.calls()
        assert await store.settle_uncertain(call.call, "pay", result=b'"theirs"')
        assert "its end is not known" in (await running).text
        assert (await world.answer(step, {"place": EU})).text == "theirs"

    simulated(play, pay)


def test_a_call_whose_effect_only_the_ledger_knows_is_not_begun_again_by_another_version() -> None:
    version = ["1"]

    async def pay(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.once("pay", lambda: "paid", retry=True)
        raise ZeroDivisionError

    def make(**kit: Any) -> Server:
        return serving(pay, version=version[0], on_version_change="restart")(**kit)

    async def main() -> None:
        async with Rounds(make, principal=ANN) as world:
            step = await world.begin("pay")
            assert "failed" in (await world.answer(step, {"place": EU})).text
            version[0] = "2"
            assert "version '2'" in (await world.answer(step, {"place": EU})).text

    asyncio.run(main())


def test_duplicates_of_a_round_that_is_lost_again_and_again_all_hear_of_it() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        step = await world.begin("order", {"work": 1.0})
        both = await asyncio.gather(*(world.answer(step, {"place": EU}) for _ in range(2)))
        assert [done.code for done in both] == [-32603, -32603]

    simulated(play, order, store=Forgetful)


def test_what_a_store_elsewhere_has_done_is_not_kept() -> None:
    async def play(world: Rounds, store: Watched) -> None:
        server = world.make()
        step = await world.begin("order", server=server)
        assert (await world.answer(step, {"place": EU}, server=server)).text == "eu"
        await asyncio.sleep(1)
        assert not server._engine.redemptions._state().background

    simulated(play, order, store=Elsewhere)
