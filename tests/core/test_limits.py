"""Limits refuse what would switch a bound off, and what is no span where a span is meant."""

from datetime import timedelta

import pytest

from antiphon import ConfigError, Limits


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"rounds": 0}, r"rounds.*greater than zero"),
        ({"lease": timedelta(0)}, r"lease.*greater than zero"),
        ({"lease": 3}, r"lease=\.\.\.\) takes a timedelta, got 3"),
        ({"task": 3.5}, r"task=\.\.\.\) takes a timedelta"),
        ({"rounds": timedelta(seconds=3)}, r"rounds=\.\.\.\) takes a number"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(limits, reason):
    with pytest.raises(ConfigError, match=reason):
        Limits(**limits)


def test_the_defaults_are_limits():
    assert Limits().lease == timedelta(seconds=30)
