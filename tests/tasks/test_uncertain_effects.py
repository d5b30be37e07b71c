"""A task that meets an effect of unknown end waits, says for what, and goes on when it is settled.

Another worker that began an effect and died is imitated by its claim; test_crashes kills real ones.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon import Context, EffectUncertain
from antiphon.engine.environment import effect_place
from antiphon.engine.serialization.codec import function_name
from antiphon.ports import Effect
from antiphon.protocol.digest import canonical, short_digest
from antiphon.tasks import task_run
from tests.tasks.task_client import Name, Peer, accept, running

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str | None]:
    match request.param:
        case "memory":
            yield None
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'ledger.db'}"
        case _:
            yield request.getfixturevalue("postgres_dsn")


def pay() -> str:
    calls.append("pay")
    return "paid"


def ship() -> str:
    calls.append("ship")
    return "shipped"


async def shop(ctx: Context) -> str:
    await ctx.report(1, 3, "at the till")
    person = await ctx.elicit("Sure?", Name, key="who")
    paid = await ctx.once("pay", pay)
    return f"{person.name} {paid} {await ctx.once('ship', ship)}"


async def call_of(peer: Peer, id: str) -> str:
    service: Any = peer.server._tasks
    return (await service.opened(await service.store.task(id))).call


async def began(peer: Peer, call: str, key: str, fn: Callable[..., Any]) -> None:
    """Begin an effect like a worker that dies in it."""
    service: Any = peer.server._tasks
    effect = Effect(f"{call}/{key}", call, key, function_name(fn), short_digest(canonical([])))
    await service.store.begin(effect, lease=0.0, ttl=600, under=None, retry=False)


async def settle(peer: Peer, call: str, key: str, result: Any | None) -> bool:
    environment = peer.server._tasks.environment  # pyright: ignore[reportOptionalMemberAccess]
    sealed = None
    if result is not None:
        sealed = await environment.protect(msgspec.json.encode(result), effect_place(call, key))
    return await environment.store.settle_uncertain(call, key, result=sealed)


async def waiting(peer: Peer, id: str) -> dict[str, Any]:
    return await peer.until(id, lambda task: "operator" in task.get("statusMessage", ""))


@pytest.mark.parametrize("happened", [True, False])
async def test_a_task_whose_effect_is_uncertain_waits_until_it_is_settled(
    store: str | None, happened: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(shop, store=store) as peer:
        id = await peer.begin("shop")
        await peer.asked(id, "who")
        call = await call_of(peer, id)
        await began(peer, call, "pay", pay)
        with caplog.at_level(logging.ERROR, "antiphon"):
            await peer.answer(id, who=accept(name="Ada"))
            task = await waiting(peer, id)
        assert task["status"] == "working"
        assert "'pay'" in task["statusMessage"]
        assert call in task["statusMessage"]
        said = [record.message for record in caplog.records if id in record.message]
        assert len(said) == 1
        assert f"effect 'pay' of call {call} is uncertain" in said[0]
        assert "`antiphon calls settle`" in said[0]
        service: Any = peer.server._tasks
        row = await service.store.task(id)
        assert not row.leased
        ready = service.store.runs_ready(server=service.server, timeout=0.2)
        await asyncio.wait_for(ready, 20)
        assert await service.store.claim_runs(server=service.server, limit=1, lease=1.0) == []

        assert await settle(peer, call, "pay", "found paid" if happened else None)
        done = await peer.ended(id)
    expected = "Ada found paid shipped" if happened else "Ada paid shipped"
    assert done["result"]["content"][0]["text"] == expected
    assert done["statusMessage"] == "at the till"
    assert calls == (["ship"] if happened else ["pay", "ship"])


async def test_a_task_waits_for_one_uncertain_effect_after_the_other(store: str | None) -> None:
    async with running(shop, store=store) as peer:
        id = await peer.begin("shop")
        await peer.asked(id, "who")
        call = await call_of(peer, id)
        await began(peer, call, "pay", pay)
        await began(peer, call, "ship", ship)
        await peer.answer(id, who=accept(name="Ada"))
        assert "'pay'" in (await waiting(peer, id))["statusMessage"]
        await settle(peer, call, "pay", "a")
        await peer.until(id, lambda task: "'ship'" in task["statusMessage"])
        await settle(peer, call, "ship", "b")
        assert await peer.text(id) == "Ada a b"
    assert calls == []


async def test_a_waiting_task_can_be_cancelled(store: str | None) -> None:
    async with running(shop, store=store) as peer:
        id = await peer.begin("shop")
        await peer.asked(id, "who")
        await began(peer, await call_of(peer, id), "pay", pay)
        await peer.answer(id, who=accept(name="Ada"))
        await waiting(peer, id)
        await peer.cancel(id)
        assert (await peer.get(id))["status"] == "cancelled"


@pytest.mark.parametrize("happened", [True, False])
async def test_an_effect_after_an_uncertain_one_does_not_keep_the_task_from_going_on(
    store: str | None, happened: bool
) -> None:
    async def stubborn(ctx: Context) -> str:
        await ctx.elicit("Sure?", Name, key="who")
        try:
            return await ctx.once("pay", pay)
        except EffectUncertain:
            await ctx.once("ship", ship)
            raise

    async with running(stubborn, store=store) as peer:
        id = await peer.begin("stubborn")
        await peer.asked(id, "who")
        call = await call_of(peer, id)
        await began(peer, call, "pay", pay)
        await peer.answer(id, who=accept(name="Ada"))
        assert "'pay'" in (await waiting(peer, id))["statusMessage"]
        await settle(peer, call, "pay", "found paid" if happened else None)
        assert await peer.text(id) == ("found paid" if happened else "paid")
    assert calls == (["ship"] if happened else ["ship", "pay"])


@pytest.mark.parametrize("happened", [True, False])
async def test_a_task_that_did_something_else_instead_stays_on_its_way(
    store: str | None, happened: bool
) -> None:
    async def resourceful(ctx: Context) -> str:
        await ctx.elicit("Sure?", Name, key="who")
        try:
            done = await ctx.once("pay", pay)
        except EffectUncertain:
            done = await ctx.once("ship", ship)
        await ctx.elicit("And now?", Name, key="then")
        return done

    async with running(resourceful, store=store) as peer:
        id = await peer.begin("resourceful")
        await peer.asked(id, "who")
        call = await call_of(peer, id)
        await began(peer, call, "pay", pay)
        await peer.answer(id, who=accept(name="Ada"))
        await peer.asked(id, "then")
        await settle(peer, call, "pay", "found paid" if happened else None)
        await peer.answer(id, then=accept(name="Bob"))
        assert await peer.text(id) == "shipped"
    assert calls == ["ship"]


async def test_a_task_waits_for_every_effect_that_is_uncertain_at_once(store: str | None) -> None:
    parts = {letter: _part(letter) for letter in "abcdef"}

    async def six(ctx: Context) -> str:
        await ctx.elicit("Sure?", Name, key="who")
        async with asyncio.TaskGroup() as all_:
            made = [all_.create_task(ctx.once(key, fn)) for key, fn in parts.items()]
        return " ".join(one.result() for one in made)

    async with running(six, store=store) as peer:
        id = await peer.begin("six")
        await peer.asked(id, "who")
        call = await call_of(peer, id)
        for key, fn in parts.items():
            await began(peer, call, key, fn)
        await peer.answer(id, who=accept(name="Ada"))
        named = (await waiting(peer, id))["statusMessage"]
        assert "effect" in named
        assert call in named
        for key in parts:
            await settle(peer, call, key, f"{key} by hand")
        assert await peer.text(id) == " ".join(f"{key} by hand" for key in parts)
    assert calls == []


def _part(letter: str) -> Callable[[], str]:
    def part() -> str:
        calls.append(letter)
        return letter

    return part


async def test_an_uncertain_effect_that_is_shared_with_another_call_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_run, "_LOOK_AGAIN", 0.2)

    async def buy(ctx: Context) -> str:
        return await ctx.once("pay", pay, scope="arguments", window=60)

    async with running(buy) as peer:
        store: Any = peer.server._tasks.store  # pyright: ignore[reportOptionalMemberAccess]
        real, other = store.begin, list[Effect]()

        async def begin(effect: Effect, **how: Any) -> Any:
            if not other:
                other.append(msgspec.structs.replace(effect, call="other-call"))
                await real(other[0], **{**how, "lease": 0.0, "under": None, "nonce": b"other"})
            return await real(effect, **how)

        store.begin = begin
        id = await peer.begin("buy")
        assert "other-call" in (await waiting(peer, id))["statusMessage"]
        await settle(peer, "other-call", "pay", "paid once")
        assert await peer.text(id) == "paid once"
    assert calls == []
