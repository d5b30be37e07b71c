"""What the contracts share: names, times, and operations with the usual arguments."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar, cast

import msgspec

from antiphon.ports import (
    Claim,
    Claimed,
    Effect,
    LeasedRound,
    LeasedTaskRun,
    Restartable,
    Running,
    Spent,
    Started,
    Store,
)

Contract: TypeAlias = Callable[[Store, Store], Awaitable[None]]
"""Two handles of one store; the second stands for another process."""

YES = b"digest-of-yes---"
NO = b"digest-of-no----"
ARGS = b"digest-of-args--"
LONG = 30.0
PATIENCE = 5.0
"""How long a contract waits for what should come at once."""


def name(kind: str = "call") -> str:
    return f"{kind}-{secrets.token_hex(12)}"


_S = TypeVar("_S", bound=Store)


def apart(a: _S, b: _S) -> tuple[_S, _S, str]:
    """Return the views of a server that no other contract uses, and its name."""
    server = name("server")
    return cast(_S, a.for_server(server)), cast(_S, b.for_server(server)), server


TTL = 600.0
"""Seconds for which a row is kept unless a contract is about that."""


async def store_passes(store: Store, seconds: float) -> None:
    """Wait until that much time has passed for the store: no round of this name ever ends."""
    call = name("clock")
    await mine_of(store, call, lease=seconds)
    async with asyncio.timeout(PATIENCE + seconds):
        while await redeem(store, call) == Running():
            await store.settled(call, 2, timeout=seconds)


async def redeem(
    store: Store,
    call: str,
    round: int = 2,
    answers: bytes = YES,
    *,
    lease: float = LONG,
    ttl: float = TTL,
    tries: int = 5,
) -> Claim:
    return await store.claim(call, round, answers, lease=lease, ttl=ttl, tries=tries)


async def mine_of(
    store: Store, call: str, round: int = 2, *, lease: float = LONG, ttl: float = TTL
) -> Claimed:
    claim = await redeem(store, call, round, lease=lease, ttl=ttl)
    assert isinstance(claim, Claimed), claim
    return claim


async def record(
    store: Store,
    call: str,
    round: int,
    fence: int,
    outcome: bytes = b"out",
    *,
    ttl: float = TTL,
    final: bool = False,
) -> bool:
    return await store.record(call, round, fence, outcome, ttl=ttl, final=final)


def assert_spent(claim: Claim, reason: str) -> None:
    assert isinstance(claim, Spent), claim
    assert claim.reason == reason, claim


def effect_of(call: str, key: str = "charge", function: str = "pay", args: bytes = ARGS) -> Effect:
    return Effect(id=f"{call}/{key}", call=call, key=key, function=function, arguments=args)


async def start(
    store: Store,
    effect: Effect,
    *,
    lease: float = LONG,
    ttl: float = TTL,
    under: LeasedRound | LeasedTaskRun | None = None,
    retry: bool = False,
    window: float | None = None,
    nonce: bytes = b"",
) -> object:
    return await store.begin(
        effect, lease=lease, ttl=ttl, under=under, retry=retry, window=window, nonce=nonce
    )


async def begun_of(store: Store, effect: Effect, **options: object) -> Started:
    begin = await start(store, effect, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(begin, Started), begin
    return begin


def restartable_of(effect: Effect, name: str, generation: int = 0) -> Effect:
    """Return the same effect in a call that can be started over."""
    restart = Restartable(name, f"seed of {effect.call}".encode(), generation)
    return msgspec.structs.replace(effect, restart=restart)
