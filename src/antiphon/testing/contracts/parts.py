"""What the contracts share: names, moments, and duties with the usual arguments."""

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from antiphon.ports import Claim, Claimed, Effect, HeldRound, HeldTaskRun, Spent, Started, Store

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


def later() -> float:
    return time.time() + 600


async def redeem(
    store: Store,
    call: str,
    round: int = 2,
    answers: bytes = YES,
    *,
    lease: float = LONG,
    tries: int = 5,
) -> Claim:
    return await store.claim(call, round, answers, lease=lease, expires=later(), tries=tries)


async def mine_of(store: Store, call: str, round: int = 2, *, lease: float = LONG) -> Claimed:
    claim = await redeem(store, call, round, lease=lease)
    assert isinstance(claim, Claimed), claim
    return claim


async def record(store: Store, call: str, round: int, fence: int, outcome: bytes = b"out") -> bool:
    return await store.record(call, round, fence, outcome, expires=later())


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
    under: HeldRound | HeldTaskRun | None = None,
    retry: bool = False,
    window: float | None = None,
) -> object:
    return await store.begin(
        effect, lease=lease, expires=later(), under=under, retry=retry, window=window
    )


async def begun_of(store: Store, effect: Effect, **options: object) -> Started:
    begin = await start(store, effect, **options)  # pyright: ignore[reportArgumentType]
    assert isinstance(begin, Started), begin
    return begin
