"""The built-in encryption: what was sealed opens, and everything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import TokenRefused
from antiphon.seal.aead import OVERHEAD, Aead
from antiphon.seal.keyring import PURPOSES, Keyring
from tests.seal.conftest import NEW, OLD, Clock, CountedBytes


def aead(*keys: str, purpose: str = "token", entropy: object = None) -> Aead:
    return Aead(Keyring(keys or (NEW,)), purpose, entropy or CountedBytes(), Clock())  # pyright: ignore[reportArgumentType]


@given(data=st.binary(max_size=300), aad=st.binary(max_size=40))
def test_what_was_sealed_opens_and_is_longer_by_a_fixed_number(data: bytes, aad: bytes):
    box = aead()
    sealed = box.seal(data, aad)

    assert box.open(sealed, aad) == data
    assert len(sealed) == len(data) + OVERHEAD


@given(data=st.binary(max_size=60), where=st.integers(min_value=0), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused(data: bytes, where: int, bit: int):
    box = aead(NEW, OLD)
    sealed = bytearray(box.seal(data, b"here"))
    sealed[where % len(sealed)] ^= 1 << bit

    with pytest.raises(TokenRefused):
        box.open(bytes(sealed), b"here")


def test_every_single_bit_is_guarded():
    box = aead()
    sealed = box.seal(b"approve", b"")
    reasons: dict[str, int] = {}
    for position in range(len(sealed) * 8):
        bent = bytearray(sealed)
        bent[position // 8] ^= 1 << position % 8
        with pytest.raises(TokenRefused) as refused:
            box.open(bytes(bent), b"")
        reasons[refused.value.reason] = reasons.get(refused.value.reason, 0) + 1

    assert reasons == {"format": 8, "unknown-key": 32, "forged": (12 + 12 + 7 + 16) * 8}


@given(cut=st.integers(0, 120), more=st.binary(min_size=1, max_size=20))
def test_any_truncation_and_any_extension_is_refused(cut: int, more: bytes):
    box = aead()
    sealed = box.seal(b"x" * 80, b"")

    for bad in (sealed[:cut], sealed[cut + 1 :], sealed + more, more + sealed):
        with pytest.raises(TokenRefused):
            box.open(bad, b"")


def test_other_bound_bytes_another_purpose_and_another_key_do_not_open():
    sealed = aead().seal(b"x", b"place one")

    with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
        aead().open(sealed, b"place two")
    for purpose in PURPOSES[1:]:
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
            aead(purpose=purpose).open(sealed, b"place one")
    with pytest.raises(TokenRefused, check=lambda e: e.reason == "unknown-key"):
        aead(OLD).open(sealed, b"place one")


ROTATION = [
    # sealed under, opened under, opens
    ((OLD,), (OLD,), True),
    ((OLD,), (NEW, OLD), True),  # the new key is deployed
    ((NEW, OLD), (OLD, NEW), True),  # a process that has not yet switched
    ((NEW, OLD), (NEW, OLD), True),
    ((NEW, OLD), (NEW,), True),  # the old key is retired
    ((OLD,), (NEW,), False),
    ((NEW, OLD), (OLD,), False),  # why every process must know the new key before one seals
]


@pytest.mark.parametrize(("under", "by", "opens"), ROTATION)
def test_keys_rotate_without_a_gap(under: tuple[str, ...], by: tuple[str, ...], opens: bool):
    sealed = aead(*under).seal(b"x", b"")

    if opens:
        assert aead(*by).open(sealed, b"") == b"x"
    else:
        with pytest.raises(TokenRefused, check=lambda e: e.reason == "unknown-key"):
            aead(*by).open(sealed, b"")


def test_a_key_id_swapped_for_another_of_the_ring_is_forged():
    sealed = aead(NEW).seal(b"x", b"")
    other = Keyring([OLD]).first.id

    with pytest.raises(TokenRefused, check=lambda e: e.reason == "forged"):
        aead(NEW, OLD).open(sealed[:1] + other + sealed[5:], b"")


def test_equal_content_is_sealed_differently_each_time():
    box = aead()
    sealed = [box.seal(b"same", b"") for _ in range(100)]

    assert len({one[17:29] for one in sealed}) == 100
    assert len({one[29:] for one in sealed}) == 100


def test_it_shows_its_key_id_only():
    shown = repr(aead())

    assert Keyring([NEW]).first.id.hex() in shown
    assert NEW[:8] not in shown
