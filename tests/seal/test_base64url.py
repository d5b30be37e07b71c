"""Canonical base64url: one text for any bytes, and no other text is read."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.seal.sealer import from_text, to_text

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@given(st.binary(max_size=300))
def test_what_is_written_is_read_back_and_agrees_with_the_standard_library(data: bytes):
    text = to_text(data)

    assert text == base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert from_text(text) == data


@given(st.text(alphabet=ALPHABET + "+/=\n é\x00\ud800", max_size=12) | st.text(max_size=8))
def test_text_is_read_only_if_it_is_what_would_be_written(text: str):
    try:
        data = from_text(text)
    except ValueError:
        return
    assert to_text(data) == text


@given(st.binary(min_size=1, max_size=60), st.sampled_from(ALPHABET))
def test_another_last_character_never_reads_as_the_same_bytes(data: bytes, last: str):
    text = to_text(data)
    twin = text[:-1] + last
    try:
        read = from_text(twin)
    except ValueError:
        read = None

    assert (read == data) == (twin == text)


@pytest.mark.parametrize(
    "text",
    ["QR", "QUF", "Q", "QQ==", "QUE=", "QQ=", "Q+8A", "Q/8A", "QQ ", " QQ", "QQ\n", "Q\x00QQ", "Qé",
     "QQ\ud800Q", "QQQQQ", "=", "===="],
)  # fmt: skip
def test_unused_bits_padding_and_foreign_characters_are_refused(text: str):
    with pytest.raises(ValueError, match="canonical"):
        from_text(text)


def test_every_last_character_with_unused_bits_is_refused_and_every_other_is_read():
    for head, allowed in (("A", 4), ("AA", 16)):
        read = 0
        for last in ALPHABET:
            try:
                from_text(head + last)
            except ValueError:
                continue
            read += 1
        assert read == allowed
