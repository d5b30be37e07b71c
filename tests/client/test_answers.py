"""Answers as people write them: what the client sends for each."""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import Accept, AnswerUnfit, Client, Context, Scripted, Server


class Luggage(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Trip:
    day: date
    luggage: Luggage
    note: str | None = None


class TripModel(BaseModel):
    day: date
    luggage: Luggage
    note: str | None = None


def travel() -> Server:
    server = Server("travel")

    @server.tool
    async def book(ctx: Context) -> str:
        trip = await ctx.elicit("When?", Trip, key="trip")
        return f"{trip.day:%d.%m.%Y} {trip.luggage.name} {trip.note}"

    return server


async def book(answer: Any) -> str:
    async with Client(travel(), answers=Scripted(trip=answer)) as client:
        result: Any = await client.call_tool("book")
    return result.content[0].text


DAY = date(2026, 7, 28)


@pytest.mark.parametrize(
    "answer",
    [
        Trip(DAY, Luggage.LARGE),
        TripModel(day=DAY, luggage=Luggage.LARGE),
        {"day": DAY, "luggage": Luggage.LARGE},
        {"day": "2026-07-28", "luggage": "l"},
        Accept(Trip(DAY, Luggage.LARGE)),
    ],
)
async def test_a_form_may_be_answered_with_the_types_that_the_server_reads(answer: Any):
    assert await book(answer) == "28.07.2026 LARGE None"


@pytest.mark.parametrize("answer", [Trip, TripModel, object(), {"day": object()}])
async def test_what_json_cannot_express_is_refused_before_it_is_sent(answer: Any):
    with pytest.raises(AnswerUnfit, match="trip"):
        await book(Accept(answer))


async def test_a_prepared_answer_is_found_without_a_thread(monkeypatch: pytest.MonkeyPatch):
    def no_thread(*args: Any) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    assert await book({"day": "2026-07-28", "luggage": "s"}) == "28.07.2026 SMALL None"


async def test_a_subclass_of_a_script_answers_with_its_own_method():
    class Own(Scripted):
        def elicit(self, ask: Any) -> Any:
            return {**super().elicit(ask), "note": ask.key}

    answers = Own(trip={"day": "2026-07-28", "luggage": "s"})
    async with Client(travel(), answers=answers) as client:
        result: Any = await client.call_tool("book")
    assert result.content[0].text == "28.07.2026 SMALL trip"
