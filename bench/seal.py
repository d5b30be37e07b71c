"""What sealing costs: the candidates for the codec, base64url, and a whole token.

Run `python bench/seal.py`. Microseconds of processor time; many short batches, of which the fastest
tenth counts, so that a busy machine disturbs little. docs/design/0001-sealing.md has the figures.
"""

import base64
import os
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import blake2b

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV

from antiphon.protocol.journal import Entry, Journal, Pending, encode_value
from antiphon.protocol.request import Principal
from antiphon.seal.aead import Aead
from antiphon.seal.claims import Binding, decode, encode
from antiphon.seal.keyring import Keyring, generate_key
from antiphon.seal.sealer import Sealer, from_text, to_text

SIZES = (500, 5_000, 50_000)
ROUNDS = 1_500
AAD = b"antiphon/1 token\0"


def cost(run: Callable[[], object], number: int) -> float:
    """Microseconds of one run: the tenth percentile of many short batches."""
    batches: list[int] = []
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        for _ in range(number):
            run()
        batches.append(time.process_time_ns() - start)
    batches.sort()
    return batches[ROUNDS // 10] / number / 1000


Pair = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def built_in() -> Pair:
    box = Aead(Keyring([generate_key()]), "token", os.urandom, time.time)
    return (lambda data: box.seal(data, AAD)), (lambda data: box.open(data, AAD))


def key_per_token() -> Pair:
    """Format 1: a salt of random bytes and content, and a key and cipher for every token."""
    salts = blake2b(key=os.urandom(32), digest_size=24)
    states = blake2b(key=os.urandom(32), digest_size=32)

    def cipher(salt: bytes) -> AESGCM:
        state = states.copy()
        state.update(salt)
        return AESGCM(state.digest())

    def seal(data: bytes) -> bytes:
        state = salts.copy()
        state.update(b"".join((os.urandom(24), len(AAD).to_bytes(8, "big"), AAD, data)))
        salt = state.digest()
        return salt + cipher(salt).encrypt(bytes(12), data, AAD)

    return seal, lambda data: cipher(data[:24]).decrypt(bytes(12), data[24:], AAD)


def hashed_by_blake() -> Pair:
    """As the built-in one, but the nonce is a hash over the whole message, without GMAC."""
    box = AESGCM(os.urandom(32))
    marks = blake2b(key=os.urandom(32), digest_size=12)

    def seal(data: bytes) -> bytes:
        state = marks.copy()
        state.update(b"".join((os.urandom(16), len(AAD).to_bytes(8, "big"), AAD, data)))
        nonce = state.digest()
        return nonce + box.encrypt(nonce, data, AAD)

    return seal, lambda data: box.decrypt(data[:12], data[12:], AAD)


def gcm_siv() -> Pair:
    box = AESGCMSIV(os.urandom(32))

    def seal(data: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + box.encrypt(nonce, data, AAD)

    return seal, lambda data: box.decrypt(data[:12], data[12:], AAD)


def plain_gcm() -> Pair:
    """Not a candidate: 96 random bits under one key. The floor."""
    box = AESGCM(os.urandom(32))

    def seal(data: bytes) -> bytes:
        nonce = os.urandom(12)
        return nonce + box.encrypt(nonce, data, AAD)

    return seal, lambda data: box.decrypt(data[:12], data[12:], AAD)


def stdlib_base64() -> Pair:
    return (
        lambda data: base64.urlsafe_b64encode(data).rstrip(b"="),
        lambda text: base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4)),
    )


def our_base64() -> Pair:
    return to_text, from_text  # pyright: ignore[reportReturnType]


def row(name: str, make: Callable[[], Pair]) -> None:
    cells: list[str] = []
    try:
        write, read = make()
    except UnsupportedAlgorithm:
        print(f"{name:34} not in this OpenSSL")
        return
    for size in SIZES:
        data = os.urandom(size)
        written = write(data)
        number = max(2, 10_000 // size)
        there = cost(lambda data=data: write(data), number)
        back = cost(lambda written=written: read(written), number)
        cells.append(f"{there:7.1f} + {back:5.1f}")
    print(f"{name:34} {'  '.join(cells)}")


def whole(entries: int) -> None:
    """Claims to bytes to sealed text, and back with every check."""
    binding = Binding(
        method="tools/call",
        target="provision",
        arguments=os.urandom(32),
        principal=Principal(issuer="https://id.example", subject="ada", client_id="desk"),
        audience="cloud",
        handler="provision",
    )
    sealer = Sealer(
        Keyring([generate_key()]),
        ttl=timedelta(minutes=10),
        audience="cloud",
        clock=time.time,
        entropy=os.urandom,
    )
    answer = {"region": "eu-west", "size": 2}
    journal = Journal(
        seed=os.urandom(16),
        entries=[
            Entry("ask", f"ask-{n}", encode_value(answer), os.urandom(16), "Where?")
            for n in range(entries)
        ],
    )
    claims = sealer.claims(
        binding,
        call=os.urandom(16).hex(),
        round=2,
        deadline=time.time() + 86_400,
        version="1",
        journal=journal,
        pending=(Pending("placement", "form", os.urandom(16), "Where should it live?"),),
    )
    plain = encode(claims)
    token = sealer.seal(plain)
    assert isinstance(token, str)
    print(f"\n{entries} answers, {len(plain)} B of claims, token of {len(token)} characters")
    for name, run in (
        ("msgpack, write", lambda: encode(claims)),
        ("msgpack, read", lambda: decode(plain)),
        ("seal", lambda: sealer.seal(encode(claims))),
        ("open and check", lambda: sealer.open(token, binding)),
    ):
        print(f"  {name:32} {cost(run, 20):7.1f}")


def main() -> None:
    print(f"{'microseconds, there + back':34} " + "  ".join(f"{s:>11} B " for s in SIZES))
    row("AES-256-GCM, key per epoch (ours)", built_in)
    row("AES-256-GCM, key per token", key_per_token)
    row("as ours, nonce by BLAKE2b alone", hashed_by_blake)
    row("AES-256-GCM-SIV, random nonce", gcm_siv)
    row("AES-256-GCM, one key (not safe)", plain_gcm)
    row("base64url, ours", our_base64)
    row("base64url, standard library", stdlib_base64)
    for entries in (0, 5, 50):
        whole(entries)


if __name__ == "__main__":
    main()
