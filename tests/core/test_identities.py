"""Who stands behind a call, and when two names may be one person."""

import pytest

from antiphon.protocol.identities import (
    LINK_ISSUER,
    caller_identity,
    identities_behind,
    identity_of,
    may_be_one,
    normal_issuer,
    read_identity,
)
from antiphon.protocol.inbox import Person
from antiphon.protocol.request import Principal

ISSUER = "https://id.example"


@pytest.mark.parametrize(
    "spelling",
    [
        "https://id.example/",
        "HTTPS://ID.EXAMPLE",
        "https://id.example:443",
        "https://id.example.//",
        " https://id.example ",
    ],
)
def test_an_issuer_has_one_spelling(spelling: str) -> None:
    assert normal_issuer(spelling) == ISSUER
    assert Person(spelling, "anna").identity == caller_identity(Principal(ISSUER, "anna"))


@pytest.mark.parametrize(
    "other", ["https://id.example:8443", "http://id.example", "https://id.example/tenant", "id"]
)
def test_other_issuers_stay_others(other: str) -> None:
    assert normal_issuer(other) != ISSUER
    assert not may_be_one(identity_of(other, "anna"), identity_of(ISSUER, "anna"))


@pytest.mark.parametrize("issuer", ["https://[::1]:8080", "urn:shop", "", "https://[bad", "a b%20"])
def test_an_odd_issuer_is_read_back(issuer: str) -> None:
    assert read_identity(identity_of(issuer, "a%b c")) == (issuer, "a%b c")


def test_everybody_who_acts_stands_behind_a_call() -> None:
    principal = Principal(
        ISSUER, "bob", actor=identity_of(ISSUER, "agent"), earlier_actors=("https://b.example eve",)
    )
    assert identities_behind(principal) == (
        f"{ISSUER} bob",
        f"{ISSUER} agent",
        "https://b.example eve",
    )
    assert identities_behind(Principal(ISSUER, "bob", actor="alice")) == (
        f"{ISSUER} bob",
        f"{ISSUER} alice",
    )
    assert identities_behind(Principal(client_id="desk")) == ()


@pytest.mark.parametrize(
    ("issuer", "subject"),
    [
        (ISSUER, "Anna"),
        (ISSUER, "\uff41nna"),  # a full-width letter
        (ISSUER, "an\u200bna"),  # an invisible space
        ("https://ID.example/", "anna "),
        (LINK_ISSUER, "anna"),
        ("", "anna"),
    ],
)
def test_a_person_under_another_spelling_may_be_the_same(issuer: str, subject: str) -> None:
    assert may_be_one(identity_of(issuer, subject), identity_of(ISSUER, "anna"))


def test_different_people_are_told_apart() -> None:
    anna = identity_of(ISSUER, "anna")
    assert not may_be_one(anna, identity_of(ISSUER, "bo"))
    assert not may_be_one(anna, identity_of("https://b.example", "anna"))
    assert not may_be_one(identity_of("", ""), identity_of("", ""))
