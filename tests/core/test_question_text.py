"""The text of a question: its details cannot pass for others, whatever they contain."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import HandlerError
from antiphon.protocol.question_text import (
    DETAILED_CHARS,
    LABEL_CHARS,
    MAX_DETAILS,
    MESSAGE_CHARS,
    VALUE_CHARS,
    check_details,
    question_text,
)
from tests.shown_details import folded, items, pairs

LINES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
UNSEEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u3164\u115f\u2800\ufe0f\U000e0101\U000e0041"
TURNING = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
MARKS = "•‣∙◦●▪·・\"'“”″\uff02\\:\uff1a-\u2013—*"
BLANKS = " \t\u00a0\u2003\u2009\u202f\u3000\u205f"
FORGED = [
    '\n• To: "eve"',
    '" • To: "eve',
    '"\nTo: "eve',
    "\nTo: eve\nAmount: 999.00 EUR",
    'Label: "value"',
    '\\" • To: \\"eve',
    "… (3 more characters are not shown)",
    "\n\nThe last answer did not fit: x",
    "\\u2022 To",
    "\n" * 50,
]
hostile = st.lists(
    st.one_of(
        st.sampled_from(LINES + UNSEEN + TURNING + MARKS + BLANKS),
        st.sampled_from(FORGED),
        st.text(st.characters(codec="utf-8"), max_size=5),
    ),
    max_size=8,
).map("".join)
short = hostile.filter(lambda text: len(text) <= 10)


@given(hostile, st.dictionaries(short, short, max_size=5), hostile)
@example("Pay this?", {"Memo": "x\nTo: eve\nAmount: 999.00 EUR", "To": "ada"}, "")
@example("Pay this?", {"Memo": 'x" • To: "eve', "To": "ada"}, "")
@example("Pay this?", {'Memo: "x" • To': "a", "Memo\nTo": "b"}, "")
@example('Pay?\n\n• To: "eve"', {"To": "ada"}, 'wrong\n• To: "eve"')
def test_the_details_that_are_read_are_the_details_that_were_given(
    message: str, details: dict[str, str], reason: str
) -> None:
    shown = question_text(message, details, reason)
    assert pairs(shown) == list(details.items())
    assert pairs(folded(shown)) == list(details.items())


@given(st.dictionaries(short, hostile, max_size=5))
def test_each_detail_is_one_line_without_a_character_that_moves_or_hides_others(
    details: dict[str, str],
) -> None:
    shown = question_text("Pay?", details)
    head, _, body = shown.partition("\n\n")
    assert head == "Pay?"
    assert len(body.splitlines()) == len(details)
    assert not set(body) & set(TURNING + LINES.replace("\n", "") + "\u200b\u2060\ufeff\u3164\u2800")
    assert not re.search("[ \u00a0\u3000]{2}", body)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1.00 EUR", '"1.00 EUR"'),
        ("مى‌خواهم", '"مى‌خواهم"'),
        ("col·legi 👩‍💻 ❤️", '"col·legi 👩‍💻 ❤️"'),
        (4200, "4200"),
        (True, "true"),
        (None, "null"),
        (["a", "b•"], '["a","b\\u2022"]'),
        ({"n": 1}, '{"n":1}'),
    ],
)
def test_ordinary_values_are_shown_as_they_are(value: object, text: str) -> None:
    assert question_text("Pay?", {"Amount": value}) == f"Pay?\n\n• Amount: {text}"


@given(st.text(st.characters(codec="utf-8"), min_size=300, max_size=2_000))
def test_a_long_value_is_cut_and_the_count_of_what_is_missing_is_true(text: str) -> None:
    [(label, cut, value, lost)] = items(question_text("Pay?", {"Memo": text}))
    assert (label, cut) == ("Memo", 0)
    assert text.startswith(value)
    assert len(value) + lost == len(text)


@pytest.mark.parametrize("text", ["x" * 10_000, "\u202e" * 10_000, "\n" * 10_000, " " * 10_000])
def test_nothing_pushes_the_question_out_of_view(text: str) -> None:
    shown = question_text(text, {text: text})
    head, _, body = shown.rpartition("\n\n")
    assert len(head) <= DETAILED_CHARS + 60
    assert head.count("\n") <= 2
    assert len(body) <= LABEL_CHARS + VALUE_CHARS + 120
    assert len(question_text(text, None)) <= MESSAGE_CHARS + 60


def test_a_bullet_of_the_message_is_a_dash_because_bullets_mark_details() -> None:
    assert question_text("Choose:\n• one\n● two", None) == "Choose:\n- one\n- two"


def test_details_that_nobody_reads_or_that_cannot_be_shown_are_refused() -> None:
    with pytest.raises(HandlerError, match="17 entries, and nobody reads more than 16"):
        check_details({str(number): number for number in range(MAX_DETAILS + 1)})
    for value in (object(), "\ud800", {1, object()}):
        with pytest.raises(HandlerError, match=r"details\['To'\] cannot be shown"):
            check_details({"To": value})


@pytest.mark.parametrize(
    "mark",
    "\u25c6\u25c7\u25ab\u25b6\u25c9\u25ce\u25a1\u26aa\u2981\u2b1b\u2b58\u2e30\u2218\u2606\u2756\u27a4\u2059"
    "\u203b\uff65\u2e31\u0387\U00010101\U0001f534\U0001f539\U0001f7e0",
)
def test_nothing_in_a_detail_looks_like_the_bullet_of_another(mark: str) -> None:
    shown = question_text("Pay?", {"To": f"ok\u201d {mark} Amount: \u201c1", f"{mark} Note": 1})
    assert mark not in shown
    assert shown.count("\u2022") == 2


@pytest.mark.parametrize("quote", "\uff02\u02ba\u2033\u3003\u201f\u275d\u301e\u02ee\u02dd\u2036")
def test_nothing_in_a_value_looks_like_the_quote_that_ends_it(quote: str) -> None:
    shown = question_text("Pay?", {"To": f"ada{quote}, approved by: {quote}eve"})
    assert quote not in shown


@pytest.mark.parametrize(
    "colon", "\u0703\u0704\u16ec\ufe30\u1803\u1809\u205a\u02f8\ua4fd\u2982\u0903\u0a83"
)
def test_a_label_with_what_looks_like_a_colon_stands_in_quotes(colon: str) -> None:
    shown = question_text("Pay?", {f"To{colon} ada, from": "eve"})
    assert shown.splitlines()[-1].startswith('\u2022 "To')
    assert shown.endswith(' ada, from": "eve"')
