"""When two values count as the same: by content, not by how they were written."""

import json
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol import digest
from antiphon.protocol.digest import arguments_digest, canonical, short_digest

EXACT = 2**53

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-EXACT, EXACT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-EXACT, EXACT).map(float)
    | st.text()
    | st.sampled_from(["v1.42.0", "1.0,", "1.0}", "1.0]", "1.0", ".0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def with_integers(value: Any) -> Any:
    """Return the value with every float that is an exact integer written as that integer."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= EXACT else value
    if isinstance(value, dict):
        return {key: with_integers(inner) for key, inner in value.items()}
    return [with_integers(inner) for inner in value] if isinstance(value, list) else value


def with_floats(value: Any) -> Any:
    """Return the value with every integer written as a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, dict):
        return {key: with_floats(inner) for key, inner in reversed(value.items())}
    return [with_floats(inner) for inner in value] if isinstance(value, list) else value


@given(values)
def test_numbers_are_compared_by_value_and_members_in_any_order(value: Any):
    plain = msgspec.json.encode(with_integers(value), order="deterministic")

    assert canonical(value) == canonical(with_floats(value)) == plain


@given(st.integers(-EXACT, EXACT))
def test_every_whole_float_up_to_two_to_the_53_equals_its_integer(number: int):
    for shape in ("%s", "[%s]", "[%s,1]", '{"a":%s}', '{"a":%s,"b":0}'):
        whole, real = (json.loads(shape % written) for written in (number, f"{number}.0"))
        assert canonical(whole) == canonical(real)


@given(values)
def test_a_canonical_text_means_what_it_was_made_of(value: Any):
    assert msgspec.json.decode(canonical(value)) == value


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, "1"), (0, None), (0, False), (1, 1.5), ("1", "1.0"), ([1], [[1]]),
     ([1, 2], [2, 1]), ({"a": 1}, {"a": 1, "b": None}), (EXACT, EXACT + 1), ("é", "e\u0301")],
)  # fmt: skip
def test_other_values_have_other_digests(one: object, other: object):
    assert arguments_digest({"a": one}) != arguments_digest({"a": other})


def test_absent_arguments_and_empty_ones_agree():
    assert arguments_digest(None) == arguments_digest({}) != arguments_digest({"a": None})


@pytest.mark.parametrize("text", ["v1.42.0", "10.0.0.1", "2e5", "see 1.5 and 3.0 there", "0.5"])
def test_text_that_holds_a_number_costs_no_second_pass(text: str):
    with mock.patch.object(digest, "_by_value", side_effect=AssertionError("a second pass")):
        assert canonical({"image": text, "ratio": 0.25}) == b'{"image":"%b","ratio":0.25}' % (
            text.encode()
        )


def test_parts_never_run_together():
    lists = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"", b"abc"), (b"abc", b""), (b"1:a",), ()]

    assert len({short_digest(*parts) for parts in lists}) == len(lists)
    assert len(short_digest()) == 16
