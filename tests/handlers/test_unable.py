"""A client that cannot be asked is told what helps, before anything was done."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    ListRoots,
    Resolve,
    Sample,
    Server,
)
from antiphon.errors import ConfigError
from antiphon.testing import Rounds

FORMS = {"elicitation": {"form": {}}}
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


class Trip(BaseModel):
    city: str


def serving(add: Callable[[Server], object]) -> Callable[..., Server]:
    def make(**world: Any) -> Server:
        server = Server("travel", **world)
        add(server)
        return server

    return make


async def told(add: Callable[[Server], object], name: str, **world: Any) -> Any:
    async with Rounds(serving(add), **world) as rounds:
        return await rounds.call(name, answers={"trip": {"city": "Rome"}})


def asking(server: Server) -> None:
    @server.tool
    async def plan(ctx: Context) -> str:
        return (await ctx.elicit("Where to?", Trip)).city


@ERAS
async def test_the_text_names_what_is_missing_what_was_done_and_what_helps(era: str) -> None:
    done = await told(asking, "plan", capabilities={}, era=era)
    assert done.is_error
    assert done.text == (
        "tool 'plan' needs a person who fills a form (elicitation.form), which this client did not "
        "declare. The call stopped there, before any recorded effect, and trying again will not "
        "help. Enable it in the client, or use a client that has it."
    )
    if era == "modern":
        assert done.code == -32021
        assert done.error.data == {"requiredCapabilities": FORMS}


def asking_three(server: Server) -> None:
    @server.tool
    async def plan(ctx: Context) -> str:
        got = await ctx.gather(trip=Elicit("Where?", Trip), a=Sample("Why?"), b=ListRoots())
        return str(got)

    @server.tool(asks=[Elicit, Sample, ListRoots])
    async def declared(ctx: Context) -> str:
        return (await ctx.elicit("Where to?", Trip)).city

    @server.tool
    async def native(ctx: Context) -> Any:
        return InputRequired({"trip": Elicit("Where?", Trip), "a": Sample("?"), "b": ListRoots()})


@ERAS
@pytest.mark.parametrize("tool", ["plan", "declared", "native"])
async def test_everything_that_is_missing_is_named_at_once(tool: str, era: str) -> None:
    done = await told(asking_three, tool, capabilities=FORMS, era=era)
    assert "a completion of the client's model (sampling) and" in done.text
    assert "the folders of the workspace (roots), which" in done.text
    assert "elicitation" not in done.text
    if era == "modern":
        assert done.error.data == {"requiredCapabilities": {"sampling": {}, "roots": {}}}


@ERAS
async def test_what_was_done_before_is_not_denied(era: str) -> None:
    def add(server: Server) -> None:
        @server.tool
        async def pay(ctx: Context) -> str:
            await ctx.once("pay", lambda: 1)
            return (await ctx.elicit("Where to?", Trip)).city

        @server.tool(unable="Ask the person for the city.", asks=[Sample])
        async def pay_first(ctx: Context) -> str:
            await ctx.once("pay", lambda: 1)
            return (await ctx.elicit("Where to?", Trip)).city

    for tool in ("pay", "pay_first"):
        done = await told(add, tool, capabilities={"sampling": {}}, era=era)
        assert "What was done before stays done, and calling again will not help" in done.text
        assert "Nothing was done" not in done.text


@ERAS
async def test_that_nothing_was_done_is_said_before_the_first_line_only(era: str) -> None:
    acted: list[str] = []

    def add(server: Server) -> None:
        @server.tool
        async def late(ctx: Context) -> str:
            acted.append("late")  # recorded nowhere
            return (await ctx.elicit("Where to?", Trip)).city

        @server.tool(asks=[Elicit])
        async def early(ctx: Context) -> str:
            acted.append("early")
            return (await ctx.elicit("Where to?", Trip)).city

    for tool in ("late", "early"):
        done = await told(add, tool, capabilities={}, era=era)
        assert ("Nothing was done" in done.text) is (tool not in acted)
        assert "trying again will not help" in done.text
    assert acted == ["late"]


WORDS = "Ask the person for the city, then call plan_to(city)."


def unable(server: Server) -> None:
    entered: list[str] = []

    @server.tool(unable=WORDS)
    async def plan(ctx: Context) -> str:
        entered.append("plan")
        return (await ctx.elicit("Where to?", Trip)).city

    @server.tool(unable=WORDS, asks=[Sample])
    async def sampled(ctx: Context) -> str:
        entered.append("sampled")
        return (await ctx.sample("Where to?")).text

    @server.prompt(unable=WORDS)
    async def letter(ctx: Context) -> str:
        entered.append("letter")
        return (await ctx.elicit("Where to?", Trip)).city

    @server.resource("trip://next", unable=WORDS)
    async def next_trip(ctx: Context) -> str:
        entered.append("next_trip")
        return (await ctx.elicit("Where to?", Trip)).city

    @server.tool
    def who_was_entered() -> str:
        return ",".join(entered)


@ERAS
async def test_a_tool_answers_in_the_words_of_its_author_before_its_first_line(era: str) -> None:
    async with Rounds(serving(unable), fresh=False, capabilities={}, era=era) as world:  # type: ignore[arg-type]
        for tool in ("plan", "sampled"):
            done = await world.call(tool)
            assert (done.code, done.is_error, done.text) == (0, True, WORDS)
        prompt = await world.prompt("letter")
        resource = await world.read("trip://next")
        assert (await world.call("who_was_entered")).text == ""
    for done in (prompt, resource):
        assert done.text == WORDS
        assert done.code == (-32021 if era == "modern" else -32603)
    if era == "modern":
        assert prompt.error is not None
        assert prompt.error.data == {"requiredCapabilities": FORMS}


@ERAS
async def test_a_client_that_can_be_asked_is_asked(era: str) -> None:
    done = await told(unable, "plan", capabilities=FORMS, era=era)
    assert done.text == "Rome"


async def test_the_words_stand_for_an_ask_that_was_not_declared_too() -> None:
    def add(server: Server) -> None:
        @server.tool(unable=WORDS)
        async def plan(ctx: Context) -> str:
            await ctx.elicit("Where to?", Trip)
            return (await ctx.sample("Why?")).text

    done = await told(add, "plan", capabilities=FORMS)
    assert (done.code, done.is_error, done.text) == (0, True, WORDS)


async def test_a_handler_for_old_clients_is_not_held_back_by_the_words() -> None:
    def add(server: Server) -> None:
        @server.tool(unable=WORDS)
        async def plan(ctx: Context) -> str:
            return (await ctx.elicit("Where to?", Trip)).city

        @plan.legacy  # type: ignore[attr-defined]
        async def plan_without(ctx: Context) -> str:
            return "somewhere"

    assert (await told(add, "plan", capabilities={}, era="legacy")).text == "somewhere"


def test_words_without_a_word_are_refused() -> None:
    with pytest.raises(ConfigError, match="unable="):
        Server("travel").tool(unable=" ")


async def test_a_tool_that_needs_tasks_says_so_and_from_which_revision_on() -> None:
    def add(server: Server) -> None:
        @server.tool(task="required")
        async def migrate() -> str:
            return "done"

    modern = await told(add, "migrate", capabilities={})
    assert "needs tasks (extensions.io.modelcontextprotocol/tasks), which this" in modern.text
    old = await told(add, "migrate", capabilities={}, era="legacy")
    assert "tool 'migrate' needs tasks" in old.text
    assert "Use a client of revision 2026-07-28 or later" in old.text
    assert "has to ask" not in old.text


# --- steps and resolvers -------------------------------------------------------------------------

happened: list[str] = []


def paying(server: Server) -> None:
    flow = server.flow("book")

    @flow.step
    def trip() -> Elicit:
        happened.append("trip")
        return Elicit("Where to?", Trip)

    @flow.step
    async def payment(ctx: Context, trip: Trip) -> str:
        return await ctx.once("pay", lambda: happened.append("paid") or "receipt")

    @flow.step
    def text(payment: str) -> Sample:
        return Sample(f"Thank for {payment}")

    @flow.finish
    def book(text: Any) -> str:
        """Book a trip."""
        return "booked"


def resolving(server: Server) -> None:
    async def trip(ctx: Context) -> Elicit:
        happened.append("trip")
        return Elicit("Where to?", Trip)

    async def text(trip: Annotated[Trip, Resolve(trip)]) -> Sample:
        return Sample(trip.city)

    @server.tool
    async def book(words: Annotated[Any, Resolve(text)]) -> str:
        """Book a trip."""
        return "booked"


@ERAS
@pytest.mark.parametrize("shape", [paying, resolving])
async def test_nothing_is_asked_or_paid_when_a_later_declared_ask_is_impossible(
    shape: Callable[[Server], None], era: str
) -> None:
    happened.clear()
    done = await told(shape, "book", capabilities=FORMS, era=era)
    assert happened == []
    assert done.asked == []
    assert "a completion of the client's model (sampling), which" in done.text
    assert "Nothing was done" in done.text


@ERAS
@pytest.mark.parametrize("shape", [paying, resolving])
async def test_a_flow_whose_asks_are_all_possible_runs(
    shape: Callable[[Server], None], era: str
) -> None:
    happened.clear()
    async with Rounds(serving(shape), era=era) as world:  # type: ignore[arg-type]
        done = await world.call("book", answers={"trip": {"city": "Rome"}, "sample": "thanks"})
    assert done.text == "booked"


@ERAS
async def test_a_step_that_may_do_without_an_ask_is_not_held_back(era: str) -> None:
    def add(server: Server) -> None:
        flow = server.flow("book")

        @flow.step
        def trip(ctx: Context) -> Elicit | Trip:
            return Elicit("Where?", Trip) if ctx.can(Elicit) else Trip(city="Oslo")

        @flow.finish
        def book(trip: Trip) -> str:
            """Book a trip."""
            return trip.city

    assert (await told(add, "book", capabilities={}, era=era)).text == "Oslo"


async def test_a_flow_has_words_of_its_own_for_clients_that_cannot_go_on() -> None:
    def add(server: Server) -> None:
        flow = server.flow("book", unable=WORDS)

        @flow.step
        def page() -> ElicitUrl:
            return ElicitUrl("Pay", "https://example.org/")

        @flow.finish
        def book(page: Any) -> str:
            """Book a trip."""
            return "booked"

    done = await told(add, "book", capabilities=FORMS)
    assert (done.code, done.is_error, done.text) == (0, True, WORDS)
    async with Rounds(serving(add), capabilities={"elicitation": {"url": {}}}) as world:
        assert (await world.call("book", answers={"url": True})).text == "booked"
