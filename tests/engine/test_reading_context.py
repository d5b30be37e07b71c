"""What a handler can read of its call: extensions, `_meta`, tasks, typed state and answers."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    Approval,
    Approve,
    Completion,
    Context,
    Elicit,
    ElicitUrl,
    InputRequired,
    ListRoots,
    Opened,
    Root,
    Sample,
    Seal,
    Server,
)
from antiphon.errors import HandlerError
from tests.linear.one_tool_server import EU, Place, serving
from tests.requirements.demo_server import KEY, Peer

TASKS = "io.modelcontextprotocol/tasks"
FORMS: dict[str, Any] = {"elicitation": {}}


# --- extensions, _meta, tasks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extensions", "asked", "expected"),
    [
        ({"com.example/audit": {}}, "com.example/audit", True),
        ({"com.example/audit": {"level": 2}}, "com.example/audit", True),
        ({"com.example/audit": {}}, "com.example/other", False),
        ({"com.example/audit": {}}, "audit", False),
        ({TASKS: {}}, TASKS, True),
        ({TASKS: {}}, "tasks", True),
        ({}, "tasks", False),
        (None, "tasks", False),
        ({"com.example/audit": None}, "com.example/audit", False),
    ],
)
async def test_a_handler_can_ask_whether_the_client_has_an_extension(
    rounds: Any, extensions: Any, asked: str, expected: bool
) -> None:
    async def look(ctx: Context) -> bool:
        return ctx.supports(asked)

    capabilities = FORMS if extensions is None else {**FORMS, "extensions": extensions}
    done = await rounds(serving(look), capabilities=capabilities).begin("look")
    assert done.structured == {"result": expected}


async def test_an_extension_stays_what_it_was_when_it_was_first_looked_for(rounds: Any) -> None:
    async def look(ctx: Context) -> str:
        before = ctx.supports("com.example/audit")
        await ctx.elicit("Where?", Place)
        return f"{before} {ctx.supports('com.example/audit')}"

    world = rounds(serving(look), capabilities={**FORMS, "extensions": {"com.example/audit": {}}})
    step = await world.begin("look")
    world.capabilities = FORMS
    assert (await world.answer(step, {"place": EU})).text == "True True"


@pytest.mark.parametrize("name", ["", None, 5])
async def test_what_is_no_name_of_an_extension_is_refused(rounds: Any, name: Any) -> None:
    async def look(ctx: Context) -> bool:
        return ctx.supports(name)

    assert "takes the id of an extension" in (await rounds(serving(look)).begin("look")).text


async def test_meta_can_be_read_and_not_changed(rounds: Any) -> None:
    async def look(ctx: Context) -> str:
        meta: Any = ctx.meta
        with pytest.raises(TypeError):
            meta["com.example/shop"] = "other"
        with pytest.raises(TypeError):
            meta["com.example/shop"]["till"] = 2
        with pytest.raises(AttributeError):
            meta["com.example/shop"]["tags"].append("x")
        return f"{meta['com.example/shop']['till']} {meta.get('com.example/none')}"

    world = rounds(serving(look))
    own = {"com.example/shop": {"till": 7, "tags": ["a"]}}
    done = await world.send("tools/call", {"name": "look", "arguments": {}, "_meta": own})
    assert done.text == "7 None"


async def test_a_call_in_rounds_is_in_no_task(rounds: Any) -> None:
    async def look(ctx: Context) -> bool:
        return ctx.in_task

    assert (await rounds(serving(look)).begin("look")).structured == {"result": False}


async def test_meta_of_an_http_request_is_the_one_that_was_sent() -> None:
    server = Server("meta", seal=Seal(keys=[KEY]))

    @server.tool
    async def look(ctx: Context) -> Any:
        return ctx.meta.get("com.example/shop", "none")

    peer = Peer(server.asgi())
    for number in (7, 8):
        done = await peer.ask("tools/call", meta={"com.example/shop": number}, name="look")
        assert done.result["content"][0]["text"] == str(number)
    assert (await peer.call("look")).result["content"][0]["text"] == "none"


# --- state ---------------------------------------------------------------------------------------


class Progress(BaseModel):
    step: int
    at: datetime | None = None
    price: Decimal = Decimal(0)


@dataclass
class Position:
    step: int
    seen: tuple[int, ...] = ()


class Colour(Enum):
    RED = "red"


STATES: list[Any] = [
    Progress(step=2, at=datetime(2026, 1, 2, tzinfo=UTC), price=Decimal("1.50")),
    Position(3, (1, 2)),
]


@pytest.mark.parametrize("state", STATES)
async def test_a_state_of_a_type_comes_back_as_that_type(rounds: Any, state: Any) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        found = ctx.state_as(type(state))
        if found is None:
            return InputRequired(state=state)
        return f"{found == state} {type(ctx.state).__name__}"

    assert (await rounds(serving(look)).call("look")).text == "True dict"


@pytest.mark.parametrize(
    ("kind", "words"), [(Position, "is no Position"), (int, "is no int"), (Progress, "step")]
)
async def test_a_state_that_does_not_fit_the_type_is_named(
    rounds: Any, kind: Any, words: str
) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        if ctx.round == 1:
            return InputRequired(state={"steps": "many"})
        with pytest.raises(HandlerError, match=words):
            ctx.state_as(kind)
        return "refused"

    assert (await rounds(serving(look)).call("look")).text == "refused"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (b"\x00bytes", "state) is a bytes"),
        ({1, 2}, "state) is a set"),
        ((1, 2), "state) is a tuple"),
        ({1: "one"}, "has the key 1"),
        ({"a": [{"b": {2: 3}}]}, "state['a'][0]['b']) has the key 2"),
        ({"a": [b"x"]}, "state['a'][0]) is a bytes"),
        ({"a": Progress(step=1)}, "state['a']) is a Progress"),
        (datetime(2026, 1, 2, tzinfo=UTC), "state) is a datetime"),
        (Decimal(1), "state) is a Decimal"),
        (Colour.RED, "state) is a Colour"),
        (float("nan"), "state) is a float"),
        (float("inf"), "state) is a float"),
        (object(), "state) is a object"),
    ],
)
async def test_a_state_that_json_has_no_word_for_is_refused(
    rounds: Any, state: Any, words: str
) -> None:
    async def look() -> InputRequired:
        return InputRequired(state=state)

    done = await rounds(serving(look)).begin("look")
    assert done.is_error
    assert words in done.text


@pytest.mark.parametrize(
    "state", ["x", 1, 1.5, True, [], {}, {"a": [1, None, {"b": "c"}]}, [[1], {"x": False}]]
)
async def test_every_json_value_comes_back_as_it_was(rounds: Any, state: Any) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        if ctx.round == 1:
            return InputRequired(state=state)
        return str(ctx.state == state and type(ctx.state) is type(state))

    assert (await rounds(serving(look)).call("look")).text == "True"


# --- answers by kind -----------------------------------------------------------------------------

ASKS: dict[str, Any] = {
    "form": Elicit("Where?", Place),
    "url": ElicitUrl("Pay", "https://shop.example/pay"),
    "idea": Sample("An idea?"),
    "roots": ListRoots(),
    "sure": Approve("Sure?"),
}
READ_AS: dict[str, Any] = {
    "form": Place,
    "url": Opened,
    "idea": Completion,
    "roots": list[Root],
    "sure": Approval,
}
SAID: dict[str, Any] = {
    "form": EU,
    "url": True,
    "idea": "more",
    "roots": ["file:///srv"],
    "sure": True,
}


@pytest.mark.parametrize("kind", sorted(ASKS))
async def test_an_answer_is_read_as_what_was_asked_for(rounds: Any, kind: str) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        if kind not in ctx.answers:
            assert list(ctx.answers) == []
            return InputRequired({kind: ASKS[kind]})
        assert list(ctx.answers) == [kind]
        found = ctx.answers.get(kind, READ_AS[kind])
        same = ctx.answers.outcome(kind, READ_AS[kind]).unwrap()
        assert found == same
        if kind != "form":
            assert found == ctx.answers.get(kind)
        return type(found).__name__

    done = await rounds(serving(look)).call("look", answers={kind: SAID[kind]})
    assert done.text == getattr(READ_AS[kind], "__origin__", READ_AS[kind]).__name__


@pytest.mark.parametrize("kind", ["form", "url", "idea", "roots"])
@pytest.mark.parametrize("read_as", ["url", "idea", "roots"])
async def test_an_answer_of_another_kind_says_what_it_is(
    rounds: Any, kind: str, read_as: str
) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        if kind not in ctx.answers:
            return InputRequired({kind: ASKS[kind]})
        if kind == read_as:
            return "asked with itself"
        with pytest.raises(HandlerError, match="it was asked with") as caught:
            ctx.answers.get(kind, READ_AS[read_as])
        return str(caught.value)

    done = await rounds(serving(look)).call("look", answers={kind: SAID[kind]})
    assert "asked with" in done.text
    assert not done.is_error


@pytest.mark.parametrize(("kind", "read_as"), [("form", Place), ("url", Opened)])
async def test_a_refusal_is_an_answer_that_has_come(rounds: Any, kind: str, read_as: Any) -> None:
    async def look(ctx: Context) -> str | InputRequired:
        if kind not in ctx.answers:
            return InputRequired({kind: ASKS[kind]})
        assert ctx.answers.get(kind, read_as) is None
        return ctx.answers.outcome(kind, read_as).status

    world = rounds(serving(look))
    done = await world.send_raw(await world.begin("look"), {kind: {"action": "decline"}})
    assert done.text == "declined"
