"""Checks of single form values, compiled to closures. Knows no schema, no form and no field name.

A check takes one JSON value and gives it back (an integer written `1.0` as `1`), or raises `Bad`
with a reason for a person. The reason never holds the value.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from math import isfinite
from typing import TypeAlias, cast

Value: TypeAlias = str | int | float | bool | list[str]
Check: TypeAlias = Callable[[object], Value]

INTEGER_LIMIT = 2**63
"""Integers beyond 64 bits are refused: few peers can carry them, and `1e308` is one of them."""

_EMAIL_LENGTH = 320
_URI_LENGTH = 8192

# Lengths are capped before any of these runs, so that backtracking stays small.
_email = re.compile(
    r"[^\s@<>()\[\],;:\\\"\x00-\x1f\x7f]+@"
    r"(?=.{1,253}\Z)[^\W_]+(?:-+[^\W_]+)*(?:\.[^\W_]+(?:-+[^\W_]+)*)*"
).fullmatch
_uri = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+"
).fullmatch
_web_without_host = re.compile(r"(?i:https?):(?!//[^/?#@:]|//[^/?#@]*@[^/?#:])").match
_date = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_date_time = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


class Bad(Exception):
    """The value does not fit; the text says what would."""


def text(shortest: int | None, longest: int | None, format_: str | None) -> Check:
    """Check a string by its length in code points and its format."""
    low = shortest or 0
    fits = None if format_ is None else FORMATS[format_]

    def check(value: object) -> Value:
        if not isinstance(value, str):
            raise Bad("must be text")
        if len(value) < low:
            raise Bad(f"must have at least {low} character{'s' * (low != 1)}")
        if longest is not None and len(value) > longest:
            raise Bad(f"must have at most {longest} character{'s' * (longest != 1)}")
        if fits is not None and not fits(value):
            raise Bad(_WANTED[cast(str, format_)])
        return value

    return check


def integer(low: float | None, high: float | None) -> Check:
    """Check a whole number; `1.0` is one (JSON Schema 2020-12), `true` is none."""

    def check(value: object) -> Value:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise Bad("must be a whole number")
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise Bad("must be a whole number of at most 64 bits")
        _within(value, low, high)
        return value

    return check


def number(low: float | None, high: float | None) -> Check:
    """Check a finite number."""

    def check(value: object) -> Value:
        if type(value) is int:
            if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
                raise Bad("must be a number of at most 64 bits")
        elif type(value) is not float or not isfinite(value):
            raise Bad("must be a number")
        _within(value, low, high)
        return value

    return check


def boolean(value: object) -> Value:
    """Check a boolean; `1` is none."""
    if value is True or value is False:
        return value
    raise Bad("must be true or false")


def choice(options: Sequence[str]) -> Check:
    """Check one of a fixed set of strings."""
    known = frozenset(options)

    def check(value: object) -> Value:
        if isinstance(value, str) and value in known:
            return value
        raise Bad("must be one of the options")

    return check


def choices(options: Sequence[str], fewest: int | None, most: int | None) -> Check:
    """Check a list of different options."""
    known = frozenset(options)
    low = fewest or 0

    def check(value: object) -> Value:
        if not isinstance(value, list):
            raise Bad("must be a list of options")
        chosen = cast(list[object], value)
        # The count first, so that a long list costs nothing.
        if len(chosen) > len(known) if most is None else len(chosen) > most:
            raise Bad(f"must have at most {len(known) if most is None else most} of the options")
        if len(chosen) < low:
            raise Bad(f"must have at least {low} of the options")
        if not all(isinstance(item, str) and item in known for item in chosen):
            raise Bad("must hold nothing but the options")
        if len(set(chosen)) != len(chosen):
            raise Bad("must hold each option at most once")
        return cast(list[str], chosen)

    return check


def _within(value: float, low: float | None, high: float | None) -> None:
    if low is not None and not value >= low:
        raise Bad(f"must be at least {low}")
    if high is not None and not value <= high:
        raise Bad(f"must be at most {high}")


def _is_email(value: str) -> bool:
    return len(value) <= _EMAIL_LENGTH and _email(value) is not None


def _is_uri(value: str) -> bool:
    if len(value) > _URI_LENGTH or _uri(value) is None:
        return False
    return _web_without_host(value) is None


def _is_date(value: str) -> bool:
    # The pattern first: fromisoformat also takes week dates and dates without dashes.
    return _date(value) is not None and _parses(date.fromisoformat, value)


def _is_date_time(value: str) -> bool:
    return _date_time(value) is not None and _parses(datetime.fromisoformat, value.upper())


def _parses(parse: Callable[[str], object], value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "email": _is_email,
    "uri": _is_uri,
    "date": _is_date,
    "date-time": _is_date_time,
}

_WANTED: Mapping[str, str] = {
    "email": "must be an e-mail address such as name@example.org",
    "uri": "must be a full URI such as https://example.org/page",
    "date": "must be a date such as 2026-07-28",
    "date-time": "must be a date and time with offset such as 2026-07-28T09:30:00Z",
}
