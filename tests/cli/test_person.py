"""A person at a real terminal: `antiphon call` in a pseudo-terminal, lines typed one by one."""

import os
import re
import shlex
import signal
import time
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from antiphon.cli.demo_person import PlayedPerson
from tests.cli.terminal import Seat
from tests.client.programs import over_http, over_stdio


@pytest.fixture
def seat():
    seats: list[Seat] = []

    def take(*words: str, **env: str) -> Seat:
        seats.append(Seat(*words, **env))
        return seats[-1]

    yield take
    for each in seats:
        try:
            os.kill(each.pid, signal.SIGKILL)
            os.waitpid(each.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def test_a_form_with_a_wrong_entry_a_correction_and_a_review(seat):
    with over_http("official low level") as url:
        person = seat("call", url, "book", "day=friday", "-a", "motto=carpe", "-a", "where=/srv")
        person.sees("rooms-by-hand at http://127.0.0.1")
        person.sees("Which room on friday?")
        person.sees("1. Elm")
        person.types("mars")
        person.sees("one of")
        person.types("2")
        person.sees("seats")
        person.types("99")
        person.sees("20")
        person.types("7")
        person.sees("What will be sent")
        person.types("yes")
        person.sees("oak for 7 on friday, 'carpe', 1 roots")
        assert person.leaves_with() == 0


def test_a_decline_at_the_terminal_reaches_the_tool_and_is_exit_code_three(seat):
    command = shlex.join(over_stdio("official low level"))
    person = seat("call", command, "book")
    person.sees("Which room")
    person.sees(":decline says no")
    person.types(":decline")
    person.sees("the room was decline")
    assert person.leaves_with() == 3


def test_an_interrupt_at_a_question_cancels_it(seat):
    with over_http("official low level") as url:
        person = seat("call", url, "book")
        person.sees("1. Elm")
        person.sees("one of these")
        person.interrupts()
        person.sees("the room was cancel")
        assert person.leaves_with() == 3


def test_a_saved_call_is_answered_at_the_terminal_later(seat, tmp_path: Path):
    file = tmp_path / "call.json"
    with over_http("official low level") as url:
        first = seat("call", url, "book", "day=monday", "--no-input", "--save", str(file))
        assert first.leaves_with() == 4
        person = seat("resume", str(file), "-a", "motto=carpe", "-a", "where=/srv")
        person.sees("Which room on monday?")
        person.sees("one of these")
        person.types("elm")
        person.sees("seats")
        person.types("")
        person.sees("Send this?")
        person.types("")
        person.sees("elm for 4 on monday")
        assert person.leaves_with() == 0


def test_the_demonstration_is_led_at_the_terminal(seat):
    person = seat("demo", DISPLAY="", WAYLAND_DISPLAY="")
    person.sees("Where should orders live?")
    person.sees("one of these")
    person.types("3")
    person.sees("Gigabytes")
    person.types("8")
    person.sees("Send this?")
    person.types("yes")
    person.sees("Start orders.ap-south with 8 GB?")
    person.sees("yes or no")
    person.types("yes")  # one yes is enough
    person.sees("orders.ap-south is running")
    person.sees("/console/link/")
    person.sees("/console/link/")
    person.sees("Refunded order 4711")
    assert person.leaves_with() == 0


def link_in(file_url: str) -> str:
    """Return where the private file leads that a browser is given."""
    page = Path(url2pathname(urlsplit(file_url).path)).read_text()
    found = re.search(r'href="([^"]+)"', page)
    assert found is not None, page
    return unescape(found[1])


def test_where_there_is_a_browser_a_person_decides_in_it(seat, tmp_path: Path):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o700)
    person = seat("demo", DISPLAY=":0", BROWSER=str(browser))
    person.sees("Where should orders live?")
    person.types(":cancel")
    person.sees("anna:")
    person.sees("open one of the links in a private window")
    until = time.monotonic() + 20
    while not opened.exists() or len(opened.read_text().split()) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    _, annas = opened.read_text().split()
    anna = PlayedPerson(link_in(annas))
    anna.press(anna.question("for-me"), "decline", "")
    person.sees("Not refunded: declined.")
    assert person.leaves_with() == 0
