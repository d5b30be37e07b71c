"""What a token says, when it is believed, and how it is written."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import TokenRefused
from antiphon.protocol.journal import Entry, Journal, encode_value
from antiphon.protocol.request import Principal
from antiphon.seal import claims as module
from antiphon.seal.claims import (
    FORMAT,
    SKEW,
    Binding,
    Claims,
    Handle,
    Pending,
    check,
    decode,
    decode_journal,
    encode,
    largest,
)

NOW = 1_800_000_000.0


@pytest.fixture
def claims(binding: Binding, journal: Journal, pending: tuple[Pending, ...]) -> Claims:
    return Claims(
        format=FORMAT,
        issued=NOW,
        expires=NOW + 600,
        **msgspec.structs.asdict(binding),
        call="c" * 32,
        round=2,
        deadline=NOW + 86_400,
        version="3",
        pending=pending,
        trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        journal=journal,
    )


def refusal(claims: Claims, binding: Binding, now: float) -> str | None:
    try:
        check(claims, binding, now)
    except TokenRefused as refused:
        return refused.reason
    return None


def test_claims_hold_everything_a_token_is_bound_to(claims: Claims):
    assert Claims.__struct_fields__ == (
        "format", "issued", "expires", "method", "target", "arguments", "principal", "audience",
        "call", "round", "deadline", "handler", "version", "pending", "trace", "journal", "handle",
        "incarnation",
    )  # fmt: skip


def test_claims_written_are_read_back_whole(claims: Claims):
    assert decode(encode(claims)) == claims


def test_claims_with_a_handle_are_read_back_whole(claims: Claims):
    stored = msgspec.structs.replace(claims, journal=None, handle=Handle(round=2, digest=b"d" * 32))

    assert decode(encode(stored)) == stored


def test_a_token_is_believed_for_its_own_request(claims: Claims, binding: Binding):
    assert refusal(claims, binding, NOW) is None


OTHER: dict[str, Any] = {
    "method": "prompts/get",
    "target": "destroy",
    "arguments": b"\x02" * 32,
    "audience": "shop",
    "handler": "destroy",
}


@pytest.mark.parametrize("name", OTHER)
def test_a_request_that_differs_in_one_binding_is_refused(
    claims: Claims, binding: Binding, name: str
):
    other = msgspec.structs.replace(binding, **{name: OTHER[name]})

    assert refusal(claims, other, NOW) == name


SOMEBODY = Principal(issuer="https://id.example", subject="ada", client_id="desk")


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (SOMEBODY, msgspec.structs.replace(SOMEBODY, subject="eve")),
        (SOMEBODY, msgspec.structs.replace(SOMEBODY, issuer="https://evil.example")),
        (SOMEBODY, msgspec.structs.replace(SOMEBODY, client_id="phone")),
        (SOMEBODY, msgspec.structs.replace(SOMEBODY, transport="stdio")),
        (SOMEBODY, msgspec.structs.replace(SOMEBODY, actor="https://id.example agent")),
        (msgspec.structs.replace(SOMEBODY, actor="agent"), SOMEBODY),
        (SOMEBODY, Principal()),
        (Principal(), SOMEBODY),
        (Principal(transport="stdio"), Principal(transport="http")),
        (Principal(issuer="a", subject="bc"), Principal(issuer="ab", subject="c")),
    ],
    ids=[
        "subject",
        "issuer",
        "client",
        "transport",
        "agent",
        "without its agent",
        "lost",
        "gained",
        "anonymous",
        "shifted",
    ],
)
def test_a_principal_changed_lost_or_gained_is_refused(
    claims: Claims, binding: Binding, then: Principal, now: Principal
):
    sealed = decode(encode(msgspec.structs.replace(claims, principal=then)))

    assert refusal(sealed, msgspec.structs.replace(binding, principal=then), NOW) is None
    assert refusal(sealed, msgspec.structs.replace(binding, principal=now), NOW) == "principal"


def test_a_token_of_a_release_that_knew_no_agents_is_still_believed(
    claims: Claims, binding: Binding
):
    members: list[object] = msgspec.msgpack.decode(encode(claims))
    at = next(
        number
        for number, field in enumerate(msgspec.structs.fields(Claims))
        if field.name == "principal"
    )
    whole: list[object] = members[at]  # pyright: ignore[reportAssignmentType]
    members[at] = whole[:4]
    earlier = decode(msgspec.msgpack.encode(members))

    assert (whole[4], earlier.principal) == ("", claims.principal)
    assert refusal(earlier, binding, NOW) is None


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (NOW - SKEW - 0.001, "future"),
        (NOW - SKEW, None),
        (NOW, None),
        (NOW + 599.999, None),
        (NOW + 600, "expired"),
        (NOW + 86_400, "deadline"),
        (math.nan, "future"),
        (math.inf, "deadline"),
        (-math.inf, "future"),
    ],
)
def test_a_token_is_good_from_its_issue_less_the_skew_until_just_before_its_expiry(
    claims: Claims, binding: Binding, now: float, reason: str | None
):
    assert refusal(claims, binding, now) == reason


@pytest.mark.parametrize(
    ("name", "reason"), [("issued", "future"), ("expires", "expired"), ("deadline", "deadline")]
)
def test_a_time_that_is_not_a_number_is_refused(
    claims: Claims, binding: Binding, name: str, reason: str
):
    odd = decode(encode(msgspec.structs.replace(claims, **{name: math.nan})))

    assert refusal(odd, binding, NOW) == reason


def test_a_call_past_its_deadline_is_refused_though_the_token_has_not_expired(
    claims: Claims, binding: Binding
):
    late = msgspec.structs.replace(claims, expires=NOW + 600, deadline=NOW + 5)

    assert refusal(late, binding, NOW + 5) == "deadline"


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (NOW + 660, "expired 60 s ago (is a clock wrong?)"),
        (NOW + 86_460, "the deadline of its call passed 60 s ago"),
        (NOW - 90, "issued 90 s in the future (is a clock wrong?)"),
    ],
)
def test_the_log_is_told_by_how_much_a_time_does_not_fit(
    claims: Claims, binding: Binding, now: float, told: str
):
    with pytest.raises(TokenRefused) as refused:
        check(claims, binding, now)
    assert refused.value.detail == told


def test_a_binding_that_differs_is_named_and_nothing_more_is_told(claims: Claims, binding: Binding):
    other = msgspec.structs.replace(binding, target="other")
    with pytest.raises(TokenRefused) as refused:
        check(claims, other, NOW)
    assert refused.value.detail == "it was issued for another tool, prompt or resource"


def test_another_version_of_the_handler_is_left_to_the_engine(claims: Claims, binding: Binding):
    other = msgspec.structs.replace(claims, version="4")

    assert refusal(other, binding, NOW) is None
    assert other.version == "4"


def test_a_format_that_is_not_read_is_refused_until_a_release_reads_it(claims: Claims):
    next_format = encode(msgspec.structs.replace(claims, format=FORMAT + 1))

    with pytest.raises(TokenRefused, check=lambda e: e.reason == "format"):
        decode(next_format)
    assert decode(next_format, readable=frozenset({FORMAT, FORMAT + 1})).format == FORMAT + 1


def test_members_that_a_later_format_adds_at_the_end_do_not_stop_this_reader(claims: Claims):
    members: list[object] = msgspec.msgpack.decode(encode(claims))
    later = msgspec.msgpack.encode([*members, "a member of tomorrow"])

    assert decode(later) == claims


@given(st.binary(max_size=100))
def test_bytes_that_are_no_claims_are_refused(data: bytes):
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "format"):
        decode(data)
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "format"):
        module.decode_journal(b"\xc1" + data)


def test_claims_with_neither_or_both_of_journal_and_handle_are_refused(claims: Claims):
    handle = Handle(round=1, digest=b"")
    for change in ({"journal": None}, {"handle": handle}):
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "format"):
            decode(msgspec.msgpack.encode(msgspec.structs.replace(claims, **change)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=json_values, state=json_values)
def test_any_json_value_survives_a_round(value: object, state: object):
    entries = [Entry("memo", "m", encode_value(value))]
    journal = Journal(seed=b"", entries=entries, state=encode_value(state))

    assert module.decode_journal(module.encode_journal(journal)) == journal


@pytest.mark.parametrize(
    "big", [2**64, -(2**63) - 1, 10**400, -(10**400), 2**63, 2**64 - 1, -(2**63), 255 << 600]
)
def test_integers_beyond_64_bits_are_kept_exactly(claims: Claims, big: int):
    entries = [Entry("ask", "n", encode_value({"n": [big, {"m": big}]}))]
    journal = Journal(seed=b"", entries=entries, state=encode_value(big))
    sealed = msgspec.structs.replace(claims, journal=journal)

    assert decode(encode(sealed)) == sealed
    assert module.decode_journal(module.encode_journal(journal)) == journal


def test_a_journal_with_an_extension_that_nobody_wrote_is_refused():
    strange = msgspec.msgpack.encode([b"seed", [["memo", "price", msgspec.msgpack.Ext(5, b"x")]]])
    with pytest.raises(TokenRefused):
        decode_journal(strange)


def test_three_entries_are_named_and_a_state_is_one_of_them():
    entries = [Entry("memo", f"m{size}", b"x" * size) for size in (10, 400, 30, 200)]
    named = largest(Journal(b"seed", entries, b"s" * 300))
    assert [name for name, _ in named] == ["memo m400", "state", "memo m200"]
    assert named[1] == ("state", 300)


@pytest.mark.parametrize(("ahead", "taken"), [(30.0, True), (30.5, False)])
def test_a_clock_may_be_ahead_by_half_a_minute(
    claims: Claims, binding: Binding, ahead: float, taken: bool
):
    assert (refusal(claims, binding, NOW - ahead) is None) is taken


def test_the_largest_entries_are_named_with_their_sizes():
    sizes = (("a", 10), ("b", 900), ("c", 50))
    entries = [Entry("memo", name, b"x" * size) for name, size in sizes]
    found = module.largest(Journal(seed=b"", entries=entries, state=b"y" * 100), count=2)

    assert [name for name, _ in found] == ["memo b", "state"]
    assert 900 < found[0][1] < 950


def test_claims_and_bindings_show_neither_answers_nor_the_principal(
    claims: Claims, binding: Binding
):
    for shown in (repr(claims), str(claims), f"{[claims]}", repr(binding)):
        assert "eu-west" not in shown
        assert "ada" not in shown
        assert "Where?" not in shown
