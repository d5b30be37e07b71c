"""What callers can make a server keep is bounded in bytes, and nobody takes what others need."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, Limits, Principal, Server
from antiphon.errors import StoreFull
from antiphon.ports import About, Claimed, Effect, Started
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.quotas import REFUSED, Quota
from antiphon.stores.memory import MemoryStore
from tests.legacy.wire import Old, serving
from tests.requirements.demo_server import Peer, accept

LEGACY = "2025-11-25"
MIB = 1024 * 1024


class Name(BaseModel):
    name: str


def who(scope: Mapping[str, Any]) -> Principal:
    headers = dict(scope["headers"])
    return Principal(subject=headers.get(b"x-user", b"").decode())


def desk(**options: Any) -> Server:
    server = Server("desk", principal=who, **options)

    @server.tool
    async def greet(ctx: Context, text: str = "") -> str:
        return (await ctx.elicit("Your name?", Name)).name

    @server.tool(park=60)
    async def keep(ctx: Context, text: str) -> str:
        return f"{(await ctx.elicit('Your name?', Name)).name} {len(text)}"

    @server.tool(task="allowed")
    async def job(ctx: Context, text: str = "") -> str:
        return (await ctx.elicit("Your name?", Name)).name

    return server


# --- the account --------------------------------------------------------------------------------


def test_one_caller_has_a_share_and_those_without_authentication_have_half() -> None:
    quota = Quota(10, 3)
    quota.add("ada", 3)
    assert not quota.fits("ada", 1)
    assert quota.fits("anonymous http", 5)
    assert not quota.fits("anonymous http", 6)
    quota.add("anonymous http", 5)
    assert quota.fits("bob", 2)
    assert not quota.fits("bob", 3)
    quota.remove("ada", 3)
    assert quota.fits("bob", 3)


def test_a_name_that_an_author_gives_is_not_taken_for_callers_without_authentication() -> None:
    quota = Quota(10, 3)
    assert quota.share(Principal().owner) == 5
    assert quota.share(Principal(issuer="anonymous", subject="http").owner) == 3


# --- legacy sessions ----------------------------------------------------------------------------


@asynccontextmanager
async def session(url: str, user: str) -> AsyncIterator[Old]:
    async with httpx2.AsyncClient(timeout=20, headers={"x-user": user}) as http:
        yield await Old(http, url, LEGACY).open()


async def handshake(http: httpx2.AsyncClient, url: str, **headers: str) -> httpx2.Response:
    params = {
        "protocolVersion": LEGACY,
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accepts = {"accept": "application/json, text/event-stream"}
    return await http.post(url, json=message, headers={**accepts, **headers})


async def test_sessions_without_authentication_leave_half_of_all_to_others() -> None:
    server = desk(limits=Limits(sessions=4, sessions_per_principal=2))
    async with serving(server) as url, httpx2.AsyncClient(timeout=20) as http:
        for _ in range(10):
            assert (await handshake(http, url)).status_code == 200
        assert server.stats()["sessions"] == 2
        for _ in range(2):
            assert (await handshake(http, url, **{"x-user": "ada"})).status_code == 200
        assert server.stats()["sessions"] == 4


async def test_an_unused_session_gives_way_before_one_that_was_used() -> None:
    server = desk(limits=Limits(sessions=2, sessions_per_principal=2))
    async with serving(server) as url, session(url, "ada") as used:
        assert (await used.call("ping"))["result"] == {}
        for _ in range(5):
            assert (await handshake(used.http, url, **{"x-user": "ada"})).status_code == 200
        assert (await used.call("ping"))["result"] == {}


async def test_what_a_client_introduces_itself_with_counts() -> None:
    server = desk(limits=Limits(held_bytes_per_principal=MIB))
    async with serving(server) as url, httpx2.AsyncClient(timeout=20) as http:
        http.headers["x-user"] = "ada"
        large = {"experimental": {"x": {"y": "z" * MIB}}}
        with pytest.raises(AssertionError, match=REFUSED):
            await Old(http, url, LEGACY).open(large)
        assert server.stats()["sessions"] == 0


async def test_what_a_session_subscribes_to_counts() -> None:
    server = desk(limits=Limits(held_bytes_per_principal=256 * 1024))

    @server.resource("note://{name}")
    async def note(name: str) -> str:
        return name

    async with serving(server) as url, session(url, "ada") as client:
        answers = [
            await client.call("resources/subscribe", {"uri": f"note://{number}{'x' * 7_000}"})
            for number in range(10)
        ]
    assert "result" in answers[0]
    assert answers[-1]["error"]["message"] == REFUSED


# --- legacy calls -------------------------------------------------------------------------------


async def leave_after_the_question(client: Old, text: str) -> None:
    request = client.request("tools/call", {"name": "greet", "arguments": {"text": text}})
    async with client.stream(request) as messages:
        assert (await anext(messages))["method"] == "elicitation/create"


async def test_legacy_calls_whose_client_left_are_bounded_in_number() -> None:
    server = desk(limits=Limits(legacy_calls=4, legacy_calls_per_principal=2))
    async with serving(server) as url, session(url, "ada") as ada, session(url, "bob") as bob:
        for _ in range(2):
            await leave_after_the_question(ada, "")
        refused = await ada.call("tools/call", {"name": "greet", "arguments": {}})
        assert refused["error"]["message"] == REFUSED
        await leave_after_the_question(bob, "")


async def test_legacy_calls_whose_client_left_are_bounded_in_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = desk(limits=Limits(held_bytes_per_principal=4 * MIB))
    async with serving(server) as url, session(url, "ada") as ada:
        await leave_after_the_question(ada, "x" * 300_000)
        refused = await ada.call(
            "tools/call", {"name": "greet", "arguments": {"text": "x" * 300_000}}
        )
        assert refused["error"]["message"] == REFUSED
        assert (await ada.call("tools/list"))["result"]["tools"]
    (line,) = [r.getMessage() for r in caplog.records if "no more legacy calls" in r.getMessage()]
    assert "ada" in line
    assert "held_bytes_per_principal" in line


async def test_a_legacy_call_that_has_ended_counts_no_more() -> None:
    server = desk(limits=Limits(legacy_calls=1, legacy_calls_per_principal=1))
    async with serving(server) as url, session(url, "ada") as ada:
        ada.answer = lambda _: {"result": {"action": "accept", "content": {"name": "Ada"}}}
        for _ in range(3):
            assert await ada.text("greet") == "Ada"


# --- parked handlers ----------------------------------------------------------------------------


async def test_parked_handlers_are_bounded_in_bytes_and_their_calls_go_on() -> None:
    server = desk(limits=Limits(held_bytes_per_principal=4 * MIB))
    peer = Peer(server.asgi(), {"x_user": "ada"})
    text = "x" * 100_000
    steps = [(await peer.call("keep", {"text": text})).result for _ in range(20)]
    assert 1 <= server.stats()["parked"] <= 5
    for step in steps:
        answers = {key: accept(name="Ada") for key in step["inputRequests"]}
        done = await peer.call(
            "keep", {"text": text}, requestState=step["requestState"], inputResponses=answers
        )
        assert done.result["content"][0]["text"] == "Ada 100000"


async def test_one_caller_pushes_out_no_parked_handler_of_another() -> None:
    server = desk(limits=Limits(parked=4, parked_per_principal=2))
    ada, bob = (Peer(server.asgi(), {"x_user": name}) for name in ("ada", "bob"))
    await ada.call("keep", {"text": ""})
    for _ in range(10):
        await bob.call("keep", {"text": ""})
    assert server.stats()["parked"] == 3


# --- tasks --------------------------------------------------------------------------------------

CAPABLE = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}


async def test_the_arguments_of_a_task_are_bounded() -> None:
    peer = Peer(desk().asgi(), {"x_user": "ada"})
    fits = await peer.call("job", {"text": "x" * 60_000}, capabilities=CAPABLE)
    assert fits.result["resultType"] == "task"
    refused = await peer.call("job", {"text": "x" * 70_000}, capabilities=CAPABLE)
    assert "may take 65536 bytes" in refused.error["message"]


async def test_a_task_keeps_of_the_capabilities_what_is_ever_looked_for() -> None:
    store = MemoryStore()
    server = desk(store=store)
    peer = Peer(server.asgi(), {"x_user": "ada"})
    large = {**CAPABLE, "experimental": {"x": "y" * MIB}}
    for _ in range(5):
        created = await peer.call("job", {}, capabilities=large)
        id = created.result["taskId"]
        new = await store.task(id)
        assert new is not None
        assert len(new.state) < 2_000
        shown = await peer.ask("tasks/get", taskId=id, capabilities=large, headers={"mcp_name": id})
        assert shown.result["taskId"] == id
        row = await store.task(id)
        assert row is not None
        assert len(row.state) < 2_000


async def test_the_memory_store_bounds_tasks_in_bytes_for_each_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = desk(store=MemoryStore(task_bytes=200_000))
    ada, bob = (Peer(server.asgi(), {"x_user": name}) for name in ("ada", "bob"))
    await ada.call("job", {"text": "x" * 60_000}, capabilities=CAPABLE)
    refused = await ada.call("job", {"text": "x" * 60_000}, capabilities=CAPABLE)
    assert refused.error["message"] == "the server's store is full; try again later"
    assert "one caller may hold half" in caplog.text
    kept = await bob.call("job", {"text": "x" * 60_000}, capabilities=CAPABLE)
    assert kept.result["resultType"] == "task"


# --- effects ------------------------------------------------------------------------------------


async def begin(store: MemoryStore, id: str, caller: str) -> Any:
    return await store.begin(
        Effect(id, f"call {id}", "pay", "pay", b""),
        lease=30,
        ttl=86_400,
        under=None,
        retry=False,
        about=About("pay", caller),
    )


async def test_one_caller_leaves_half_of_the_effects_of_the_memory_store_to_others() -> None:
    store = MemoryStore(effects=4)
    for number in range(2):
        assert isinstance(await begin(store, f"{number}", "ada"), Started)
    with pytest.raises(StoreFull, match=r"full for 'ada'.*effects.*half"):
        await begin(store, "2", "ada")
    assert isinstance(await begin(store, "3", "bob"), Started)


async def test_one_caller_leaves_half_of_the_bytes_of_effects_to_others() -> None:
    store = MemoryStore(effect_bytes=100)
    first = await begin(store, "0", "ada")
    await store.settle("0", first.fence, result=bytes(60), error=None)
    with pytest.raises(StoreFull, match=r"full for 'ada'.*bytes"):
        await begin(store, "1", "ada")
    assert isinstance(await begin(store, "2", "bob"), Started)
    await store.end_call("call 0", ttl=0)
    assert isinstance(await begin(store, "1", "ada"), Started)


# --- redeemed rounds ----------------------------------------------------------------------------


async def redeem(peer: Peer, name: str) -> Any:
    asked = await peer.call("greet")
    return await peer.again(asked, "greet", None, {"name": accept(name=name)})


@pytest.mark.parametrize("first", [{"x_user": "ada"}, {}], ids=["ada", "anonymous"])
async def test_one_caller_leaves_half_of_the_redeemed_rounds_to_others(
    first: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    app = desk(store=MemoryStore(rounds=8)).asgi()
    greedy, bob = Peer(app, first), Peer(app, {"x_user": "bob"})
    for number in range(4):
        assert (await redeem(greedy, f"{number}")).result["content"][0]["text"] == f"{number}"
    refused = await redeem(greedy, "4")
    assert refused.error["message"] == "the server's store is full; try again later"
    assert "this caller holds 4 redeemed rounds, and one caller may hold half, 4" in caplog.text
    for number in range(4):
        assert (await redeem(bob, f"{number}")).result["content"][0]["text"] == f"{number}"


async def test_expired_rounds_of_a_caller_make_space_for_those_of_the_same_caller() -> None:
    now = 1_000.0
    store = MemoryStore(rounds=4, clock=lambda: now)

    async def claim(call: str, caller: str) -> None:
        about = About("greet", caller)
        found = await store.claim(call, 2, b"", lease=5, ttl=10, tries=3, about=about)
        assert isinstance(found, Claimed)
        await store.record(call, 2, found.fence, b"out", ttl=10)

    for turn in range(3):
        for caller in ("ada", "bob"):
            for number in range(2):
                await claim(f"{turn} {caller} {number}", caller)
            with pytest.raises(StoreFull):
                await claim(f"{turn} {caller} 2", caller)
        now += 60
