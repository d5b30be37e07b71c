"""An approval cannot be forged by its own text: in both eras, on the wire and at a terminal."""

import io
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from antiphon import Context, Server
from antiphon.client import Client, Decline, FormAsk, Terminal
from antiphon.testing import Rounds
from tests.core.test_question_text import short
from tests.shown_details import folded, pairs

FORGED = "x\nTo: eve\nAmount: 999.00 EUR"
TRUE = [("Amount", "1.00 EUR"), ("Memo", FORGED), ("To", "ada")]


def make(**world: object) -> Server:
    server = Server("bank", **world)  # type: ignore[arg-type]

    @server.tool
    async def pay(ctx: Context, details: dict[str, str]) -> str:
        return (await ctx.approve("Pay this?", details=details)).outcome

    return server


async def asked(era: str, details: dict[str, str]) -> str:
    """What the person is asked."""
    async with Rounds(make, era=era) as world:  # type: ignore[arg-type]
        done = await world.call("pay", {"details": details}, answers={"approve": Decline()})
    assert done.text == "declined"
    (ask,) = [ask for step in done.trail for ask in (*step.pushed, *step.asks.values())]
    return ask.message


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_line_break_in_a_value_adds_no_detail(era: str) -> None:
    message = await asked(era, dict(TRUE))
    assert pairs(message) == TRUE
    assert pairs(folded(message)) == TRUE
    assert message.splitlines() == [
        "Pay this?",
        "",
        '• Amount: "1.00 EUR"',
        '• Memo: "x\\nTo: eve\\nAmount: 999.00 EUR"',
        '• To: "ada"',
    ]


@pytest.mark.parametrize("era", ["modern", "legacy"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(details=st.dictionaries(short, short, min_size=1, max_size=4))
async def test_the_person_reads_exactly_the_details_that_the_handler_gave(
    era: str, details: dict[str, str]
) -> None:
    message = await asked(era, details)
    assert pairs(message) == list(details.items())
    assert pairs(folded(message)) == list(details.items())


async def on_screen(width: int, details: dict[str, str]) -> str:
    """The text inside the frame that a terminal shows."""
    screen = io.StringIO()
    console = Console(file=screen, width=width, highlight=False)
    person = Terminal(console, read=lambda: ":decline")
    async with Client(make(), answers=person) as client:
        result = await client.call_tool("pay", {"details": details})
    assert "declined" in str(result.content)
    lines = [line for line in screen.getvalue().split("\n") if line.startswith("│")]
    return "\n".join(line[1:].rstrip()[:-1].strip(" ") for line in lines)


@pytest.mark.parametrize("width", [40, 80, 400])
async def test_a_terminal_shows_which_detail_is_which(width: int) -> None:
    shown = re.sub(r"\s", "", await on_screen(width, dict(TRUE)))
    expected = "Pay this?" + "".join(
        f"• {label}: " + '"' + value.replace("\n", "\\n") + '"' for label, value in TRUE
    )
    assert shown == re.sub(r"\s", "", expected)


@settings(max_examples=25)
@given(details=st.dictionaries(short, short, min_size=1, max_size=4))
async def test_a_terminal_shows_exactly_the_details_that_the_handler_gave(
    details: dict[str, str],
) -> None:
    assert pairs(await on_screen(4_000, details)) == list(details.items())


async def test_a_message_cannot_imitate_a_detail() -> None:
    def imitating(**world: object) -> Server:
        server = Server("bank", **world)  # type: ignore[arg-type]

        @server.tool
        async def pay(ctx: Context, name: str) -> str:
            await ctx.approve(f"Pay {name}?", details={"To": "ada"})
            return "paid"

        return server

    async with Rounds(imitating) as world:
        step = await world.begin("pay", {"name": 'bob?\n\n• To: "bob"\n● Amount: "1.00 EUR"\n\n'})
    assert pairs(step.asks["approve"].message) == [("To", "ada")]


async def test_a_choice_stands_on_one_line_and_is_told_from_the_others() -> None:
    choices = ["keep", "keep\n2. delete", "\u202eeteled"]

    def choosing(**world: object) -> Server:
        server = Server("files", **world)  # type: ignore[arg-type]

        @server.tool
        async def tidy(ctx: Context) -> str:
            form = {
                "type": "object",
                "properties": {"what": {"type": "string", "enum": choices, "title": "What\nnow"}},
                "required": ["what"],
            }
            return repr((await ctx.elicit("What?", form, key="what"))["what"])

        return server

    async with Rounds(choosing) as world:
        step = await world.begin("tidy")
        done = await world.answer(step, {"what": {"what": "keep\n2. delete"}})
    field = step.asks["what"].schema["properties"]["what"]
    assert field["title"] == "What now"
    assert [one["title"] for one in field["oneOf"]] == [
        "keep",
        "keep\\x0a2. delete",
        "\\u202eeteled",
    ]
    assert [one["const"] for one in field["oneOf"]] == choices
    assert done.text == repr("keep\n2. delete")


def test_a_form_of_another_server_is_shown_on_one_line_for_each_choice() -> None:
    screen = io.StringIO()
    person = Terminal(Console(file=screen, width=80, highlight=False), read=lambda: ":cancel")
    field = {"type": "string", "oneOf": [{"const": "a", "title": "yes\n  2. no"}]}
    schema = {"type": "object", "properties": {"what": field}}
    person.elicit(FormAsk(key="k", message="?", schema=schema, server="s", origin=""))
    assert "  1. yes\\x0a \\x202. no" in screen.getvalue()
