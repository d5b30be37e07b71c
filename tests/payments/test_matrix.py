"""A bank that pays and whose reply is lost, and a caller who calls again: it pays at most once.

Every set of options, every way to lose a reply, every store, rounds and tasks, both eras.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from antiphon import Context, Limits, Principal, Seal, Server
from antiphon.ports import Effect, Started, Store
from antiphon.stores.url import open_store
from antiphon.testing import Crash, MortalStore, Process, Rounds
from antiphon.testing.harness import KEY
from tests.legacy.wire import Old, serving
from tests.payments.bank import OPTIONS, TROUBLES, Bank, GarbledReply, option_sets
from tests.servers import opened
from tests.tasks.task_client import CAN, Peer

CERTAIN = {"verify", "retry", "adopt and verify", "scope and verify"}
"""Option sets by which the server finds out itself; with the others an operator does."""


@pytest.fixture
def bank() -> Bank:
    return Bank()


def shop(
    bank: Bank, options: str, *, asks: bool = True, lease: float = 30, **tool: Any
) -> Callable[..., Server]:
    """Return a factory of servers with a tool that asks and pays."""
    of_tool, of_effect = option_sets(bank)[options]

    def make(**world: Any) -> Server:
        world |= {"entropy": secrets.token_bytes}  # calls of their own in a database that is shared
        server = Server("till", limits=Limits(lease=timedelta(seconds=lease)), **world)

        @server.tool(**(tool or of_tool))
        async def pay(ctx: Context, number: int) -> str:
            if asks and not await ctx.approve(f"Pay {number}?"):
                return "not paid"
            return await ctx.once("pay", bank.pay, number, **of_effect)

        return server

    return make


@asynccontextmanager
async def world_of(make: Callable[..., Server], url: str) -> AsyncIterator[Rounds]:
    """Return rounds of a caller nobody else is, so that tests can share a database."""
    person = Principal(issuer="https://id", subject=secrets.token_hex(8))
    async with (
        opened(open_store(url)) as store,
        Rounds(make, store=store, principal=person, fresh=False) as rounds,
    ):
        yield rounds


def store_of(world: Rounds) -> Store:
    assert not isinstance(world.store, str)
    return world.store


async def pay(world: Rounds, number: int = 1, *, server: Server | None = None) -> str:
    """Call the tool and approve."""
    step = await world.begin("pay", {"number": number}, server=server)
    return (await world.answer(step, {"approve": True}, server=server)).text


class DyingStore(MortalStore):
    """The store of a process that dies; knows the claims that it leaves behind."""

    def __init__(self, store: Store, process: Process) -> None:
        super().__init__(store, process)
        self._begun = list[tuple[str, int]]()

    def for_server(self, server: str) -> "DyingStore":
        self._store = self._store.for_server(server)
        return self

    async def begin(self, effect: Effect, **how: Any) -> Any:
        begun = await self.__getattr__("begin")(effect, **how)
        if isinstance(begun, Started):
            self._begun.append((effect.id, begun.fence))
        return begun

    async def end_leases(self) -> None:
        """Let the leases of the dead process end now."""
        for effect, fence in self._begun:
            await self._store.hold(effect, fence, lease=0.0)


def assert_told_to_stop(text: str) -> None:
    """The model learns what may have happened, that it must not call again, and what is next."""
    assert "may have happened" in text
    assert "Do not call this tool again" in text
    assert "operator" in text
    assert "retry=" not in text
    assert "verify=" not in text
    assert "antiphon calls" not in text


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_lost_reply_and_a_second_call_pay_once(
    store_url: str, bank: Bank, options: str
) -> None:
    async with world_of(shop(bank, options), store_url) as world:
        for number, trouble in enumerate(TROUBLES, start=1):
            bank.loses, bank.trouble = 1, TROUBLES[trouble]
            first, second = await pay(world, number), await pay(world, number)
            assert len(bank.paid) == number, trouble
            if options in CERTAIN:
                assert (first, second) == (f"P-{number}", f"P-{number}"), trouble
            else:
                assert_told_to_stop(first)
                assert_told_to_stop(second)


@pytest.mark.parametrize("options", OPTIONS)
async def test_an_operator_settles_a_lost_reply_and_the_next_call_gets_the_outcome(
    store_url: str, bank: Bank, options: str
) -> None:
    bank.loses = 0 if options in CERTAIN else 1
    async with world_of(shop(bank, options), store_url) as world:
        await pay(world)
        for row in await store_of(world).calls(uncertain=True):
            if (world.principal.subject or "?") in row.caller:
                assert await store_of(world).settle_uncertain(row.call, "pay", result=None)
        assert (await pay(world)).startswith("P-")


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_crash_around_the_payment_and_a_second_call_pay_once(
    store_url: str, bank: Bank, options: str
) -> None:
    async with world_of(shop(bank, options), store_url) as world:
        for number, when in enumerate(("after", "before"), start=1):
            text = await crash_and_call_again(world, bank, number, when)
            if options in CERTAIN:
                assert text == f"P-{number}", when
            else:
                assert_told_to_stop(text)
            assert len(bank.paid) == (number if options in CERTAIN else 1), when


async def crash_and_call_again(world: Rounds, bank: Bank, number: int, when: str) -> str:
    """Let a process die before or after a payment is booked; returns what the next call says."""
    process = Process()

    def die() -> bool:
        process.alive = False
        return True

    store = DyingStore(store_of(world), process)
    setattr(bank, when, die)
    with contextlib.suppress(Crash):
        await pay(world, number, server=world.make(store=store))
    setattr(bank, when, lambda: None)
    await store.end_leases()
    return await pay(world, number)


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_crash_after_the_payment_and_before_the_reply_pays_once(
    store_url: str, bank: Bank, options: str
) -> None:
    async with world_of(shop(bank, options, lease=0.2), store_url) as world:
        for points in (1, 2):
            process = Process()

            def soon(process: Process = process, points: int = points) -> None:
                process.crash_in(points)

            bank.after = soon
            dying = world.make(store=MortalStore(store_of(world), process))
            with contextlib.suppress(Crash):
                await pay(world, points, server=dying)
            bank.after = lambda: None
            await pay(world, points)
            assert len(bank.paid) == points


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_task_and_an_equal_task_pay_once(store_url: str, bank: Bank, options: str) -> None:
    ada = Principal(issuer="https://id", subject=secrets.token_hex(8))
    make = shop(bank, options, asks=False, task="required")
    server = make(store=store_url, seal=Seal(keys=[KEY]))
    async with server.running():
        peer = Peer(server, capabilities=CAN, principal=ada)
        for number, trouble in enumerate(("timeout", "parsing"), start=1):
            bank.loses, bank.trouble = 1, TROUBLES[trouble]
            tasks = [await told(peer, await peer.begin("pay", number=number)) for _ in range(2)]
            assert len(bank.paid) == number, trouble
            for task in tasks:
                if options in CERTAIN:
                    assert task["result"]["content"][0]["text"] == f"P-{number}"
                elif trouble == "timeout":
                    assert "waiting for an operator" in task["statusMessage"]
                else:
                    assert_told_to_stop(task["result"]["content"][0]["text"])


async def told(peer: Peer, id: str) -> dict[str, Any]:
    """Wait until a task has ended, or waits for an operator."""

    def known(task: dict[str, Any]) -> bool:
        return task["status"] != "working" or "operator" in task.get("statusMessage", "")

    return await peer.until(id, known)


@pytest.mark.parametrize("options", OPTIONS)
async def test_a_call_of_a_legacy_session_and_an_equal_one_pay_once(
    store_url: str, bank: Bank, options: str
) -> None:
    person = Principal(issuer="https://id", subject=secrets.token_hex(8))

    def who(scope: Mapping[str, Any]) -> Principal:
        return person

    make = shop(bank, options, asks=False)
    server = make(store=store_url, seal=Seal(keys=[KEY]), principal=who)
    async with serving(server) as url, httpx2.AsyncClient(timeout=30) as http:
        # Two sessions of one person.
        clients = [await Old(http, url, "2025-11-25").open() for _ in range(2)]
        for number, trouble in enumerate(("timeout", "parsing"), start=1):
            bank.loses, bank.trouble = 1, TROUBLES[trouble]
            texts = [await client.text("pay", number=number) for client in clients]
            assert len(bank.paid) == number, trouble
            for text in texts:
                if options in CERTAIN:
                    assert text == f"P-{number}"
                else:
                    assert_told_to_stop(text)


async def test_callers_that_look_alike_are_told_what_is_not_protected(
    bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    bank.loses = 1
    world = Rounds(shop(bank, "plain"), principal=Principal(transport="http"), fresh=False)
    async with world:
        text = await pay(world)
    assert_told_to_stop(text)
    assert "cannot keep a second call from doing it again" in text
    assert any("nothing keeps a second call" in message for message in caplog.messages)


async def test_other_arguments_and_other_callers_are_other_payments(bank: Bank) -> None:
    bank.loses = 1
    ada, bob = (Principal(issuer="https://id", subject=name) for name in ("ada", "bob"))
    async with Rounds(shop(bank, "plain"), principal=ada, fresh=False) as world:
        assert_told_to_stop(await pay(world))
        assert await pay(world, 2) == "P-2"
        step = await world.begin("pay", {"number": 1}, principal=bob)
        assert (await world.answer(step, {"approve": True}, principal=bob)).text == "P-3"


async def test_a_caller_who_knows_the_result_may_pay_again(store_url: str, bank: Bank) -> None:
    async with world_of(shop(bank, "plain"), store_url) as world:
        assert [await pay(world) for _ in range(3)] == ["P-1", "P-2", "P-3"]


async def test_retries_come_to_an_end_and_the_payment_is_uncertain(bank: Bank) -> None:
    bank.loses = 4
    async with Rounds(
        shop(bank, "retry"), principal=Principal(subject="ada"), fresh=False
    ) as world:
        assert_told_to_stop(await pay(world))
        assert await pay(world) == "P-1"
    assert len(bank.paid) == 1


async def test_what_was_not_sent_may_be_tried_again(store_url: str, bank: Bank) -> None:
    def refuse() -> None:
        raise ConnectionRefusedError("nobody listens")

    bank.before = refuse
    async with world_of(shop(bank, "plain"), store_url) as world:
        text = await pay(world)
        assert "did not happen" in text
        assert "tried again" in text
        bank.before = lambda: None
        assert await pay(world) == "P-1"


async def test_verify_that_finds_nothing_lets_the_payment_be_tried_again(
    store_url: str, bank: Bank
) -> None:
    def lose() -> None:
        raise TimeoutError("the request was lost")

    bank.before = lose
    async with world_of(shop(bank, "verify"), store_url) as world:
        assert "did not happen" in await pay(world)
        bank.before = lambda: None
        assert await pay(world) == "P-1"
    assert len(bank.asked) == 1


async def test_exceptions_of_the_author_count_as_unknown(bank: Bank) -> None:
    bank.loses, bank.trouble = 1, TROUBLES["garbled"]

    def make(**world: Any) -> Server:
        server = Server("till", **world)

        @server.tool
        async def of_effect(ctx: Context) -> str:
            return await ctx.once("pay", bank.pay, 1, unknown_after=GarbledReply)

        return server

    async with Rounds(make, principal=Principal(subject="ada"), fresh=False) as world:
        assert "its end is not known" in (await world.begin("of_effect")).text
