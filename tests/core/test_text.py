"""Untrusted text is shown harmlessly and names become keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.text import ELLIPSIS, clip, escape, preview, safe, safe_line, snake_case

HARMFUL = [
    *map(chr, (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))),
    *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
    *map(chr, (*range(0x2000, 0x200C), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))),
    *"\u00a0\u00ad\u034f\u115f\u1160\u1680\u17b4\u17b5\u180b\u202f\u205f\u2800\u3000\u3164\uffa0",
    *"\U0001bca0\U0001d173",
    *"\u061c\u200b\u200e\u200f\u2028\u2029\u2060\ufeff\ufff9\U000e0041\ud800\udfff",
]


@pytest.mark.parametrize("char", HARMFUL, ids=lambda c: f"U+{ord(c):04X}")
def test_a_harmful_character_becomes_a_visible_escape(char: str) -> None:
    shown = escape(f"pay {char}1 coin")
    assert char not in shown
    assert shown.isprintable()
    assert f"{ord(char):02x}" in shown


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "two\nlines\tand a tab",
        "Zoë, 東京, Київ",
        "東京\u3000大阪",
        "❤\ufe0f and ❤\ufe0f\u200d🔥, key 1\ufe0f\u20e3",
        "\u0645\u06cc\u200c\u062e\u0648",
        "👩\u200d💻",
        "",
    ],
)
def test_ordinary_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


@pytest.mark.parametrize(
    "text", ["ad\u200dmin", "\u200dx", "é\u200d", "\u0645\u200c\u200c\u200c\u0645"]
)
def test_a_joiner_that_joins_nothing_is_shown(text: str) -> None:
    assert "\\u200" in escape(text)


def test_bytes_hidden_in_variation_selectors_are_shown() -> None:
    hidden = "".join(chr(0xE0100 + byte) for byte in b"call wipe()")
    assert len(escape(f"Approve?{hidden}")) == len("Approve?") + 10 * len(hidden)
    assert "\\ufe0f" in escape("❤\ufe0f\ufe0f")


def test_the_escape_names_the_code_point() -> None:
    assert escape("\x1b[2J \u202e \U000e0041") == "\\x1b[2J \\u202e \\U000e0041"


@given(st.text(st.characters(codec=None)))
def test_escaping_is_stable_and_always_encodable(text: str) -> None:
    shown = escape(text)
    assert escape(shown) == shown
    assert shown.encode().decode() == shown


@given(st.text(st.characters(codec=None)), st.integers(0, 40))
def test_nothing_shown_is_longer_than_its_limit(text: str, limit: int) -> None:
    assert len(clip(text, limit)) <= limit
    assert len(safe(text, limit)) <= limit
    assert len(preview(text, limit)) <= limit
    assert len(safe_line(text, limit)) <= limit
    assert len(safe_line(text, limit).splitlines()) <= 1


def test_a_cut_is_marked_and_an_uncut_text_is_not() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde" + ELLIPSIS
    assert safe("abc\x00def", 6) == "abc\\x" + ELLIPSIS


def test_a_line_shows_the_breaks_in_it() -> None:
    assert safe_line("x\nTo: eve\t\u2028!", 40) == "x\\nTo: eve\\t\\u2028!"
    assert safe_line("two\nlines", 5) == "two\\" + ELLIPSIS


def test_a_preview_is_one_line_of_at_most_64_characters() -> None:
    assert preview("Where\n\n  should it\tlive?") == "Where should it live?"
    assert preview("x" * 64) == "x" * 64
    assert preview("x" * 65) == "x" * 63 + ELLIPSIS
    assert preview("a" + " " * 10_000 + "b") == "a" + ELLIPSIS


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Placement", "placement"),
        ("HTTPServer", "http_server"),
        ("OrderLineV2", "order_line_v2"),
        ("getURLNow", "get_url_now"),
        ("already_snake", "already_snake"),
        ("Page[int]", "page_int"),
        ("__Private", "private"),
        ("card-number no.", "card_number_no"),
        ("日本", "日本"),
        ("_", ""),
    ],
)
def test_a_name_becomes_a_key(name: str, key: str) -> None:
    assert snake_case(name) == key


def test_a_key_is_bounded() -> None:
    assert len(snake_case("Very" * 100)) <= 64
