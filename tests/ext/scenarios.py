"""What must hold in every server that hosts our tools; needs no pytest, so that it runs anywhere.

Each scenario takes a `Hosting`: how one framework is given tools. `SCENARIOS` names them all.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from antiphon import (
    Accept,
    Answers,
    Client,
    ConfigError,
    Console,
    Context,
    Limits,
    Principal,
    RemoteError,
    Seal,
    Server,
    StateRefused,
    ToolError,
)
from antiphon.client.errors import ClientError
from antiphon.console import Person
from antiphon.seal.keyring import generate_key
from antiphon.testing.decisions import decide

ERAS: Any = ("modern", "legacy")
EU = Accept({"region": "eu"})


class Place(BaseModel):
    region: str


class Machine(BaseModel):
    name: str
    sizes: list[int]


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Hosting(Protocol):
    """One framework."""

    def tools(self, server: Server | str, **options: Any) -> Any:
        """Return `AntiphonTools` of the framework."""
        ...

    def server(self, tools: Any, *, refuse: Callable[[], bool] = lambda: False) -> Any:
        """Return a server with them, and with middleware of theirs that may refuse calls."""
        ...

    def with_own_state(self, tools: Any) -> Any:
        """Return a server with them that seals request state with a key of its own."""
        ...

    def with_other_tasks(self, tools: Any) -> Any:
        """Return a server with them where the Tasks extension is somebody else's."""
        ...

    def add_tool(self, server: Any, name: str) -> None:
        """Add a tool of theirs that says `theirs`."""
        ...

    def add_prompt(self, server: Any, name: str) -> None:
        """Add a prompt of theirs that says `theirs`."""
        ...

    def remove_tool(self, server: Any, name: str) -> None:
        """Remove or disable a tool."""
        ...

    def add_asking_tool(self, server: Any) -> None:
        """Add a tool `seat` of theirs that asks for a place and returns its region."""
        ...


SCENARIOS: dict[str, Callable[[Hosting], Awaitable[None]]] = {}


def scenario(fn: Callable[[Hosting], Awaitable[None]]) -> Callable[[Hosting], Awaitable[None]]:
    SCENARIOS[fn.__name__] = fn
    return fn


def said(result: Any) -> str:
    return result.content[0].text


@contextmanager
def refused(kind: type[BaseException], text: str) -> Iterator[list[BaseException]]:
    """Expect an error whose text, or that of its causes, holds something; gives the error."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
    assert caught, f"no {kind.__name__}: {text}"
    assert text in _texts(caught[0]), _texts(caught[0])


def _texts(error: BaseException | None) -> str:
    if error is None:
        return ""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " / ".join([str(error), _texts(error.__cause__), *map(_texts, inner)])


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def deploying(tools: Any) -> list[str]:
    """Register a tool that asks for a place; returns what it has done."""
    done: list[str] = []

    @tools.tool
    async def deploy(ctx: Context, name: str) -> str:
        """Deploy."""
        place = await ctx.elicit("Where?", Place)
        await ctx.once("deploy", done.append, name)
        return f"{name} in {place.region}"

    return done


# --- errors, cancelling, concurrency -------------------------------------------------------------


@scenario
async def what_handlers_raise_is_told_as_in_a_server_of_ours(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool
    def wrong() -> str:
        """Refuse."""
        raise ToolError("the disk is full")

    @tools.tool
    def broken() -> str:
        """Fail."""
        raise ValueError("secret")

    @tools.prompt
    def odd() -> str:
        """Fail."""
        raise ValueError("secret")

    server = hosting.server(tools)
    for era in ERAS:
        async with Client(server, era=era) as client:
            told = await client.call_tool("wrong")
            assert told.is_error
            assert said(told) == "the disk is full"
            hidden = await client.call_tool("broken")
            assert hidden.is_error
            assert "secret" not in said(hidden)
            with refused(RemoteError, "") as caught:
                await client.get_prompt("odd")
            assert "secret" not in _texts(caught[0])


class Work:
    """A tool that is in the middle of an effect, and what becomes of it."""

    def __init__(self, tools: Any) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()
        self.done: list[str] = []

        @tools.tool
        async def work(ctx: Context) -> str:
            """Work."""
            try:
                await ctx.once("effect", self.effect)
                return (await ctx.elicit("Where?", Place)).region
            finally:
                self.left.set()

    async def effect(self) -> None:
        self.begun.set()
        await asyncio.sleep(0.1)
        self.done.append("done")


@scenario
async def a_cancelled_call_leaves_nothing_running(hosting: Hosting) -> None:
    for era in ERAS:
        tools = hosting.tools("cloud")
        work = Work(tools)
        async with asyncio.timeout(20), Client(hosting.server(tools), era=era) as client:
            calling = asyncio.create_task(client.call_tool("work"))
            await work.begun.wait()
            calling.cancel()
            await work.left.wait()
            assert work.done == ["done"]  # an effect that has begun is let finish
            while tools.antiphon.stats()["rounds"]:  # noqa: ASYNC110 - nothing tells the end
                await asyncio.sleep(0.01)
            assert [tool.name for tool in await client.list_tools()] == ["work"]


@scenario
async def many_calls_at_once_keep_apart(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    names = [f"db{number}" for number in range(25)]

    async def call(client: Client, name: str) -> str:
        step = await client.begin("deploy", {"name": name})
        step = await client.resume(step, {"place": Accept({"region": name})})
        return said(step.result)

    async with Client(hosting.server(tools)) as client:
        found = await asyncio.gather(*(call(client, name) for name in names))
    assert found == [f"{name} in {name}" for name in names]
    assert sorted(done) == sorted(names)


@scenario
async def a_token_that_is_used_at_the_same_time_works_once(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    async with Client(hosting.server(tools)) as client:
        step = await client.begin("deploy", {"name": "db"})
        both = await asyncio.gather(*(client.resume(step, {"place": EU}) for _ in range(4)))
    assert [said(one.result) for one in both] == ["db in eu"] * 4
    assert done == ["db"]


@scenario
async def a_call_with_an_idempotency_key_is_begun_once(hosting: Hosting) -> None:
    tools, done = hosting.tools("cloud"), list[str]()

    @tools.tool
    async def pay(ctx: Context) -> str:
        """Pay."""
        await ctx.once("pay", done.append, "paid")
        return "paid"

    async with Client(hosting.server(tools)) as client:
        for _ in range(2):
            step = await client.begin("pay", idempotency_key="3f0c9f4e-7f0a-4c0e-9a52-1f0c7e2d9a11")
            assert said(step.result) == "paid"
    assert done == ["paid"]


@scenario
async def the_end_of_every_call_is_told(hosting: Hosting) -> None:
    tools, ends = hosting.tools("cloud"), list[str]()
    deploying(tools)
    tools.on_end(lambda end: ends.append(f"{end.name} {end.outcome} after {end.rounds}"))
    server = hosting.server(tools)
    for era in ERAS:
        async with Client(server, answers=lambda ask: EU, era=era) as client:
            await client.call_tool("deploy", {"name": "db"})
    assert ends == ["deploy complete after 2", "deploy complete after 1"]


# --- their middleware, tools and lists -----------------------------------------------------------


@scenario
async def what_their_middleware_refuses_spends_no_token(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    done, closed = deploying(tools), list[str]()
    server = hosting.server(tools, refuse=lambda: bool(closed))
    async with Client(server) as client:
        step = await client.begin("deploy", {"name": "db"})
        closed.append("for lunch")
        with refused(RemoteError, "closed"):
            await client.resume(step, {"place": EU})
        closed.clear()
        step = await client.resume(step, {"place": EU})
    assert said(step.result) == "db in eu"
    assert done == ["db"]


@scenario
async def their_tools_stand_beside_ours(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    deploying(tools)
    server = hosting.server(tools)
    hosting.add_tool(server, "their_own")
    hosting.add_asking_tool(server)
    async with Client(server, answers=lambda ask: EU) as client:
        names = {tool.name for tool in await client.list_tools()}
        assert names == {"deploy", "their_own", "seat"}
        assert said(await client.call_tool("their_own")) == "theirs"
        assert said(await client.call_tool("seat")) == "eu"
        assert said(await client.call_tool("deploy", {"name": "db"})) == "db in eu"
        nothing = await client.call_tool("nothing")
        assert nothing.is_error
        assert "nothing" in said(nothing)


@scenario
async def a_tool_that_they_remove_is_neither_listed_nor_served(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    server = hosting.server(tools)
    async with Client(server) as client:
        step = await client.begin("deploy", {"name": "db"})
        hosting.remove_tool(server, "deploy")
        assert await client.list_tools() == []
        last = await client.resume(step, {"place": EU})
        assert last.result.is_error
        assert "Unknown tool" in said(last.result)
    assert done == []


@scenario
async def a_tool_is_listed_as_we_list_it(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool(title="Make one", annotations={"readOnlyHint": True}, meta={"team/owner": "ops"})
    async def make(ctx: Context, name: str, trees: list[Tree], size: int = 2) -> Machine:
        """Make a machine."""
        return Machine(name=name, sizes=[size, len(trees)])

    (entry,), server = tools.antiphon.tools(), hosting.server(tools)
    for era in ERAS:
        async with Client(server, era=era) as client:
            (tool,) = await client.list_tools()
            assert tool.title == "Make one"
            assert tool.description == "Make a machine."
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is True
            assert (tool.meta or {})["team/owner"] == "ops"
            assert set(tool.input_schema["properties"]) == {"name", "trees", "size"}
            assert tool.input_schema["required"] == entry["inputSchema"]["required"]
            assert tool.output_schema == entry["outputSchema"]
            result = await client.call_tool("make", {"name": "a", "trees": [{"value": 1}]})
            assert result.structured_content == {"name": "a", "sizes": [2, 1]}


@scenario
async def a_structure_that_is_no_object_passes_as_text(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool(output_schema={"type": "array", "items": {"type": "integer"}})
    def numbers() -> Any:
        """Return a list."""
        return [1, 2]

    server = hosting.server(tools)
    for era in ERAS:
        async with Client(server, era=era) as client:
            (tool,) = await client.list_tools()
            assert tool.output_schema is None  # old clients could not read the list with it
            assert said(await client.call_tool("numbers")) == "[1,2]"


@scenario
async def prompts_may_ask_too(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.prompt
    async def greet(ctx: Context, name: str) -> str:
        """Greet somebody."""
        return f"{name} of {(await ctx.elicit('Where?', Place)).region}"

    server = hosting.server(tools)
    for era in ERAS:
        async with Client(server, answers=lambda ask: EU, era=era) as client:
            (prompt,) = await client.list_prompts()
            assert prompt.description == "Greet somebody."
            assert [(one.name, one.required) for one in prompt.arguments or []] == [("name", True)]
            found = await client.get_prompt("greet", {"name": "Ada"})
            assert found.messages[0].content.text == "Ada of eu"  # type: ignore[union-attr]
            with refused(RemoteError, "name"):
                await client.get_prompt("greet", {})


@scenario
async def a_client_is_asked_for_all_that_it_can(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool
    async def everything(ctx: Context) -> str:
        """Ask for all there is."""
        text = (await ctx.sample("A word?")).text
        roots = await ctx.roots()
        await ctx.elicit_url("Sign in", "https://login.example/")
        return f"{text} {len(roots)}"

    server = hosting.server(tools)
    answers = Answers(
        elicit_url=lambda ask: Accept(), sample=lambda ask: "carpe", roots=lambda ask: ["/srv"]
    )
    for era in ERAS:
        async with Client(server, answers=answers, era=era) as client:
            assert said(await client.call_tool("everything")) == "carpe 1"
    async with Client(server) as client:  # one that can be asked nothing
        with refused(RemoteError, "sampling"):
            await client.call_tool("everything")
    async with Client(server, era="legacy") as client:  # an old one reads only results
        told = await client.call_tool("everything")
        assert told.is_error
        assert "sampling" in said(told)


@scenario
async def progress_and_log_messages_reach_the_client(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool
    async def report(ctx: Context) -> str:
        """Report."""
        await ctx.report(1, 2, "half")
        await ctx.log("so far", level="warning")
        return "done"

    server = hosting.server(tools)
    seen, logged = list[tuple[Any, ...]](), list[Any]()
    options: Any = {"log_level": "info", "on_log": lambda level, data, logger: logged.append(data)}
    for era in ERAS:
        async with Client(server, era=era, **options) as client:
            await client.call_tool("report", on_progress=lambda *one: seen.append(one))
    assert seen == [(1.0, 2.0, "half")] * 2
    assert logged == ["so far"] * 2


@scenario
async def our_own_tool_is_not_called_without_a_client(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    done = deploying(tools)
    with refused(Exception, "deploy is served to clients only"):
        await hosting.server(tools).call_tool("deploy", {"name": "db"})
    assert done == []


# --- keys, stores, sizes -------------------------------------------------------------------------


@scenario
async def any_process_with_our_keys_serves_the_next_round(hosting: Hosting) -> None:
    with folder() as place:
        store = f"sqlite:///{place / 'calls.db'}"
        first = hosting.tools("cloud", store=store)
        assert deploying(first) == []
        async with Client(hosting.server(first)) as client:
            step = await client.begin("deploy", {"name": "db"})
        second = hosting.tools("cloud", store=store)
        done = deploying(second)
        async with Client(hosting.server(second)) as client:
            step = await client.resume(step, {"place": EU})
        assert said(step.result) == "db in eu"
        assert done == ["db"]


@scenario
async def a_process_with_other_keys_refuses_the_next_round(hosting: Hosting) -> None:
    first, second = (hosting.tools("cloud", seal=Seal(keys=[generate_key()])) for _ in range(2))
    done = [*map(deploying, (first, second))]
    async with Client(hosting.server(first)) as one, Client(hosting.server(second)) as other:
        step = await one.begin("deploy", {"name": "db"})
        with refused(StateRefused, ""):
            await other.resume(step, {"place": EU})
        step = await one.resume(step, {"place": EU})
    assert said(step.result) == "db in eu"
    assert done == [["db"], []]


@scenario
async def request_state_of_their_own_ends_with_the_process(hosting: Hosting) -> None:
    key = generate_key()
    first, second = (hosting.tools("cloud", seal=Seal(keys=[key])) for _ in range(2))
    done = [*map(deploying, (first, second))]
    async with (
        Client(hosting.with_own_state(first)) as one,
        Client(hosting.with_own_state(second)) as other,
    ):
        step = await one.begin("deploy", {"name": "db"})
        with refused(StateRefused, ""):
            await other.resume(step, {"place": EU})
    assert done == [[], []]


@scenario
async def a_key_is_replaced_while_rounds_wait(hosting: Hosting) -> None:
    old, new = generate_key(), generate_key()
    with folder() as place:
        store = f"sqlite:///{place / 'calls.db'}"
        first = hosting.tools("cloud", store=store, seal=Seal(keys=[old]))
        second = hosting.tools("cloud", store=store, seal=Seal(keys=[new, old]))
        done = [*map(deploying, (first, second))]
        async with Client(hosting.server(first)) as one:
            step = await one.begin("deploy", {"name": "db"})
        async with Client(hosting.server(second)) as other:
            step = await other.resume(step, {"place": EU})
    assert said(step.result) == "db in eu"
    assert done == [[], ["db"]]


@scenario
async def a_long_journal_is_kept_in_the_store_and_refused_without_one(hosting: Hosting) -> None:
    def remembering(tools: Any) -> None:
        @tools.tool
        async def remember(ctx: Context) -> str:
            """Keep a long text between rounds."""
            text = await ctx.memo("text", lambda: "x" * 300_000)
            return f"{len(text)} in {(await ctx.elicit('Where?', Place)).region}"

    with folder() as place:
        tools = hosting.tools("cloud", store=f"sqlite:///{place / 'calls.db'}")
        remembering(tools)
        async with Client(hosting.server(tools), answers=lambda ask: EU) as client:
            assert said(await client.call_tool("remember")) == "300000 in eu"
    tools = hosting.tools("cloud")
    remembering(tools)
    async with Client(hosting.server(tools), answers=lambda ask: EU) as client:
        large = await client.call_tool("remember")
        assert large.is_error
        assert (await client.list_tools())[0].name == "remember"


@scenario
async def arguments_are_bounded_as_in_a_server_of_ours(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.tool
    def take(value: Any) -> str:
        """Take anything."""
        return "taken"

    server = hosting.server(tools)
    for era in ERAS:
        async with Client(server, era=era) as client:
            assert said(await client.call_tool("take", {"value": nested(40)})) == "taken"
            with refused(RemoteError, "nested deeper than 64 levels"):
                await client.call_tool("take", {"value": nested(80)})


def nested(levels: int) -> Any:
    value: Any = "inside"
    for _ in range(levels):
        value = [value]
    return value


@scenario
async def a_round_may_wait_as_long_as_its_call(hosting: Hosting) -> None:
    tools = hosting.tools("cloud", limits=Limits(call=timedelta(days=30)))
    deploying(tools)
    assert tools.request_state_security().ttl == 30 * 86_400
    assert tools.request_state_security(ttl=60).ttl == 60
    tools = hosting.tools("cloud")

    @tools.tool(deadline=timedelta(days=9))
    def slow() -> str:
        """Take days."""
        return ""

    assert tools.request_state_security().ttl == 9 * 86_400


# --- people, tasks, eras -------------------------------------------------------------------------


@scenario
async def a_call_is_held_until_somebody_else_decides(hosting: Hosting) -> None:
    anna = Person("test", "anna", "Anna", ("ops",), 0.0)
    for tasks in (True, False):
        dropped = list[str]()
        tools = hosting.tools("cloud", console=Console("http://127.0.0.1:8400/console"))
        _dropping(tools, dropped)
        async with Client(hosting.server(tools), tasks=tasks) as client:
            step = await client.begin("drop", {"name": "db"})
            assert (step.task is not None) == tasks
            assert dropped == []
            await decide(tools.antiphon.inbox_view(), "approve", anna)
            if tasks:
                step = await client.resume(step, wait=20)
            else:
                step = await client.begin("drop", {"name": "db"})
            assert said(step.result) == "dropped db"
        assert dropped == ["db"]


def _dropping(tools: Any, dropped: list[str]) -> None:
    @tools.tool(holds=True)
    async def drop(ctx: Context, name: str) -> str:
        """Drop a database."""
        if not await ctx.approve(f"Drop {name}?", by="ops"):
            return "kept"
        await ctx.once("drop", dropped.append, name)
        return f"dropped {name}"


def detaching(tools: Any) -> None:
    @tools.tool
    async def watch(ctx: Context) -> str:
        """Go on in the background."""
        await ctx.detach("watching")
        return "watched"


@scenario
async def tasks_of_somebody_else_are_left_alone(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    detaching(tools)
    with refused(ConfigError, "tasks=False"):
        hosting.with_other_tasks(tools)
    tools = hosting.tools("cloud", tasks=False)
    detaching(tools)
    async with Client(hosting.with_other_tasks(tools)) as client:
        step = await client.begin("watch")
        assert step.task is None
        assert said(step.result) == "watched"


@scenario
async def a_server_for_modern_clients_stays_one(hosting: Hosting) -> None:
    tools = hosting.tools("cloud", eras=("modern",))
    done = deploying(tools)
    async with Client(hosting.server(tools), answers=lambda ask: EU, era="legacy") as client:
        with refused(RemoteError, "modern protocol only"):
            await client.call_tool("deploy", {"name": "db"})
    assert done == []


# --- mistakes of authors -------------------------------------------------------------------------


@asynccontextmanager
async def started(server: Any) -> AsyncIterator[None]:
    async with Client(server) as client:
        await client.list_tools()
        yield


@scenario
async def what_is_registered_too_late_stops_the_start(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    deploying(tools)
    server = hosting.server(tools)

    @tools.tool
    def late() -> str:
        """Come late."""
        return "late"

    with refused(BaseException, "register first, join after"):
        async with started(server):
            pass


@scenario
async def names_that_are_theirs_as_well_stop_the_start(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")

    @tools.prompt
    def greet() -> str:
        """Greet."""
        return "hello"

    server = hosting.server(tools)
    hosting.add_prompt(server, "greet")
    with refused(BaseException, "another name"):
        async with started(server):
            pass


@scenario
async def what_they_cannot_serve_is_refused_when_it_is_joined(hosting: Hosting) -> None:
    def resource(tools: Any) -> None:
        tools.antiphon.resource("shop://stock")(lambda: "7")

    def hidden(tools: Any) -> None:
        tools.tool(name="hidden", visible=lambda principal: False)(lambda: "7")

    def completed(tools: Any) -> None:
        tools.antiphon.completion("greet", "name")(lambda text: [])

    for register, text in ((resource, "resources"), (hidden, "visible="), (completed, "complet")):
        tools = hosting.tools("cloud")
        register(tools)
        with refused(ConfigError, text):
            hosting.server(tools)


@scenario
async def settings_that_do_not_fit_are_refused_at_once(hosting: Hosting) -> None:
    with refused(ConfigError, "store"):
        hosting.tools(Server("cloud"), store="memory:")
    with refused(ConfigError, "principal="):
        hosting.tools("cloud", principal=lambda scope: Principal(subject="ada"))
    tools = hosting.tools("cloud")
    hosting.server(tools)
    with refused(ConfigError, "already"):
        hosting.server(tools)
    with refused(ConfigError, "key service"):
        hosting.tools("cloud", seal=Seal(codec=NoKeys())).request_state_security()


class NoKeys:
    """A key service."""

    async def seal(self, data: bytes, aad: bytes) -> bytes:
        return data

    async def open(self, data: bytes, aad: bytes) -> bytes:
        return data


@scenario
async def a_client_that_goes_away_ends_its_legacy_call(hosting: Hosting) -> None:
    tools = hosting.tools("cloud")
    asked, left = asyncio.Event(), asyncio.Event()

    @tools.tool
    async def wait(ctx: Context) -> str:
        """Wait for an answer."""
        try:
            return (await ctx.elicit("Where?", Place)).region
        finally:
            left.set()

    async def never(ask: Any) -> Accept:
        asked.set()
        await asyncio.sleep(60)
        return EU

    async with asyncio.timeout(20):
        try:
            async with Client(hosting.server(tools), answers=never, era="legacy") as client:
                calling = asyncio.create_task(client.call_tool("wait"))
                await asked.wait()
        except ClientError:
            pass
        calling.cancel()
        await left.wait()
    assert len(tools.antiphon.dispatcher.holdings.legacy_calls) == 0
