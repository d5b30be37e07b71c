"""Epochs as an attacker sees them: copied processes, moved clocks, swapped and invented epochs.

Bytes 5 to 16 of what is sealed name the epoch, bytes 17 to 28 are the nonce. AES-GCM is broken for
a key when one nonce encrypts two messages, so most tests here look for (epoch, nonce) pairs.
"""

import copy
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import TokenRefused
from antiphon.ports import Entropy
from antiphon.seal.aead import EPOCH_MESSAGES, EPOCH_SECONDS, KEPT_CIPHERS, OVERHEAD, Aead
from antiphon.seal.keyring import Keyring
from tests.seal.conftest import NEW, OLD, Clock, CountedBytes

Message = tuple[bytes, bytes]


def stuck(size: int) -> bytes:
    """Random bytes of a machine whose generator was restored with its memory."""
    return b"\x07" * size


def box(*keys: str, entropy: Entropy = os.urandom, clock: Clock | None = None) -> Aead:
    return Aead(Keyring(keys or (NEW,)), "token", entropy, clock or Clock())


def epoch_of(sealed: bytes) -> bytes:
    return sealed[5:17]


def nonce_of(sealed: bytes) -> bytes:
    return sealed[17:29]


def epochs(sealed: Iterable[bytes]) -> int:
    return len({epoch_of(one) for one in sealed})


def refused(reason: str, run: Callable[[], object]) -> None:
    with pytest.raises(TokenRefused) as caught:
        run()
    assert caught.value.reason == reason


# --- the limits of an epoch ---------------------------------------------------------------------


def test_an_epoch_key_encrypts_no_more_than_its_number_of_messages():
    sealing = box()
    sealed = [sealing.seal(b"x", b"") for _ in range(2 * EPOCH_MESSAGES + 1)]

    assert epochs(sealed[:EPOCH_MESSAGES]) == 1
    assert epochs(sealed[EPOCH_MESSAGES : 2 * EPOCH_MESSAGES]) == 1
    assert epochs(sealed) == 3
    assert all(sealing.open(one, b"") == b"x" for one in sealed)


def test_an_epoch_ends_with_its_time():
    clock = Clock()
    sealing = box(clock=clock)
    first = sealing.seal(b"x", b"")
    clock.now += EPOCH_SECONDS - 0.5
    second = sealing.seal(b"x", b"")
    clock.now += 0.5
    third = sealing.seal(b"x", b"")

    assert epoch_of(first) == epoch_of(second) != epoch_of(third)
    assert [sealing.open(one, b"") for one in (first, second, third)] == [b"x"] * 3


@pytest.mark.parametrize("back", [0.001, 3600.0, 10**9])
def test_a_clock_that_is_set_back_ends_the_epoch_instead_of_prolonging_it(back: float):
    clock = Clock()
    sealing = box(clock=clock)
    first = sealing.seal(b"x", b"")
    clock.now -= back
    second = sealing.seal(b"x", b"")

    assert epoch_of(first) != epoch_of(second)
    assert sealing.open(first, b"") == sealing.open(second, b"") == b"x"


def test_a_clock_that_gives_no_number_never_prolongs_an_epoch():
    clock = Clock()
    clock.now = float("nan")
    sealing = box(clock=clock)

    assert epochs(sealing.seal(b"x", b"") for _ in range(10)) == 10


def test_the_limits_keep_a_repeated_nonce_below_two_to_the_minus_32_for_2_to_the_53_messages():
    # Under one key: n * (n - 1) / 2 pairs, each equal with 2**-96; as many epochs as it takes.
    pairs = EPOCH_MESSAGES * (EPOCH_MESSAGES - 1) // 2

    assert pairs * (2**53 // EPOCH_MESSAGES) <= 2 ** (96 - 32)
    assert pairs * (2**40 // EPOCH_MESSAGES) <= 2 ** (96 - 45)
    # A thousand copies of one memory spend the rest of the epoch side by side.
    assert (1024 * EPOCH_MESSAGES) ** 2 // 2 <= 2 ** (96 - 53)


def test_nonces_are_spread_over_all_their_bits():
    sealing = box(entropy=CountedBytes())
    seen = [int.from_bytes(nonce_of(sealing.seal(b"x", b""))) for _ in range(EPOCH_MESSAGES)]

    assert len(set(seen)) == EPOCH_MESSAGES
    for bit in range(96):
        ones = sum(nonce >> bit & 1 for nonce in seen)
        # Eight standard deviations of a fair coin: 32 each, and the counted bytes never change.
        assert abs(ones - EPOCH_MESSAGES // 2) < 8 * 32


# --- copies of a running process ------------------------------------------------------------------


def test_a_forked_child_leaves_the_epoch_of_its_parent():
    sealing = box()
    before = sealing.seal(b"x", b"")
    children = [_sealed_in_a_child(sealing) for _ in range(2)]
    after = sealing.seal(b"x", b"")

    assert epoch_of(before) == epoch_of(after)
    assert epochs([before, *children]) == 3
    assert [sealing.open(one, b"") for one in children] == [b"x", b"x"]


def test_a_forked_child_with_the_random_bytes_of_its_parent_repeats_no_nonce_for_other_content():
    sealing = box(entropy=stuck)
    sealing.seal(b"before", b"")
    child = _sealed_in_a_child(sealing, b"child")
    parent = sealing.seal(b"parent", b"")

    assert epoch_of(child) != epoch_of(parent)
    assert nonce_of(child) != nonce_of(parent)


def _sealed_in_a_child(sealing: Aead, data: bytes = b"x") -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, sealing.seal(data, b""))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sealed = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0
    return sealed


def restored(memory: Aead) -> Aead:
    """Return the process as a snapshot restores it: same epoch, same process id, same counts."""
    twin = copy.copy(memory)
    twin._epoch = copy.copy(memory._epoch)
    return twin


messages = st.lists(
    st.tuples(st.binary(max_size=8), st.binary(max_size=3)), min_size=1, max_size=20
)


@given(one=messages, other=messages)
def test_a_snapshot_restored_twice_repeats_a_nonce_only_with_the_whole_message(
    one: list[Message], other: list[Message]
):
    memory = box(entropy=stuck)
    memory.seal(b"before", b"")
    twins = (restored(memory), restored(memory))
    made: dict[bytes, tuple[Message, bytes]] = {}
    for twin, said in zip(twins, (one, other), strict=True):
        for message in said:
            sealed = twin.seal(*message)
            known = made.setdefault(sealed[5:29], (message, sealed))
            assert known == (message, sealed)


def test_restored_twins_with_the_same_random_bytes_begin_epochs_of_their_own():
    memory = box(entropy=stuck)
    memory.seal(b"before", b"")
    one, other = restored(memory), restored(memory)
    shared = [one.seal(b"one", b""), other.seal(b"other", b"")]
    for twin, said in ((one, b"one"), (other, b"other")):
        shared += [twin.seal(said, b"") for _ in range(EPOCH_MESSAGES)]

    # The one they were restored with, and one more for each.
    assert epochs(shared) == 3


def test_restored_twins_with_random_bytes_of_their_own_make_other_tokens_of_the_same_content():
    memory = box()
    memory.seal(b"before", b"")

    assert restored(memory).seal(b"x", b"") != restored(memory).seal(b"x", b"")


def test_bound_data_and_content_never_run_together_in_a_nonce():
    sealing = box(entropy=stuck)
    split = [(b"a", b""), (b"b", b""), (b"a", b"b"), (b"", b"ab"), (b"ab", b"")]
    sealed = [sealing.seal(*message) for message in split]

    assert epochs(sealed) == 1
    assert len({nonce_of(one) for one in sealed}) == len(split)
    assert sealing.seal(b"a", b"") == sealed[0]


def test_threads_that_seal_at_once_repeat_no_nonce():
    sealing = box()

    def seal(number: int) -> bytes:
        return sealing.seal(b"%d" % (number % 7), b"")

    with ThreadPoolExecutor(8) as threads:
        sealed = list(threads.map(seal, range(2 * EPOCH_MESSAGES)))

    assert len({one[5:29] for one in sealed}) == len(sealed)
    assert epochs(sealed) >= 2
    assert all(sealing.open(one, b"") == b"%d" % (n % 7) for n, one in enumerate(sealed))


def test_processes_that_share_keys_have_epochs_of_their_own_and_open_each_others():
    processes = [box() for _ in range(20)]
    sealed = [process.seal(b"x", b"") for process in processes]

    assert epochs(sealed) == 20
    assert all(process.open(one, b"") == b"x" for process in processes for one in sealed)


# --- swapped, invented and mixed epochs -----------------------------------------------------------


def two_epochs(*keys: str) -> tuple[Aead, bytes, bytes]:
    clock = Clock()
    sealing = box(*keys, clock=clock)
    one = sealing.seal(b"approve one", b"")
    clock.now += EPOCH_SECONDS
    other = sealing.seal(b"approve two", b"")
    assert epoch_of(one) != epoch_of(other)
    return sealing, one, other


def test_an_epoch_swapped_between_tokens_is_refused_whether_its_cipher_is_kept_or_not():
    sealing, one, other = two_epochs()
    swapped = [one[:5] + epoch_of(other) + one[17:], other[:5] + epoch_of(one) + other[17:]]

    for bad in swapped:
        refused("forged", lambda bad=bad: sealing.open(bad, b""))
    assert sealing.open(one, b"") + sealing.open(other, b"") == b"approve oneapprove two"
    for bad in swapped:
        refused("forged", lambda bad=bad: sealing.open(bad, b""))


def test_a_nonce_a_body_and_a_tag_swapped_between_tokens_of_one_epoch_are_refused():
    sealing = box()
    one, other = sealing.seal(b"approve one", b""), sealing.seal(b"approve two", b"")
    assert epoch_of(one) == epoch_of(other)

    for start, end in ((17, 29), (29, -16), (-16, None)):
        bad = bytearray(one)
        bad[start:end] = other[start:end]
        refused("forged", lambda bad=bytes(bad): sealing.open(bad, b""))


def test_one_epoch_name_under_two_keys_of_a_ring_is_two_keys():
    old, new = box(OLD), box(NEW)
    ring = box(NEW, OLD)
    by_old, by_new = old.seal(b"x", b""), new.seal(b"x", b"")
    assert ring.open(by_old, b"") == ring.open(by_new, b"") == b"x"

    refused("forged", lambda: ring.open(by_new[:1] + by_old[1:5] + by_new[5:], b""))
    refused("forged", lambda: ring.open(by_old[:1] + by_new[1:5] + by_old[5:], b""))


def test_a_kept_cipher_opens_nothing_for_other_bound_data():
    sealing = box()
    sealed = sealing.seal(b"x", b"here")
    assert sealing.open(sealed, b"here") == b"x"

    refused("forged", lambda: sealing.open(sealed, b"there"))


def test_a_retired_key_opens_nothing_even_of_an_epoch_that_it_began():
    sealed = box(OLD).seal(b"x", b"")
    rotated = box(NEW)
    rotated.seal(b"y", b"")

    refused("unknown-key", lambda: rotated.open(sealed, b""))


@given(cut=st.integers(0, 90), more=st.binary(min_size=1, max_size=20))
def test_a_token_cut_or_lengthened_is_refused_with_its_cipher_kept(cut: int, more: bytes):
    sealing = box(entropy=CountedBytes())
    sealed = sealing.seal(b"x" * 50, b"")
    assert sealing.open(sealed, b"") == b"x" * 50
    assert len(sealed) > 90

    for bad in (sealed[:cut], sealed[cut + 1 :], sealed + more, more + sealed):
        with pytest.raises(TokenRefused):
            sealing.open(bad, b"")


def test_anything_shorter_than_what_sealing_adds_is_malformed():
    sealing = box()
    empty = sealing.seal(b"", b"")
    assert len(empty) == OVERHEAD
    assert sealing.open(empty, b"") == b""

    for length in range(OVERHEAD):
        refused("malformed", lambda length=length: sealing.open(empty[:length], b""))


# --- the ciphers that are kept --------------------------------------------------------------------


def test_one_cipher_opens_all_tokens_of_an_epoch_of_one_key():
    sealing = box()
    sealed = [sealing.seal(b"x", b"") for _ in range(3)]
    sealing.open(sealed[0], b"")
    kept = dict(sealing._ciphers)
    for one in sealed:
        sealing.open(one, b"")

    assert list(kept) == [sealed[0][1:17]]
    assert dict(sealing._ciphers) == kept


def test_an_unknown_key_id_before_an_epoch_whose_cipher_is_kept_is_an_unknown_key():
    sealing = box()
    sealed = sealing.seal(b"x", b"")
    sealing.open(sealed, b"")

    refused("unknown-key", lambda: sealing.open(sealed[:1] + bytes(4) + sealed[5:], b""))


def test_invented_epochs_are_refused_and_neither_kept_nor_push_out_those_that_are():
    sealing = box()
    sealed = sealing.seal(b"x", b"")
    sealing.open(sealed, b"")
    kept = list(sealing._ciphers.items())

    for _ in range(2 * KEPT_CIPHERS):
        invented = sealed[:5] + os.urandom(12) + sealed[17:]
        refused("forged", lambda bad=invented: sealing.open(bad, b""))
    assert list(sealing._ciphers.items()) == kept


def test_the_ciphers_kept_for_opening_are_bounded_and_all_tokens_still_open():
    processes = [box() for _ in range(KEPT_CIPHERS + 10)]
    sealed = [process.seal(b"x", b"") for process in processes]
    opening = box()

    for _ in range(2):
        assert all(opening.open(one, b"") == b"x" for one in sealed)
        assert len(opening._ciphers) == KEPT_CIPHERS
