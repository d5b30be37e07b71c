"""What every test of sealing starts from: a clock to set, random bytes that count, a call."""

from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar, cast

import pytest

from antiphon.protocol.journal import Entry, Journal, encode_value
from antiphon.protocol.request import Principal
from antiphon.seal.claims import Binding, Pending
from antiphon.seal.keyring import Keyring
from antiphon.seal.sealer import Ready, Sealer

T = TypeVar("T")

PLACE = {"region": "eu-west", "size": 2}
NEW = "8f1d2a6b3c4e5f708192a3b4c5d6e7f80910213243546576879809aabbccddee"
OLD = "d9c4b1a7e3f2605841973b2d8c6e5fa0b1c2d3e4f50617283940aebfc8d7e6f5"


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class CountedBytes:
    """Random bytes that never repeat and are the same in every run."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big")


async def ready(value: Ready[T]) -> T:
    """Wait for a value where a custom codec makes it something to wait for."""
    return await cast("Awaitable[T]", value) if isinstance(value, Awaitable) else value


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_sealer(clock: Clock, *keys: str, **options: object) -> Sealer:
    settings: dict[str, object] = {
        "ttl": timedelta(minutes=10),
        "audience": "cloud",
        "clock": clock,
        "entropy": CountedBytes(),
    }
    return Sealer(Keyring(keys or (NEW,)), **(settings | options))  # pyright: ignore[reportArgumentType]


@pytest.fixture
def sealer(clock: Clock) -> Sealer:
    return make_sealer(clock)


@pytest.fixture
def binding() -> Binding:
    return Binding(
        method="tools/call",
        target="provision",
        arguments=b"\x01" * 32,
        principal=Principal(issuer="https://id.example", subject="ada", client_id="desk"),
        audience="cloud",
        handler="provision",
    )


@pytest.fixture
def journal() -> Journal:
    return Journal(
        seed=b"s" * 16,
        entries=[Entry("ask", "placement", encode_value(PLACE), b"d" * 16, "Where?")],
        state=encode_value({"step": 1}),
        asked=1,
    )


@pytest.fixture
def pending() -> tuple[Pending, ...]:
    return (Pending("approve", "form", b"q" * 16, "Start it?"),)
