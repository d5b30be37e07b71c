"""One story for three servers: the handlers of examples/provision.py in ours and in two others."""

import asyncio
from collections.abc import Iterator
from typing import Any

import mcp
import mcp_types
import pytest

from antiphon import Accept, Client, Decline, Scripted, StateRefused, TaskGone
from antiphon.client.errors import ClientError
from tests.ext.hosts import PYTHONS, Host, over_http

pytestmark = pytest.mark.timeout(120)

ERAS = ("modern", "legacy")
PLACE = Accept({"region": "eu-west"})
YES = Accept({"approve": True})


def said(result: Any) -> str:
    return result.content[0].text


def on_stdio(host: Host) -> dict[str, Any]:
    """Return the options of a client that starts a process, which takes its time to import."""
    return {"env": host.environment, "connect": 90.0, "probe": 60.0}


@pytest.fixture(scope="module", params=list(PYTHONS))
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    with over_http(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module", params=list(PYTHONS))
def host_with_users(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp(f"{request.param}-users")
    with over_http(request.param, folder, users=True) as running:
        yield running


# --- all rounds in one go ------------------------------------------------------------------------


async def play(client: Client, host: Host, name: str) -> None:
    listed = {tool.name: tool for tool in await client.list_tools()}
    assert listed["provision"].description == (
        "Create a database, ask where it should live, and start it after approval."
    )
    assert listed["provision"].input_schema == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    result = await client.call_tool("provision", {"name": name})
    assert said(result) == f"{name}.eu-west is running."
    assert host.happened(name) == [f"create {name}.eu-west", f"start {name}.eu-west"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_yes_over_http(host: Host, era: Any):
    async with Client(host.url, answers=Scripted(placement=PLACE, approve=YES), era=era) as client:
        assert client.era == era
        await play(client, host, f"http-{era}")


@pytest.mark.parametrize("era", ERAS)
async def test_a_yes_over_stdio(host: Host, era: Any):
    answers = Scripted(placement=PLACE, approve=YES)
    async with Client(host.command, answers=answers, era=era, **on_stdio(host)) as client:
        assert client.era == era
        await play(client, host, f"stdio-{era}")


@pytest.mark.parametrize("era", ERAS)
async def test_a_decline(host: Host, era: Any):
    name = f"declined-{era}"
    no = Scripted(placement=PLACE, approve=Decline())
    async with Client(host.url, answers=no, era=era) as client:
        result = await client.call_tool("provision", {"name": name})
    assert said(result) == f"{name}.eu-west left stopped."
    assert host.happened(name) == [f"create {name}.eu-west"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_decline_of_the_first_question(host: Host, era: Any):
    async with Client(host.url, answers=lambda ask: Decline(), era=era) as client:
        result = await client.call_tool("provision", {"name": f"nowhere-{era}"})
    assert result.is_error
    assert host.happened(f"nowhere-{era}") == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client(host: Host, mode: Any):
    async def fill(context: Any, params: Any) -> mcp_types.ElicitResult:
        content: Any = {"region": "us-east"} if "Where" in params.message else {"approve": True}
        return mcp_types.ElicitResult(action="accept", content=content)

    name = f"official-{mode}"
    async with mcp.Client(host.url, elicitation_callback=fill, mode=mode) as client:
        result = await client.call_tool("provision", {"name": name})
    assert said(result) == f"{name}.us-east is running."
    assert host.happened(name) == [f"create {name}.us-east", f"start {name}.us-east"]


@pytest.mark.parametrize("era", ERAS)
async def test_arguments_are_checked_by_us(host: Host, era: Any):
    async with Client(host.url, era=era) as client:
        result = await client.call_tool("provision", {"name": 7})
    assert result.is_error
    assert "name: Input should be a valid string" in said(result)


@pytest.mark.parametrize(("era", "tasks"), [("modern", True), ("modern", False), ("legacy", True)])
async def test_a_call_that_goes_on_in_the_background(host: Host, era: Any, tasks: bool):
    seen: list[str] = []
    async with Client(host.url, era=era, tasks=tasks) as client:
        result = await client.call_tool(
            "watch", {"name": "db"}, on_task=lambda task: seen.append(task.status)
        )
    assert said(result) == "nobody watches db"
    assert bool(seen) == (era == "modern" and tasks)


# --- round by round ------------------------------------------------------------------------------


async def test_the_process_is_killed_between_all_rounds(host: Host):
    async with Client(host.url) as client:
        kept = (await client.begin("provision", {"name": "killed"})).dump()
    host.restart()
    async with Client(host.url) as client:
        step = await client.resume(kept, {"placement": PLACE})
        assert list(step.asks) == ["approve"]
        kept = step.dump()
    host.restart()
    async with Client(host.url) as client:
        step = await client.resume(kept, {"approve": YES})
    assert said(step.result) == "killed.eu-west is running."
    assert host.happened("killed") == ["create killed.eu-west", "start killed.eu-west"]


async def test_the_next_round_is_served_by_another_process_on_stdio(host: Host):
    async with Client(host.command, **on_stdio(host)) as client:
        step = await client.begin("provision", {"name": "apart"})
        kept = (await client.resume(step, {"placement": PLACE})).dump()
    async with Client(host.command, **on_stdio(host)) as client:
        step = await client.resume(kept, {"approve": YES})
    assert said(step.result) == "apart.eu-west is running."
    assert host.happened("apart") == ["create apart.eu-west", "start apart.eu-west"]


async def test_a_token_that_is_used_twice(host: Host):
    async with Client(host.url) as client:
        step = await client.begin("provision", {"name": "twice"})
        first = await client.resume(step, {"placement": PLACE})
        again = await client.resume(step, {"placement": PLACE})
        assert list(first.asks) == list(again.asks) == ["approve"]
        with pytest.raises(StateRefused):
            await client.resume(step, {"placement": Accept({"region": "us-east"})})
        done = [await client.resume(first, {"approve": YES}) for _ in range(2)]
    assert [said(one.result) for one in done] == ["twice.eu-west is running."] * 2
    assert host.happened("twice") == ["create twice.eu-west", "start twice.eu-west"]


async def test_two_processes_redeem_a_token_once(host: Host):
    with over_http(host.name, host.folder) as other:
        async with Client(host.url) as client, Client(other.url) as elsewhere:
            step = await client.begin("provision", {"name": "raced"})
            both = [one.resume(step, {"placement": PLACE}) for one in (client, elsewhere)]
            first, second = await asyncio.gather(*both)
            assert list(first.asks) == list(second.asks) == ["approve"]
            last = await elsewhere.resume(first, {"approve": YES})
    assert said(last.result) == "raced.eu-west is running."
    assert host.happened("raced") == ["create raced.eu-west", "start raced.eu-west"]


async def test_a_token_for_other_arguments_is_refused(host: Host):
    async with Client(host.url) as client:
        kept = (await client.begin("provision", {"name": "bound"})).dump()
        assert kept.count('"bound"') == 1
        with pytest.raises(StateRefused):
            await client.resume(kept.replace('"bound"', '"moved"'), {"placement": PLACE})
    assert host.happened("bound") == host.happened("moved") == []


# --- whose call it is ----------------------------------------------------------------------------


def as_(person: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {person}-token"}


async def test_another_users_token_is_refused(host_with_users: Host):
    host = host_with_users
    async with Client(host.url, headers=as_("ada")) as client:
        step = await client.begin("provision", {"name": "hers"})
    async with Client(host.url, headers=as_("bob")) as client:
        with pytest.raises(StateRefused):
            await client.resume(step, {"placement": PLACE})
    assert host.happened("hers") == []
    async with Client(host.url, headers=as_("ada")) as client:
        step = await client.resume(step, {"placement": PLACE})
        step = await client.resume(step, {"approve": YES})
    assert said(step.result) == "hers.eu-west is running."


async def test_another_users_task_is_refused(host_with_users: Host):
    host = host_with_users
    async with Client(host.url, headers=as_("ada")) as client:
        step = await client.begin("watch", {"name": "db"})
        assert step.task is not None
    async with Client(host.url, headers=as_("bob")) as client:
        with pytest.raises(TaskGone):
            await client.resume(step)
    async with Client(host.url, headers=as_("ada")) as client:
        step = await client.resume(step, wait=20)
    assert said(step.result) == "ada watches db"


@pytest.mark.parametrize("era", ERAS)
async def test_handlers_know_the_user_that_the_server_has_authenticated(
    host_with_users: Host, era: Any
):
    options: Any = {"headers": as_("bob"), "era": era, "tasks": False}
    async with Client(host_with_users.url, **options) as client:
        assert said(await client.call_tool("watch", {"name": "db"})) == "bob watches db"


async def test_a_tool_that_needs_a_scope_is_for_those_who_have_it(host_with_users: Host):
    async with Client(host_with_users.url, headers=as_("ada")) as client:
        assert said(await client.call_tool("stop_all")) == "all stopped"
    async with Client(host_with_users.url, headers=as_("bob")) as client:
        with pytest.raises(ClientError, match=r"403|scope"):
            await client.call_tool("stop_all")


async def test_nobody_gets_past_the_server_without_a_token(host_with_users: Host):
    with pytest.raises(ClientError, match="401"):
        async with Client(host_with_users.url) as client:
            await client.call_tool("watch", {"name": "db"})
