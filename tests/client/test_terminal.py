"""The person at the terminal, with lines typed by the test."""

import io
from collections.abc import Iterable
from typing import Any

import pytest
from rich.console import Console

from antiphon.client import Accept, Cancel, Decline, FormAsk, Terminal, UrlAsk
from antiphon.client.terminal import url_warnings


class Person:
    """Types lines and sees what is shown."""

    def __init__(self, *lines: str) -> None:
        self.screen = io.StringIO()
        self.opened: list[str] = []
        typed = iter(lines)

        def read() -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None

        self.terminal = Terminal(
            Console(file=self.screen, width=100, highlight=False),
            read=read,
            open_url=self.opened.append,
        )

    @property
    def seen(self) -> str:
        return self.screen.getvalue()


def form(
    message: str = "Where?", required: Iterable[str] = ("region",), **properties: Any
) -> FormAsk:
    fields = properties or {
        "region": {"type": "string", "enum": ["eu", "us"], "title": "Region"},
        "size": {"type": "integer", "minimum": 1, "default": 2},
    }
    schema = {"type": "object", "properties": fields, "required": list(required)}
    return FormAsk(key="k", message=message, schema=schema, server="cloud", origin="http://host")


@pytest.mark.requirement("ELICIT-05")
def test_a_form_is_filled_reviewed_and_sent():
    person = Person("1", "", "yes")
    assert person.terminal.elicit(form()) == Accept({"region": "eu", "size": 2})
    assert "cloud at http://host asks" in person.seen
    assert "What will be sent" in person.seen


def test_a_wrong_entry_is_explained_and_asked_again():
    person = Person("mars", "us", "many", "5", "y")
    assert person.terminal.elicit(form()) == Accept({"region": "us", "size": 5})
    assert person.seen.count("Region") >= 2


@pytest.mark.requirement("ELICIT-05")
def test_what_was_typed_can_be_edited_before_it_is_sent():
    person = Person("eu", "3", "edit", "us", "", "yes")
    assert person.terminal.elicit(form()) == Accept({"region": "us", "size": 3})


@pytest.mark.requirement("ELICIT-05")
@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([":decline"], Decline()),
        (["eu", ":d"], Decline()),
        (["eu", "2", "decline"], Decline()),
        ([":cancel"], Cancel()),
        (["eu", "2", "cancel"], Cancel()),
        ([], Cancel()),
        (["eu"], Cancel()),
    ],
)
def test_declining_and_cancelling_are_possible_at_every_prompt(lines: list[str], answer: Any):
    assert Person(*lines).terminal.elicit(form()) == answer


def test_wrong_lines_do_not_go_on_for_ever():
    assert Person(*["mars"] * 50).terminal.elicit(form()) == Cancel()


def test_an_optional_field_left_empty_is_not_sent():
    ask = form(required=(), note={"type": "string"})
    assert Person("", "y").terminal.elicit(ask) == Accept({})


def test_several_options_are_chosen_by_number():
    ask = form(
        required=("tags",),
        tags={"type": "array", "items": {"anyOf": [{"const": "a", "title": "Ay"}, {"const": "b"}]}},
    )
    assert Person("1,2", "y").terminal.elicit(ask) == Accept({"tags": ["a", "b"]})


def test_the_servers_text_cannot_move_the_cursor_or_forge_the_screen():
    person = Person(":decline")
    person.terminal.elicit(form("\x1b[2J\x1b]8;;http://evil\x07ok\u202e[bold]not bold[/bold]\r"))
    assert "\x1b[2J" not in person.seen
    assert "\u202e" not in person.seen
    assert "[bold]not bold[/bold]" in person.seen


def visit(url: str = "https://id.example/login?x=1") -> UrlAsk:
    return UrlAsk(key="u", message="Sign in", url=url, server="cloud")


@pytest.mark.requirement("ELICIT-05", "ELICIT-35")
def test_a_page_is_opened_only_after_an_explicit_yes():
    person = Person("", "yes", "open")
    assert person.terminal.elicit_url(visit()) == Accept()
    assert person.opened == ["https://id.example/login?x=1"]
    assert "https://id.example/login?x=1" in person.seen
    assert "host: id.example" in person.seen


@pytest.mark.parametrize(
    ("word", "answer"), [("decline", Decline()), ("c", Cancel()), ("a", Accept())]
)
def test_a_page_that_is_not_opened_here_stays_closed(word: str, answer: Any):
    person = Person(word)
    assert person.terminal.elicit_url(visit()) == answer
    assert person.opened == []


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "https://", "http://[::1"]
)
def test_what_is_no_web_page_can_only_be_refused(url: str):
    person = Person("open", "accept", "decline")
    assert person.terminal.elicit_url(visit(url)) == Decline()
    assert person.opened == []


@pytest.mark.requirement("ELICIT-35")
@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("https://xn--pple-43d.com/", "Punycode"),
        ("https://\u0430pple.com/", "Punycode"),
        ("http://bank.example/", "not encrypted"),
        ("https://bank.example@evil.example/", "before @"),
    ],
)
def test_suspicious_urls_are_pointed_out(url: str, word: str):
    assert any(word in warning for warning in url_warnings(url))
    person = Person("decline")
    person.terminal.elicit_url(visit(url))
    assert "Warning" in person.seen


def test_an_ordinary_url_brings_no_warning():
    assert url_warnings("https://id.example/x") == []
    assert url_warnings("http://127.0.0.1:8000/") == []


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example\\@good.example/pay",
        "https://evil.example\\.good.example/",
        "https://good.example@evil.example/",
        "https://evil.example\t@good.example/",
        "https://good.example/\u202egnp.exe",
        "https://0x7f.1/",
        "https://good\u3002example/",
    ],
)
def test_a_url_whose_host_can_be_misread_is_not_opened(url: str):
    person = Person("open", "accept", "decline")
    assert person.terminal.elicit_url(visit(url)) == Decline()
    assert person.opened == []
    assert "host: (unreadable)" in person.seen


def test_a_host_of_imitating_letters_is_shown_as_it_is_sent_and_not_opened():
    person = Person("open", "accept")
    assert person.terminal.elicit_url(visit("https://g\u043e\u043egle.com/")) == Accept()
    assert person.opened == []
    assert "host: xn--ggle-55da.com" in person.seen


def test_invisible_letters_and_breaks_in_a_form_are_shown():
    person = Person(":decline")
    title = "Amount\n\nSend this? yes\u3164"
    person.terminal.elicit(form("Pay\U000e0101\u2800?", n={"type": "string", "title": title}))
    assert "Amount Send this? yes\\u3164" in person.seen, "on one line, and nothing invisible"
    assert "Pay\\U000e0101\\u2800?" in person.seen
