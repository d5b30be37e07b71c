"""Which keys are taken, which are refused, and that none is ever shown."""

import base64
import copy
import os
import pickle
from hashlib import sha512

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.seal.key_file import make_keys
from antiphon.seal.key_sources import keys_from
from antiphon.seal.keyring import (
    PURPOSES,
    Key,
    Keyring,
    generate_key,
    read_key,
)
from tests.seal.conftest import NEW, OLD

RAW = bytes.fromhex(NEW)
URL = base64.urlsafe_b64encode(RAW).decode()


def test_hex_base64url_and_bytes_of_the_same_key_are_the_same_key():
    keys = [read_key(form, "k") for form in (NEW, NEW.upper(), URL, URL.rstrip("="), RAW)]

    assert all(key == keys[0] for key in keys)
    assert len({key.id for key in keys}) == 1


@given(st.integers())
def test_random_bytes_are_taken_in_each_form(seed: int):
    material = sha512(str(seed).encode()).digest()
    text = base64.urlsafe_b64encode(material).decode()

    assert read_key(material, "k") == read_key(material.hex(), "k") == read_key(text, "k")


REFUSED = {
    "empty": "",
    "short hex": NEW[:-2],
    "short hex that base64url would take for 36 bytes": NEW[:48],
    "odd hex": NEW + "a",
    "short base64url": base64.urlsafe_b64encode(RAW[:31]).decode(),
    "standard base64": "+/" + URL[2:],
    "unused bits at the end": URL.rstrip("=")[:-1] + "B",
    "padding in excess": URL + "===",
    "spaces": " " + NEW,
    "0x": "0x" + NEW,
    "words": "correct-horse-battery-staple-and-a-second-horse",
    "capital words": "Correct Horse Battery Staple And A Second Horse",
    "all equal": "00" * 32,
    "two values": "a5c3" * 16,
    "a block twice": (RAW[:16] * 2).hex(),
    "counting up": bytes(range(32)).hex(),
    "counting by threes": bytes(range(0, 96, 3)).hex(),
    "text in hex": b"my very secret passphrase, quite long".hex(),
    "text as bytes": b"my very secret passphrase, quite long",
    "hex as bytes": NEW.encode(),
    "short bytes": RAW[:31],
    "a book": os.urandom(2000),
    "not text": bytearray(RAW),
    "a number": 17,
    "nothing": None,
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_but_32_random_bytes_is_refused_with_the_cure_and_without_the_key(name: str):
    bad = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        Keyring([NEW, bad])  # pyright: ignore[reportArgumentType]

    text = str(refused.value)
    assert "antiphon keygen" in text
    assert text.startswith("key 2 of Seal(keys=...)")
    if isinstance(bad, str | bytes) and bad:
        shown = bad if isinstance(bad, str) else bad.hex()
        assert shown not in text
        assert shown[:12] not in text
    assert refused.value.__cause__ is None


def test_a_key_given_twice_and_a_ring_without_keys_are_refused():
    with pytest.raises(ConfigError, match="twice"):
        Keyring([NEW, URL])
    with pytest.raises(ConfigError, match="no key"):
        Keyring([])


def test_a_generated_key_is_taken_and_each_is_another():
    keys = {generate_key() for _ in range(50)}

    assert len(keys) == 50
    assert len(Keyring(sorted(keys))) == 50


def test_subkeys_differ_by_purpose_by_key_by_format_and_from_each_other():
    subkeys = [
        sub
        for text in (NEW, OLD)
        for purpose in PURPOSES
        for version in (1, 2)
        for sub in read_key(text, "k").subkeys(purpose, version)
    ]

    assert len(set(subkeys)) == 2 * 2 * 3 * len(PURPOSES)
    assert all(len(sub) == 32 for sub in subkeys)


def test_the_variable_holds_keys_separated_by_commas_the_first_seals():
    ring = keys_from({"ANTIPHON_KEYS": f" {NEW} ,\n{OLD}"})

    assert ring is not None
    assert [key.id for key in ring] == [read_key(NEW, "k").id, read_key(OLD, "k").id]
    assert ring.first == read_key(NEW, "k")


@pytest.mark.parametrize("environ", [{}, {"ANTIPHON_KEYS": ""}, {"ANTIPHON_KEYS": " \n"}])
def test_an_absent_or_blank_variable_means_no_keys(environ: dict[str, str]):
    assert keys_from(environ) is None


@pytest.mark.parametrize(
    "value",
    [",", f"{NEW},", f",{NEW}", f"{NEW};{OLD}", f"{NEW} {OLD}", f"{NEW},changeme", f'"{NEW}"'],
)
def test_a_variable_with_anything_but_keys_is_refused_and_names_itself(value: str):
    with pytest.raises(ConfigError, match="ANTIPHON_KEYS") as refused:
        keys_from({"ANTIPHON_KEYS": value})

    assert NEW[:12] not in str(refused.value)
    assert "changeme" not in str(refused.value)


def test_keys_and_rings_show_their_ids_and_nothing_else():
    ring = Keyring([NEW, OLD])

    for shown in (repr(ring), str(ring), repr(ring.first), f"{list(ring)}"):
        for secret in (NEW, OLD):
            assert secret[:8] not in shown
            assert repr(bytes.fromhex(secret))[2:10] not in shown


def test_a_key_is_neither_pickled_nor_copied():
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            leak(Key(RAW))


@pytest.mark.parametrize("length", [0, 1, 16, 31])
def test_a_key_object_of_fewer_than_32_bytes_is_not_made(length: int):
    short = RAW[:length]
    with pytest.raises(ConfigError, match=f"holds {length} bytes; at least 32") as refused:
        Key(short)

    assert "antiphon keygen" in str(refused.value)
    assert not short or short.hex() not in str(refused.value)


def test_dice_that_give_too_few_bytes_make_no_key():
    with pytest.raises(ConfigError, match="at least 32"):
        Keyring(make_keys(lambda size: RAW[: size - 1]))


def test_made_keys_come_from_the_given_dice():
    assert Keyring(make_keys(lambda size: RAW[:size])).first == read_key(NEW, "k")
