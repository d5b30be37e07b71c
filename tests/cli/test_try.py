"""`antiphon try` on sound servers, on servers with planted mistakes, and on other frameworks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.child_processes import http_server
from tests.cli.running import Ran, antiphon
from tests.client.programs import over_http

ANSWERS = ["-a", "place.region=eu", "-a", "approve.approve=yes"]
TWO = ["-H", "Authorization: anna", "--as", "Authorization: boris"]


@contextmanager
def served(target: str) -> Iterator[str]:
    """Serve in a process of its own, from a thread with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = http_server(target)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def sound() -> Iterator[str]:
    with served("tests.cli.tried_servers:server") as url:
        yield url


def found(ran: Ran) -> set[str]:
    return {problem["id"] for problem in ran.json["problems"]}


def test_nothing_is_found_on_a_sound_server(sound: str):
    ran = antiphon("try", sound, "order", "name=db", *ANSWERS, *TWO)
    assert ran.code == 0, ran.out
    assert "nothing found" in ran.out
    assert "request 3 sent twice at once" in ran.err


def test_without_a_second_caller_it_is_said_what_was_not_tried(sound: str):
    ran = antiphon("try", sound, "order", "name=db", *ANSWERS)
    assert ran.code == 0, ran.out
    assert "not tried: what somebody else brings" in ran.out


def test_a_server_that_cannot_tell_its_callers_apart_is_found():
    with served("tests.cli.tried_servers:anybody") as url:
        ran = antiphon("try", url, "order", "name=db", *ANSWERS, *TWO, "--json")
    assert (ran.code, found(ran)) == (1, {"stranger-accepted"})


@pytest.mark.parametrize(
    ("tool", "problem"), [("deaf", "refusal-acts"), ("eager", "unasked-accepted")]
)
def test_a_tool_with_a_planted_mistake_is_found(sound: str, tool: str, problem: str):
    ran = antiphon("try", sound, tool, *ANSWERS, "--json")
    assert (ran.code, found(ran)) == (1, {problem})


def test_a_task_is_followed_and_disturbed_like_a_call(sound: str):
    ran = antiphon("try", sound, "later", "name=db", *ANSWERS, *TWO, "--json")
    assert (ran.code, found(ran)) == (0, set())
    assert "request 3 sent twice at once" in ran.json["runs"]
    assert "'approve' answered with no" in ran.json["runs"]


def test_a_task_that_acts_after_a_no_is_found(sound: str):
    ran = antiphon("try", sound, "deaf_later", *ANSWERS, "--json")
    assert (ran.code, found(ran)) == (1, {"refusal-acts"})


def test_a_task_that_somebody_else_may_answer_see_and_cancel_is_found():
    with served("tests.cli.tried_servers:anybody") as url:
        ran = antiphon("try", url, "later", "name=db", *ANSWERS, *TWO, "--json")
    assert ran.code == 1
    told = " ".join(one["detail"] for one in ran.json["problems"])
    assert all(word in told for word in ("tasks/get was", "tasks/update was", "tasks/cancel was"))


def test_a_task_that_neither_asks_nor_ends_is_said_to(sound: str):
    ran = antiphon("try", sound, "slow", *ANSWERS, "--timeout", "1")
    assert ran.code == 2
    assert "the task neither asked nor ended within 1 s" in ran.err


def test_a_call_that_fails_by_itself_is_said_to(sound: str):
    ran = antiphon("try", sound, "failing", *ANSWERS, "--json")
    assert (ran.code, found(ran)) == (1, {"story-fails"})


def test_state_that_is_not_protected_is_found():
    answers = ["-a", "room.room=oak", "-a", "motto=hello", "-a", "where=/tmp"]
    with over_http("official low level") as url:
        ran = antiphon("try", url, "book", "day=friday", *answers, *TWO, "--json")
    assert ran.code == 1
    assert {"tampered-accepted", "stranger-accepted", "moved-accepted"} <= found(ran)


def test_state_that_is_protected_but_not_redeemed_is_found():
    answers = ["-a", "__main__:which_room.room=Oak", "-a", "__main__:really.sure=yes"]
    with over_http("official resolvers") as url:
        ran = antiphon("try", url, "book", "day=friday", *answers, "--json")
    assert (ran.code, found(ran)) == (1, {"other-answer-accepted"})


def test_a_tool_that_asks_on_after_a_no_is_tried_to_the_end():
    with over_http("typescript") as url:
        answers = ["-a", "room.room=Oak", "-a", "sure.sure=yes"]
        ran = antiphon("try", url, "book", "day=friday", *answers, "--json")
    assert ran.code == 1
    assert {"tampered-accepted", "other-answer-accepted"} & found(ran)
    assert ran.json["runs"][-1] == "answers before they are asked for"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["silent"], "asked nothing"),
        (["nothing"], "no tool 'nothing'; it has: order"),
        (["order", "name=db"], "no answer for: place"),
        (["order", "name"], "name"),
        (["order", "name=db", "-a", "place"], "place"),
        (["order", "name=db", "--as", "boris"], "header"),
    ],
)
def test_what_cannot_be_tried_is_said_with_the_cure(sound: str, words: list[str], reason: str):
    ran = antiphon("try", sound, *words)
    assert ran.code == 2
    assert reason in ran.err


def test_a_server_that_is_not_there_is_said():
    ran = antiphon("try", "http://127.0.0.1:9/mcp", "order", *ANSWERS)
    assert ran.code == 2
    assert "is the server running?" in ran.err
