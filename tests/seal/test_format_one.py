"""What was sealed in format 1 still opens. The data was made by the code that wrote it."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.digest import arguments_digest, canonical, short_digest
from antiphon.core.request import Principal
from antiphon.errors import TokenRefused
from antiphon.seal.claims import Binding, Claims, Handle
from antiphon.seal.sealer import Sealer, from_text, to_text
from tests.seal.conftest import NEW, Clock, make_sealer

DATA: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "format_1.json").read_text(encoding="utf-8")
)
KEYS: list[str] = DATA["keys"]
SEALED: list[dict[str, Any]] = DATA["sealed"]


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = DATA["now"]
    return clock


@pytest.fixture
def binding() -> Binding:
    return Binding(
        method="tools/call",
        target="provision",
        arguments=arguments_digest(DATA["arguments"]),
        principal=Principal(issuer="https://id.example", subject="ada", client_id="desk"),
        audience="cloud",
        handler="provision",
    )


@pytest.fixture(params=[KEYS, [NEW, *KEYS]], ids=["same keys", "rotated"])
def sealer(request: pytest.FixtureRequest, clock: Clock) -> Sealer:
    return make_sealer(clock, *request.param)


@pytest.mark.parametrize("sealed", SEALED)
def test_a_token_of_format_1_opens_for_the_request_it_was_issued_for(
    sealer: Sealer, binding: Binding, sealed: dict[str, Any]
):
    claims = sealer.open(sealed["token"], binding)
    stored = sealer.open(sealed["token_with_handle"], binding)

    assert from_text(sealed["token"])[0] == 1
    assert isinstance(claims, Claims)
    assert (claims.call, claims.round) == ("c" * 32, 2)
    assert claims.pending[0].note == "Start it?"
    assert isinstance(stored, Claims)
    assert stored.handle == Handle(2, b"h" * 16)


@pytest.mark.parametrize("sealed", SEALED)
def test_stored_data_and_cursors_of_format_1_open(sealer: Sealer, sealed: dict[str, Any]):
    at_rest = bytes.fromhex(sealed["at_rest"])
    text = from_text(sealed["at_rest_text"])

    assert sealer.reveal(at_rest, "effect c/order") == b"outcome"
    assert sealer.reveal(text, "failure f") == b"no such region"
    assert sealer.unseal(sealed["cursor"], "cursor", b"tools/list") == b"100"


@pytest.mark.parametrize("sealed", SEALED)
def test_every_changed_byte_of_a_format_1_token_is_refused(
    sealer: Sealer, binding: Binding, sealed: dict[str, Any]
):
    data = from_text(sealed["token"])
    for position in range(len(data)):
        bent = bytearray(data)
        bent[position] ^= 1
        with pytest.raises(TokenRefused):
            sealer.open(to_text(bytes(bent)), binding)


def test_a_format_1_token_of_an_unknown_key_and_for_another_purpose_is_refused(
    clock: Clock, binding: Binding
):
    sealed = SEALED[0]
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "unknown-key"):
        make_sealer(clock, NEW).open(sealed["token"], binding)
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
        make_sealer(clock, *KEYS).open(sealed["cursor"], binding)


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_version_byte_put_in_place_of_another_does_not_open(clock: Clock, version: int):
    sealer = make_sealer(clock)
    sealed = sealer.protect(b"x", "here")
    assert isinstance(sealed, bytes)
    assert sealed[0] == 2

    with pytest.raises(TokenRefused, check=lambda e: e.reason in {"format", "forged"}):
        sealer.reveal(bytes((version,)) + sealed[1:], "here")


def test_a_format_1_token_does_not_open_as_format_2(clock: Clock):
    old = bytes.fromhex(SEALED[0]["at_rest"])

    with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
        make_sealer(clock, *KEYS).reveal(b"\x02" + old[1:], "effect c/order")


def test_digests_are_those_that_earlier_tokens_and_journals_hold():
    assert canonical(DATA["arguments"]).decode() == DATA["canonical"]
    assert arguments_digest(DATA["arguments"]).hex() == DATA["arguments_digest"]
    assert short_digest(b"form", b"Where?", b"").hex() == DATA["short_digest"]
