"""`Seal`: what may be set, what is refused at start, and where the keys come from."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.seal.keyring import Keyring
from antiphon.seal.policy import Seal
from tests.seal.conftest import NEW, OLD
from tests.seal.test_sealer import Vault


def test_a_seal_without_settings_has_ten_minutes_and_no_keys():
    seal = Seal()

    assert (seal.keys, seal.ttl, seal.audience, seal.codec) == (
        (),
        timedelta(minutes=10),
        None,
        None,
    )


def test_a_seal_is_frozen_equal_by_value_and_never_shows_its_keys():
    seal = Seal(keys=[NEW, OLD])

    with pytest.raises(dataclasses.FrozenInstanceError):
        seal.ttl = timedelta(1)  # pyright: ignore[reportAttributeAccessIssue]
    assert seal == Seal(keys=[NEW, OLD])
    assert seal != Seal(keys=[OLD, NEW])
    for shown in (repr(seal), str(seal), repr(seal.keys)):
        assert NEW[:8] not in shown
        assert OLD[:8] not in shown


def test_a_changed_copy_keeps_the_keys():
    seal = dataclasses.replace(Seal(keys=[NEW]), ttl=timedelta(hours=1))

    assert seal == Seal(keys=[NEW], ttl=timedelta(hours=1))


class Sync:
    def seal(self, data: bytes, aad: bytes) -> bytes:
        return data

    open = seal


@pytest.mark.parametrize(
    "settings",
    [
        {"keys": NEW},
        {"keys": bytes.fromhex(NEW)},
        {"keys": [NEW, NEW]},
        {"keys": ["short"]},
        {"keys": [None]},
        {"ttl": timedelta(0)},
        {"ttl": timedelta(seconds=-1)},
        {"ttl": 600},
        {"audience": ""},
        {"audience": 7},
        {"codec": object()},
        {"codec": Sync()},
        {"codec": Vault(), "keys": [NEW]},
    ],
)
def test_wrong_settings_are_refused_at_start_and_never_show_a_key(settings: dict[str, Any]):
    with pytest.raises(ConfigError) as refused:
        Seal(**settings)

    assert NEW[:8] not in str(refused.value)


def test_keys_are_those_given_else_those_of_the_environment():
    environ = {"ANTIPHON_KEYS": OLD}
    given = Seal(keys=[NEW]).keyring(environ)
    assert given is not None
    assert given.first == Keyring([NEW]).first
    found = Seal().keyring(environ)
    assert found is not None
    assert found.first == Keyring([OLD]).first
    assert Seal().keyring({}) is None
    assert Seal(codec=Vault()).keyring(environ) is None


def test_a_bad_variable_is_refused_rather_than_replaced_by_made_keys():
    with pytest.raises(ConfigError, match="ANTIPHON_KEYS"):
        Seal().keyring({"ANTIPHON_KEYS": "changeme"})
