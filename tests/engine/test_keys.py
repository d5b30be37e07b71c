"""Keys: what an author may give, and what is derived from the name of an ask."""

import pytest

from antiphon.engine.questions import Keys, check_key
from antiphon.errors import AmbiguousKey, HandlerError


@pytest.mark.parametrize("key", ["place", "b2", "étage", "a b", "x" * 128, "2nd", "a-1b"])
def test_a_key_that_names_something_is_taken_as_it_is(key: str):
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "1", "42", "place-2", "x" * 129, "a\nb", "a\x00"])
def test_a_key_that_is_empty_long_unprintable_or_a_number_is_refused(key: str):
    with pytest.raises(HandlerError):
        check_key(key)


def test_the_second_of_a_name_gets_a_number():
    keys = Keys()
    assert [keys.derive(base, in_branch=False) for base in ("a", "b", "a", "a")] == [
        "a",
        "b",
        "a-2",
        "a-3",
    ]


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_two_of_a_name_are_ambiguous_as_soon_as_one_of_them_is_in_a_branch(first, second):
    keys = Keys()
    keys.derive("place", in_branch=first)
    with pytest.raises(AmbiguousKey):
        keys.derive("place", in_branch=second)


def test_keys_of_code_that_is_not_run_now_count_as_derived():
    keys = Keys()
    keys.take("place-3")
    keys.take("plan")
    keys.take_all({"place": 2})
    assert keys.taken() == {"place": 3, "plan": 1}
    assert keys.derive("place", in_branch=False) == "place-4"
    assert keys.derive("plan", in_branch=False) == "plan-2"


def test_a_base_is_known_once_something_was_derived_from_it():
    keys = Keys()
    assert "place" not in keys
    keys.derive("place", in_branch=True)
    assert "place" in keys


@pytest.mark.parametrize(
    ("key", "taken"),
    [("place", {"place": 1}), ("place-3", {"place": 3}), ("my-place", {"my-place": 1})],
)
def test_a_key_that_an_earlier_round_derived_counts_with_those_before_it(key: str, taken: object):
    keys = Keys()
    keys.take(key)
    assert keys.taken() == taken


def test_the_handlers_own_task_numbers_its_asks():
    keys = Keys()
    assert [keys.derive("place") for _ in range(3)] == ["place", "place-2", "place-3"]


def test_a_branch_may_take_a_key_that_nobody_has():
    keys = Keys()
    assert keys.derive("place", in_branch=True) == "place"
    assert "place" in keys
