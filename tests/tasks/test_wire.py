"""The rules of the Tasks extension, one by one."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import ConfigError, Context, Elicit, Limits, Seal, Server, ToolError
from antiphon.errors import (
    CAPABILITY_MISSING,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallerError,
    InvalidRequest,
)
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.request import Principal, Request
from antiphon.testing import EVERYTHING, KEY
from tests.tasks.task_client import ADA, BOB, CAN, Name, Peer, Place, accept, running
from tests.transports.wire import mirrored, post, request

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


class Count(BaseModel):
    number: int


async def greet(ctx: Context) -> str:
    """Ask for a name and greet."""
    person = await ctx.elicit("Your name?", Name, key="who")
    return f"Hello, {person.name}!"


async def plain() -> str:
    return "plain"


async def broken() -> str:
    raise ToolError("out of stock")


async def refusing() -> str:
    raise InvalidRequest("no such shelf", code=-32602, data={"shelf": 3})


async def both(ctx: Context) -> str:
    got = await ctx.gather(who=Elicit("Who?", Name), where=Elicit("Where?", Place))
    return f"{got['who'].name} in {got['where'].region}"


@pytest.mark.requirement("TASK-01")
async def test_the_extension_is_declared_in_discovery_without_settings() -> None:
    async with running(plain) as peer:
        found = await peer.send("server/discover")
        assert found["capabilities"]["extensions"] == {TASKS: {}}


@pytest.mark.requirement("TASK-02", "TASK-06")
async def test_a_client_that_takes_tasks_is_given_one_without_asking() -> None:
    async with running(plain) as peer:
        result = await peer.call("plain")
        assert result["resultType"] == "task"
        shown = await peer.until(result["taskId"], "completed")
        assert shown["resultType"] == "complete"


@pytest.mark.requirement("TASK-03")
async def test_a_request_that_does_not_declare_the_extension_is_served_in_the_call() -> None:
    async with running(plain) as peer:
        assert (await peer.call("plain"))["resultType"] == "task"
        peer.capabilities = EVERYTHING
        result = await peer.call("plain")
        assert result["resultType"] == "complete"
        assert result["content"][0]["text"] == "plain"


@pytest.mark.requirement("TASK-04")
async def test_a_tool_that_can_only_be_a_task_is_refused_without_the_extension() -> None:
    ran: list[str] = []

    async def only() -> str:
        ran.append("ran")
        return "done"

    async with running(only, task="required") as peer:
        peer.capabilities = EVERYTHING
        error = await peer.refused("tools/call", name="only", arguments={})
        assert error.code == CAPABILITY_MISSING
        assert error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        message = request(name="only", arguments={}, meta={CAPABILITIES: EVERYTHING})
        answer = await post(peer.server.asgi(), message, mirrored(message))
        assert (answer.status, answer.error["code"]) == (400, CAPABILITY_MISSING)
    assert ran == []


@pytest.mark.requirement("TASK-07", "TASK-46")
async def test_the_handle_is_flat_and_carries_no_details() -> None:
    async with running(greet) as peer:
        result = await peer.call("greet")
        assert set(result) == {
            "resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs",
            "pollIntervalMs", "_meta",
        }  # fmt: skip
        assert result["status"] == "working"
        assert datetime.fromisoformat(result["createdAt"]).tzinfo is not None
        assert result["ttlMs"] == 7 * 24 * 3600 * 1000
        assert isinstance(result["pollIntervalMs"], int)
        await peer.asked(result["taskId"], "who")
        assert "requestState" not in await peer.get(result["taskId"])


@pytest.mark.requirement("TASK-08")
async def test_the_task_is_there_when_its_handle_arrives() -> None:
    async with running(plain, task_runs="workers") as peer:
        ids = await asyncio.gather(*(peer.begin("plain") for _ in range(20)))
        assert len(set(ids)) == 20
        for id in ids:
            assert (await peer.get(id))["status"] == "working"


@pytest.mark.requirement("TASK-09")
async def test_the_task_member_of_old_clients_is_ignored() -> None:
    async with running(plain) as peer:
        result = await peer.send("tools/call", name="plain", arguments={}, task={"ttl": 1})
        assert result["ttlMs"] == 7 * 24 * 3600 * 1000
        peer.capabilities = EVERYTHING
        result = await peer.send("tools/call", name="plain", arguments={}, task={"ttl": 1})
        assert result["resultType"] == "complete"


@pytest.mark.requirement("TASK-20", "TASK-21")
async def test_looking_changes_nothing_and_shows_every_open_ask() -> None:
    async with running(both) as peer:
        id = await peer.begin("both")
        await peer.asked(id, "who", "where")
        first = await peer.get(id)
        assert first == await peer.get(id)
        assert first["inputRequests"]["who"]["method"] == "elicitation/create"
        assert first["inputRequests"]["who"]["params"]["message"] == "Who?"


@pytest.mark.requirement("TASK-22", "TASK-23")
async def test_a_tools_error_is_a_result_and_a_protocol_error_a_failure() -> None:
    async with running(broken, refusing) as peer:
        in_call = Peer(peer.server, capabilities=EVERYTHING)
        task = await peer.ended(await peer.begin("broken"))
        assert task["status"] == "completed"
        assert task["result"] == await in_call.call("broken")
        assert task["result"]["isError"] is True
        assert "error" not in task
        task = await peer.ended(await peer.begin("refusing"))
        assert task["status"] == "failed"
        error = {"code": -32602, "message": "no such shelf", "data": {"shelf": 3}}
        assert task["error"] == error
        assert task["statusMessage"] == "no such shelf"
        assert "result" not in task


@pytest.mark.requirement("TASK-24")
async def test_an_old_task_is_to_be_polled_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_800_000_000.0]
    async with running(greet, clock=lambda: now[0]) as peer:
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        young = (await peer.get(id))["pollIntervalMs"]
        now[0] += 40
        older = (await peer.get(id))["pollIntervalMs"]
        now[0] += 4000
        old = (await peer.get(id))["pollIntervalMs"]
        assert 100 <= young < older < old <= 5000


@pytest.mark.requirement("TASK-25")
async def test_a_task_lives_as_long_as_it_says_and_no_longer() -> None:
    now = [1_800_000_000.0]
    async with running(greet, clock=lambda: now[0], task_ttl=60) as peer:
        result = await peer.call("greet")
        assert result["ttlMs"] == 60_000
        await peer.asked(result["taskId"], "who")
        now[0] += 59
        assert (await peer.get(result["taskId"]))["status"] == "input_required"
        now[0] += 1
        error = await peer.refused("tasks/get", taskId=result["taskId"])
        assert error.code == INVALID_PARAMS


@pytest.mark.requirement("TASK-26")
async def test_a_task_that_is_not_there_is_refused_by_every_method() -> None:
    async with running(plain) as peer:
        for method, more in (
            ("tasks/get", {}),
            ("tasks/update", {"inputResponses": {}}),
            ("tasks/cancel", {}),
        ):
            assert (await peer.refused(method, taskId="nowhere", **more)).code == INVALID_PARAMS


@pytest.mark.parametrize("id", ["a\0b", "\ud800", "G" * 48, "0" * 48 + "\n", "0" * 5000, ""])
async def test_a_name_that_no_task_can_have_is_unknown_and_no_store_is_asked(id: str) -> None:
    async with running(greet) as peer:
        store: Any = peer.server._services.store
        asked: list[str] = []
        store.task = asked.append
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            round = Request(
                method=method, target=id, capabilities=dict(CAN), principal=ADA, params={}
            )
            with pytest.raises(CallerError, match="Unknown or expired task") as refused:
                await peer.server.dispatcher.dispatch(round)
            assert refused.value.code == -32602
        listener = await peer.listen(id)
        assert listener.accepted["taskIds"] == []
        listener.close()
    assert asked == []


@pytest.mark.parametrize("other_key", [False, True])
async def test_a_task_of_another_server_on_the_same_store_is_unknown(
    tmp_path: Path, other_key: bool
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    key = "3c16d3d022ecdd9cec1e7977a7afcc3882d4a4035cc4d894792d955f380e3b0d" if other_key else KEY
    other = Server("another", seal=Seal(keys=[key]), store=url)
    async with running(greet, store=url) as peer, other.running():
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        stranger = Peer(other)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            error = await stranger.refused(method, taskId=id, inputResponses={})
            assert (error.code, error.message) == (-32602, "Unknown or expired task")
        assert (await peer.get(id))["status"] == "input_required"


async def test_integers_beyond_64_bits_pass_through_a_task() -> None:
    wide = 2**200

    async def count(ctx: Context, start: int) -> str:
        more = await ctx.elicit("How many?", Count, key="more")
        return str(start + more.number)

    async with running(count) as peer:
        peer.capabilities = {**CAN, "experimental": {"wide": {"most": -wide}}}
        id = await peer.begin("count", start=wide)
        await peer.asked(id, "more")
        await peer.answer(id, more=accept(number=-wide))
        # A form takes no such number, and says so; nothing else happens.
        asks = await peer.asked(id, "more.r1")
        assert "at most 64 bits" in asks["more.r1"]["params"]["message"]
        await peer.answer(id, **{"more.r1": accept(number=3)})
        assert await peer.text(id) == str(wide + 3)


@pytest.mark.requirement("TASK-27")
async def test_every_task_method_needs_the_extension_on_that_request() -> None:
    async with running(greet) as peer:
        id = await peer.begin("greet")
        peer.capabilities = EVERYTHING
        for method, more in (
            ("tasks/get", {}),
            ("tasks/update", {"inputResponses": {}}),
            ("tasks/cancel", {}),
        ):
            error = await peer.refused(method, taskId=id, **more)
            assert error.code == CAPABILITY_MISSING
            assert error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


@pytest.mark.requirement("TASK-28")
async def test_the_header_must_name_the_task_of_the_body() -> None:
    async with running(greet) as peer:
        app = peer.server.asgi()
        anonymous = {CAPABILITIES: CAN}
        made = request(name="greet", arguments={}, meta=anonymous)
        id = (await post(app, made, mirrored(made))).result["taskId"]
        message = request("tasks/get", taskId=id, meta=anonymous)
        assert (await post(app, message, mirrored(message, mcp_name=id))).status == 200
        for wrong in ("another", None):
            answer = await post(app, message, mirrored(message, mcp_name=wrong))
            assert (answer.status, answer.error["code"]) == (400, -32020)


@pytest.mark.requirement("TASK-40", "TASK-41")
async def test_answers_are_acknowledged_and_the_task_goes_on() -> None:
    async with running(greet) as peer:
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        acknowledged = await peer.answer(id, who=accept(name="Ada"))
        assert set(acknowledged) == {"resultType", "_meta"}
        assert acknowledged["resultType"] == "complete"
        assert await peer.text(id) == "Hello, Ada!"


@pytest.mark.requirement("TASK-42")
async def test_asking_again_takes_a_name_that_was_never_used() -> None:
    async def greedy(ctx: Context) -> str:
        first = await ctx.elicit("Who?", Name, key="who")
        clash = await ctx.elicit("And the other?", Name, key="who.r1")
        return f"{first.name} {clash.name}"

    async with running(greedy) as peer:
        id = await peer.begin("greedy")
        await peer.asked(id, "who")
        await peer.answer(id, who=accept(name=7))
        again = await peer.asked(id, "who.r1")
        assert "did not fit" in again["who.r1"]["params"]["message"]
        await peer.answer(id, **{"who": accept(name="late"), "who.r1": accept(name="Ada")})
        await peer.asked(id, "who.r1.r1")
        await peer.answer(id, **{"who.r1.r1": accept(name="Bob")})
        assert await peer.text(id) == "Ada Bob"


@pytest.mark.requirement("TASK-43")
async def test_a_part_of_the_answers_is_kept_and_only_the_rest_is_asked() -> None:
    async with running(both) as peer:
        id = await peer.begin("both")
        await peer.asked(id, "who", "where")
        assert await peer.answer(id, nobody=accept(name="x"))
        await peer.answer(id, who=accept(name="Ada"))
        await peer.asked(id, "where")
        await peer.answer(id, who=accept(name="Eve"))
        await peer.answer(id, where=accept(region="eu"))
        assert await peer.text(id) == "Ada in eu"
        await peer.answer(id, where=accept(region="late"))


@pytest.mark.requirement("TASK-43")
async def test_an_answer_of_the_wrong_shape_is_refused_and_nothing_is_kept() -> None:
    async with running(both) as peer:
        id = await peer.begin("both")
        await peer.asked(id, "who", "where")
        wrong: dict[str, Any] = {"who": accept(name="Ada"), "where": "eu"}
        error = await peer.refused("tasks/update", taskId=id, inputResponses=wrong)
        assert error.code == INVALID_PARAMS
        assert sorted((await peer.get(id))["inputRequests"]) == ["where", "who"]
        error = await peer.refused("tasks/update", taskId=id)
        assert error.code == INVALID_PARAMS


@pytest.mark.requirement("TASK-45")
async def test_an_ask_that_the_client_cannot_take_fails_the_task() -> None:
    async with running(greet) as peer:
        peer.capabilities = {"extensions": {TASKS: {}}}
        task = await peer.ended(await peer.begin("greet"))
        assert task["status"] == "failed"
        assert task["error"]["code"] == CAPABILITY_MISSING
        assert task["error"]["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@pytest.mark.requirement("TASK-45")
async def test_a_later_request_says_what_the_client_can_take_by_now() -> None:

    async def twice(ctx: Context) -> str:
        await ctx.elicit("Who?", Name, key="who")
        return (await ctx.roots())[0].uri

    less = {"elicitation": {}, "extensions": {TASKS: {}}}
    async with running(twice) as peer:
        peer.capabilities = less
        id = await peer.begin("twice")
        await peer.asked(id, "who")
        peer.capabilities = CAN
        await peer.get(id)
        peer.capabilities = {**less, "roots": {}}
        await peer.answer(id, who=accept(name="Ada"))
        await peer.asked(id, "roots")
        await peer.answer(id, roots={"roots": [{"uri": "file:///work"}]})
        assert await peer.text(id) == "file:///work"


@pytest.mark.requirement("TASK-50", "TASK-51")
async def test_a_waiting_task_is_cancelled_and_cancelling_again_is_no_error() -> None:
    async with running(greet) as peer:
        id = await peer.begin("greet")
        await peer.asked(id, "who")
        for _ in range(2):
            acknowledged = await peer.cancel(id)
            assert set(acknowledged) == {"resultType", "_meta"}
            task = await peer.get(id)
            assert task["status"] == "cancelled"
            assert "inputRequests" not in task
        await peer.answer(id, who=accept(name="late"))
        assert (await peer.get(id))["status"] == "cancelled"


@pytest.mark.requirement("TASK-52")
async def test_a_listener_is_told_the_whole_task_and_only_his_own() -> None:
    async with running(greet) as peer:
        other = Peer(peer.server, principal=BOB)
        id, foreign = await peer.begin("greet"), await other.begin("greet")
        await peer.asked(id, "who")
        listener = await peer.listen(id, foreign, "unknown")
        assert listener.accepted == {"taskIds": [id]}
        await peer.answer(id, who=accept(name="Ada"))
        async with asyncio.timeout(10):
            while True:
                told = await listener.news()
                assert {method for method, _ in told} == {"notifications/tasks"}
                if told[-1][1]["status"] == "completed":
                    break
        shown = await peer.get(id)
        assert dict(told[-1][1]) == {k: shown[k] for k in shown if k not in ("resultType", "_meta")}
        listener.close()


@pytest.mark.requirement("TASK-53")
async def test_listening_to_tasks_needs_the_extension() -> None:
    async with running(greet) as peer:
        id = await peer.begin("greet")
        app = peer.server.asgi()
        message = request(
            "subscriptions/listen",
            notifications={"taskIds": [id]},
            meta={CAPABILITIES: EVERYTHING},
        )
        answer = await post(app, message, mirrored(message))
        assert (answer.status, answer.error["code"]) == (400, CAPABILITY_MISSING)


@pytest.mark.requirement("TASK-54")
async def test_a_task_tells_by_its_status_message_and_by_nothing_else() -> None:
    gate = asyncio.Event()

    async def chatty(ctx: Context) -> str:
        await ctx.report(1, 4)
        await ctx.report(2, 4, "half way")
        await ctx.log("noted")
        await gate.wait()
        return "done"

    async with running(chatty) as peer:
        id = await peer.begin("chatty")
        task = await peer.until(id, lambda task: task.get("statusMessage") == "half way")
        assert task["status"] == "working"
        gate.set()
        await peer.until(id, "completed")
        assert peer.told.notices == []


@pytest.mark.requirement("TASK-55")
async def test_rounds_come_first_and_the_task_after_them() -> None:
    effects: list[str] = []

    async def order(ctx: Context, what: str) -> str:
        person = await ctx.elicit("Who?", Name, key="who")
        await ctx.once("reserve", effects.append, "reserve")
        await ctx.detach("packing")
        place = await ctx.elicit("Where to?", Name, key="where")
        await ctx.once("ship", effects.append, "ship")
        return f"{what} for {person.name} to {place.name}"

    async with running(order, task=None) as peer:
        first = await peer.call("order", what="tea")
        assert first["resultType"] == "input_required"
        handle = await peer.send(
            "tools/call",
            name="order",
            arguments={"what": "tea"},
            inputResponses={"who": accept(name="Ada")},
            requestState=first["requestState"],
        )
        assert (handle["resultType"], handle["statusMessage"]) == ("task", "packing")
        await peer.asked(handle["taskId"], "where")
        await peer.answer(handle["taskId"], where=accept(name="Rome"))
        assert await peer.text(handle["taskId"]) == "tea for Ada to Rome"
        assert effects == ["reserve", "ship"]


@pytest.mark.requirement("TASK-56")
async def test_a_task_is_shown_to_its_maker_only_and_its_name_cannot_be_guessed() -> None:
    async with running(greet) as peer:
        ids = [await peer.begin("greet") for _ in range(3)]
        assert len({id[:8] for id in ids}) == 3
        assert all(len(bytes.fromhex(id)) >= 16 for id in ids)
        other = Peer(peer.server, principal=BOB)
        for method, more in (
            ("tasks/get", {}),
            ("tasks/update", {"inputResponses": {"who": accept(name="Eve")}}),
            ("tasks/cancel", {}),
        ):
            unknown = await other.refused(method, taskId="ab" * 24, **more)
            foreign = await other.refused(method, taskId=ids[0], **more)
            assert (foreign.code, foreign.message) == (unknown.code, unknown.message)
        await peer.asked(ids[0], "who")


@pytest.mark.requirement("TASK-57", "TASK-58")
@pytest.mark.parametrize("method", ["tasks/result", "tasks/list", "tasks/input_response"])
async def test_methods_of_older_drafts_are_not_found(method: str) -> None:
    async with running(plain) as peer:
        id = await peer.begin("plain")
        assert (await peer.refused(method, taskId=id)).code == METHOD_NOT_FOUND


async def test_a_principal_has_only_so_many_unfinished_tasks() -> None:
    """A round that wants to detach is refused before anything is recorded."""

    async def later(ctx: Context) -> str:
        await ctx.detach()
        return (await ctx.elicit("Who?", Name, key="who")).name

    async with running(greet, later, limits=Limits(tasks_per_principal=2)) as peer:
        ids = [await peer.begin("greet") for _ in range(2)]
        for tool in ("greet", "later"):
            error = await peer.refused("tools/call", name=tool, arguments={})
            assert "too many unfinished tasks" in error.message
        assert await Peer(peer.server, principal=BOB).begin("greet")
        await peer.cancel(ids[0])
        assert await peer.begin("later")


async def test_a_tool_that_must_be_a_task_needs_a_store_that_keeps_one(redis_url: str) -> None:
    server = Server("cloud", store=redis_url)
    server.tool(task="required")(plain)
    with pytest.raises(ConfigError, match="'plain' must run as a task"):
        async with server.running():
            raise AssertionError("it must not start")


async def test_a_store_without_tasks_serves_an_allowed_one_in_the_call(redis_url: str) -> None:
    async with running(plain, store=redis_url) as peer:
        assert "extensions" not in (await peer.send("server/discover"))["capabilities"]
        assert (await peer.call("plain"))["content"][0]["text"] == "plain"
        assert (await peer.refused("tasks/get", taskId="x")).code == METHOD_NOT_FOUND


def test_the_owner_is_told_apart_by_every_part_of_his_name() -> None:
    names = [
        Principal(issuer="a", subject="b c"),
        Principal(issuer="a b", subject="c"),
        Principal(issuer="a", subject="b", client_id="c"),
        Principal(issuer="a%20b", subject="c"),
        Principal(issuer="anonymous", subject="http"),
        Principal(transport="http"),
        Principal(transport="stdio"),
        ADA,
    ]
    assert len({name.owner for name in names}) == len(names)
