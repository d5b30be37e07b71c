"""A store in Redis, for many machines. Owns its connections and what it demands of the server.

Redis answers before its replica has heard: what a failover forgets can happen twice, which is why
this store promises less than PostgreSQL (S1). A server that evicts keys would forget marks at any
moment and is refused. Tasks are not kept here.
"""

from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

from antiphon.errors import ConfigError, StoreError
from antiphon.ports import (
    Begin,
    Busy,
    CallRow,
    Claim,
    Claimed,
    Effect,
    EffectRow,
    FailedEffect,
    Finished,
    HeldRound,
    HeldTaskRun,
    LeaseLost,
    Mismatch,
    NewTask,
    Recorded,
    Running,
    Spent,
    Started,
    Uncertain,
)
from antiphon.stores import scripts
from antiphon.stores.watch import RoundState, Watch

_GRACE = 300.0
"""Seconds that an expired row is kept: the clocks of machines differ."""

_OLDEST = (6, 0)
"""The oldest Redis that is tried."""


class RedisStore:
    """A store in one Redis database; its keys begin with `prefix`. Not for Redis Cluster."""

    durable = True
    shared = True

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "antiphon:",
        connections: int = 20,
        timeout: float = 10.0,
        outcome_bytes: int = 1024 * 1024,
    ) -> None:
        """Name the server; `open` connects.

        Args:
            url: A `redis://` or `rediss://` URL.
            prefix: What the keys begin with; servers that share it share their ledger.
            connections: Connections of this process at most.
            timeout: Seconds after which a duty is given up.
            outcome_bytes: A larger outcome is recorded without its body: its duplicate is refused.
        """
        # The driver leaves some of its types open, here and below.
        pool = BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            max_connections=connections,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            health_check_interval=10,
            # A duty that was sent may have been done: it is never sent twice.
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Redis = Redis(connection_pool=pool)
        self._prefix = prefix
        self._outcome_bytes = outcome_bytes
        self._watch = Watch()
        self._scripts: dict[str, Any] = {}

    async def open(self) -> None:
        """Connect and check that the server keeps what it is given."""
        try:
            info = await self._redis.info()  # pyright: ignore[reportUnknownMemberType]
        except RedisError as error:
            raise _failure(error) from error
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise ConfigError(
                f"this Redis may evict keys (maxmemory-policy {policy}), so that a token could be "
                "redeemed twice. Set maxmemory-policy noeviction, or use another server."
            )
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            raise ConfigError(f"Redis {version} is too old: 6.0 or newer is needed.")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _run(self, script: str, keys: Sequence[str], *arguments: bytes | str | float) -> Any:
        ready = self._scripts.get(script)
        if ready is None:
            ready = self._scripts[script] = self._redis.register_script(script)
        try:
            return await ready(keys=keys, args=arguments)
        except RedisError as error:
            if isinstance(error, ConnectionError):
                # The others were made to the same server and may be as dead.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise _failure(error) from error

    def _round(self, call: str, round: int) -> str:
        return f"{self._prefix}r:{call}:{round}"

    # --- redeeming -----------------------------------------------------------------------------

    async def claim(
        self, call: str, round: int, answers: bytes, *, lease: float, expires: float, tries: int
    ) -> Claim:
        """Claim a round for running it."""
        keys = (self._round(call, round), f"{self._prefix}m:{call}", f"{self._prefix}calls")
        found = await self._run(
            scripts.CLAIM, keys, call, round, answers, lease, expires, tries, _GRACE
        )
        match found[0]:
            case b"mine":
                return Claimed(found[1], found[2])
            case b"recorded":
                return Recorded(found[1])
            case b"running":
                return Running()
            case _:
                return Spent(found[1].decode())

    async def renew(self, call: str, round: int, fence: int, *, lease: float) -> bool:
        """Extend the lease; False if the fence is lost."""
        return bool(await self._run(scripts.RENEW, (self._round(call, round),), fence, lease))

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        expires: float,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim."""
        if task is not None:
            raise StoreError(
                "Redis keeps no tasks. Use a SQLite or PostgreSQL store for tools that detach.",
                retryable=False,
            )
        fits = len(outcome) <= self._outcome_bytes
        done = await self._run(
            scripts.RECORD,
            (self._round(call, round),),
            fence,
            int(fits),
            outcome if fits else b"",
            expires,
            _GRACE,
        )
        self._watch.wake(call, round)
        return bool(done)

    async def release(self, call: str, round: int, fence: int, *, spend: bool = False) -> None:
        """Give the round back for another try, or spend it."""
        state = "spent" if spend else "released"
        await self._run(scripts.RELEASE, (self._round(call, round),), fence, state)
        self._watch.wake(call, round)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""

        async def look() -> RoundState:
            running, lease = await self._run(scripts.STATE, (self._round(call, round),))
            return RoundState(bool(running), float(lease))

        await self._watch.wait(call, round, timeout, look)

    # --- effects -------------------------------------------------------------------------------

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        expires: float,
        under: HeldRound | HeldTaskRun | None,
        retry: bool,
        window: float | None = None,
    ) -> Begin:
        """Claim an effect before it runs."""
        prefix = self._prefix
        if isinstance(under, HeldTaskRun):
            raise StoreError("Redis keeps no tasks", retryable=False)
        held = "" if under is None else self._round(under.call, under.round)
        keys = (held, f"{prefix}e:{effect.id}", f"{prefix}ec:{effect.call}")
        kept = under.prefix if under is not None else None
        found = await self._run(
            scripts.BEGIN, keys, prefix,
            effect.id, effect.call, effect.key, effect.function, effect.arguments,
            lease, expires, _GRACE, int(retry), "" if window is None else window,
            "" if under is None else under.fence, int(kept is not None), kept or b"",
        )  # fmt: skip
        return _begin(found)

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        return bool(await self._run(scripts.HOLD, (f"{self._prefix}e:{effect}",), fence, lease))

    async def settle(
        self, effect: str, fence: int, *, result: bytes | None, error: str | None
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        state, field, value = ("failed", "w", error) if error is not None else ("done", "r", result)
        keys = (f"{self._prefix}e:{effect}",)
        return bool(await self._run(scripts.SETTLE, keys, fence, state, field, value or b""))

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        await self._run(scripts.ABANDON, (f"{self._prefix}e:{effect}",), fence)

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """List the effects of a call, oldest first."""
        rows = await self._run(scripts.EFFECTS, (f"{self._prefix}ec:{call}",), self._prefix)
        return [
            EffectRow(
                call,
                key.decode(),
                function.decode(),
                state.decode(),
                float(started),
                None if settled is None else float(settled),
            )
            for key, function, state, started, settled in rows
        ]

    async def calls(self, *, limit: int = 100) -> Sequence[CallRow]:
        """List calls, the latest to expire first."""
        rows = await self._run(scripts.CALLS, (f"{self._prefix}calls",), self._prefix, limit)
        found = [
            CallRow(call.decode(), mark, state.decode(), float(expires))
            for call, mark, state, expires in rows
        ]
        return sorted(found, key=lambda row: row.expires, reverse=True)

    async def decide(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word."""
        keys = (f"{self._prefix}ec:{call}",)
        done = int(result is not None)
        return bool(await self._run(scripts.DECIDE, keys, self._prefix, key, done, result or b""))

    # --- segments ------------------------------------------------------------------------------

    async def keep(
        self, call: str, round: int, data: bytes, *, owner: str, quota: int, expires: float
    ) -> bool:
        """Keep an immutable segment; False when the owner holds enough already."""
        name = f"{call}:{round}"
        keys = (f"{self._prefix}s:{name}", f"{self._prefix}o:{owner}")
        return bool(await self._run(scripts.KEEP, keys, name, data, quota, expires))

    async def fetch(self, call: str, round: int) -> bytes | None:
        """Give the segment, or None when it is gone."""
        try:
            return cast("bytes | None", await self._redis.get(f"{self._prefix}s:{call}:{round}"))
        except RedisError as error:
            raise _failure(error) from error


def _begin(found: Sequence[Any]) -> Begin:
    match found[0]:
        case b"begun":
            return Started(found[1])
        case b"settled":
            return Finished(found[1], found[2].decode())
        case b"failed":
            return FailedEffect(found[1].decode())
        case b"mismatch":
            return Mismatch(found[1].decode())
        case b"busy":
            return Busy()
        case b"fenced":
            return LeaseLost()
        case _:
            return Uncertain(found[1].decode())


def _failure(error: RedisError) -> StoreError:
    """Name the kind of failure; the server's text may hold what was sent."""
    away = isinstance(error, (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError))
    again = away and not isinstance(error, AuthenticationError)
    cure = (
        "Check that it is reachable and try again"
        if again
        else "Check its memory and the rights of its user"
    )
    return StoreError(f"the Redis store failed: {type(error).__name__}. {cure}.", retryable=again)
