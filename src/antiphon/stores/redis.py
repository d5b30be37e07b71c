"""A store in Redis, for many machines. Owns its connections and what it demands of the server.

Redis answers before its replica has heard: what a failover forgets can happen twice, which is why
this store promises less than PostgreSQL. A server that evicts keys would forget marks at any
moment and is refused, at the start, with every new connection and every minute. Tasks are not kept
here.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast
from urllib.parse import quote

from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

from antiphon.errors import ConfigError, StoreError, StoreFull
from antiphon.ports import (
    NOTHING_KNOWN,
    STANDS,
    About,
    Begin,
    Busy,
    CallRow,
    Claim,
    Claimed,
    Clock,
    Effect,
    EffectRow,
    FailedEffect,
    Finished,
    InEqualCall,
    LeasedRound,
    LeasedTaskRun,
    LeaseLost,
    Mismatch,
    NewTask,
    Recorded,
    Running,
    Spent,
    Started,
    TakenOver,
    Uncertain,
)
from antiphon.stores import clocks
from antiphon.stores import redis_scripts as scripts
from antiphon.stores.failure_causes import find_redis_cause
from antiphon.stores.views import ServerViews
from antiphon.stores.waiting import RoundState, RoundWaiters

_OLDEST = (6, 2)
"""The oldest Redis that has every command of the scripts."""

_NO_TASKS = "Redis keeps no tasks. Use a SQLite or PostgreSQL store for tools that detach."


@cache
def _prefix_of(prefix: str, server: str) -> str:
    """Return what the keys of one server begin with: no two servers share a beginning."""
    return f"{prefix}{quote(server, safe='')}/"


class _RefusedByRedis(RedisError):
    """A server that cannot be trusted with a ledger."""


class RedisStore(ServerViews):
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
        clock: Clock = time.time,
    ) -> None:
        """Name the server; `open` connects.

        Args:
            url: A `redis://` or `rediss://` URL.
            prefix: What the keys begin with; the name of the server follows.
            connections: Connections of this process at most.
            timeout: Seconds after which an operation is given up.
            outcome_bytes: A larger outcome is recorded without its body: its duplicate is refused.
            clock: The clock by which tokens expire; compared with the server's.
        """
        # The driver leaves some of its types open, here and below.
        pool = BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            url,
            max_connections=connections,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            health_check_interval=10,
            # An operation that was sent may have been done: it is never sent twice.
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=_connected,
        )
        self._redis: Redis = Redis(connection_pool=pool)
        self._keys = prefix
        self._outcome_bytes = outcome_bytes
        self._clock = clock
        self._clocks = clocks.ClockCheck("the Redis store")
        self._check_at = 0.0
        self._waiters = RoundWaiters()
        self._scripts: dict[str, Any] = {}

    async def open(self) -> None:
        """Connect and check that the server keeps what it is given.

        Raises:
            ConfigError: The server is too old, may evict keys, or its clock differs too much.
            StoreError: It cannot be reached.
        """
        try:
            await self._check_server()
            if self.server:
                await cast(Any, self._redis.sadd(f"{self._keys}servers", self.server))
        except _RefusedByRedis as error:
            raise ConfigError(str(error)) from None
        except RedisError as error:
            raise _failure(error) from error
        self._clocks.check_start()

    async def _check_server(self) -> None:
        """Compare clocks and look whether the server may evict keys."""
        self._check_at = time.monotonic() + clocks.EVERY
        before = self._clock()
        seconds, microseconds = await self._redis.time()  # pyright: ignore[reportUnknownMemberType]
        self._clocks.compare(before, seconds + microseconds / 1e6, self._clock())
        _check_info(await self._redis.info())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]

    @property
    def clock_difference(self) -> float:
        """Seconds by which this process is ahead of the server; negative when it is behind."""
        return self._clocks.difference

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _run(self, script: str, keys: Sequence[str], *arguments: bytes | str | float) -> Any:
        ready = self._scripts.get(script)
        if ready is None:
            ready = self._scripts[script] = self._redis.register_script(script)
        try:
            if time.monotonic() >= self._check_at:
                await self._check_server()
            self._clocks.check()
            return await ready(keys=keys, args=arguments)
        except RedisError as error:
            self.failed_at = time.monotonic()
            if isinstance(error, _RefusedByRedis):
                self._check_at = 0.0  # look again before the next operation
            if isinstance(error, ConnectionError):
                # The others were made to the same server and may be as dead.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise _failure(error) from error

    @property
    def _prefix(self) -> str:
        """What the keys of the server begin with."""
        return _prefix_of(self._keys, self.server)

    async def servers(self) -> Sequence[str]:
        """Return the servers that have called here, by name."""
        try:
            names: Any = await cast(Any, self._redis.smembers(f"{self._keys}servers"))
        except RedisError as error:
            raise _failure(error) from error
        return sorted(name.decode() for name in names)

    def _round(self, call: str, round: int) -> str:
        return f"{self._prefix}r:{call}:{round}"

    def _mark(self, call: str) -> str:
        return f"{self._prefix}m:{call}"

    # --- redeeming -----------------------------------------------------------------------------

    async def claim(
        self,
        call: str,
        round: int,
        answers: bytes,
        *,
        lease: float,
        ttl: float,
        tries: int,
        about: About = NOTHING_KNOWN,
    ) -> Claim:
        """Claim a round for running it."""
        keys = (self._round(call, round), self._mark(call), f"{self._prefix}calls")
        found = await self._run(
            scripts.CLAIM, keys, call, round, answers, lease, ttl, tries, about.tool, about.caller
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
        keys = (self._round(call, round), self._mark(call))
        return bool(await self._run(scripts.RENEW, keys, fence, lease))

    async def record(
        self,
        call: str,
        round: int,
        fence: int,
        outcome: bytes,
        *,
        ttl: float,
        final: bool = False,
        task: NewTask | None = None,
    ) -> bool:
        """Record the outcome and end the claim; False if the fence is lost."""
        if task is not None:
            raise StoreError(_NO_TASKS, retryable=False)
        fits = len(outcome) <= self._outcome_bytes
        done = await self._run(
            scripts.RECORD,
            (self._round(call, round), self._mark(call)),
            self._prefix,
            call,
            round,
            fence,
            int(fits),
            outcome if fits else b"",
            ttl,
            int(final),
        )
        self._waiters.wake(call, round)
        return bool(done)

    async def release(
        self, call: str, round: int, fence: int, *, spend: bool = False, counts: bool = True
    ) -> None:
        """Give the round back for another try, or spend it."""
        state = "spent" if spend else "released"
        keys = (self._round(call, round),)
        await self._run(scripts.RELEASE, keys, fence, state, int(counts))
        self._waiters.wake(call, round)

    async def settled(self, call: str, round: int, *, timeout: float) -> None:
        """Return when the round may have left `Running`, or after `timeout` seconds."""

        async def look() -> RoundState:
            running, lease = await self._run(scripts.STATE, (self._round(call, round),))
            return RoundState(bool(running), float(lease))

        await self._waiters.wait(call, round, timeout, look)

    async def end_call(self, call: str, *, ttl: float, round: int | None = None) -> None:
        """Free what a call that has ended leaves behind."""
        keys, ended = (f"{self._prefix}ec:{call}",), "" if round is None else round
        await self._run(scripts.END_CALL, keys, self._prefix, call, ttl, ended)

    # --- effects -------------------------------------------------------------------------------

    async def begin(
        self,
        effect: Effect,
        *,
        lease: float,
        ttl: float,
        under: LeasedRound | LeasedTaskRun | None,
        retry: bool,
        window: float | None = None,
        nonce: bytes = b"",
        about: About = NOTHING_KNOWN,
    ) -> Begin:
        """Claim an effect before it runs."""
        prefix = self._prefix
        if isinstance(under, LeasedTaskRun):
            raise StoreError(_NO_TASKS, retryable=False)
        held = "" if under is None else self._round(under.call, under.round)
        keys = (held, f"{prefix}e:{effect.id}", f"{prefix}ec:{effect.call}", f"{prefix}started")
        kept = under.prefix if under is not None else None
        found = await self._run(
            scripts.BEGIN, keys, prefix,
            effect.id, effect.call, effect.key, effect.function, effect.arguments,
            lease, ttl, int(retry), "" if window is None else window,
            "" if under is None else under.fence, int(kept is not None), kept or b"",
            nonce, about.tool, about.caller, effect.shown, *_restart(effect), *_equal(effect),
        )  # fmt: skip
        return _begin(found)

    async def take_over(
        self, name: str, *, ttl: float, about: About = NOTHING_KNOWN
    ) -> TakenOver | None:
        """Take over the unfinished call of this name that has effects."""
        keys = (f"{self._prefix}l:{name}",)
        found = await self._run(scripts.TAKE_OVER, keys, self._prefix, name, ttl)
        if not found:
            return None
        call, seed, generation, *mark = found
        if mark and mark[0] is not None:
            self._waiters.wake(call.decode(), int(mark[0]))
        return TakenOver(call.decode(), seed, generation)

    async def hold(self, effect: str, fence: int, *, lease: float) -> bool:
        """Extend the lease of a running effect; False if the fence is lost."""
        return bool(await self._run(scripts.HOLD, self._effect(effect), fence, lease, effect))

    def _effect(self, effect: str) -> tuple[str, str]:
        return f"{self._prefix}e:{effect}", f"{self._prefix}started"

    async def settle(
        self,
        effect: str,
        fence: int,
        *,
        result: bytes | None,
        error: str | None,
        told: bool = False,
        lost: bool = False,
        doubted: bool = False,
    ) -> bool:
        """Record the result or the failure; False if the fence is lost."""
        state, field, value = ("failed", "w", error) if error is not None else ("done", "r", result)
        done = await self._run(
            scripts.SETTLE, self._effect(effect), fence, state, field, value or b"", effect,
            int(told), int(lost), STANDS if doubted else 0, self._prefix,
        )  # fmt: skip
        return bool(done)

    async def tell(self, call: str, *, lost: bool = False) -> None:
        """Note that the caller of a call knows what its effects did, or never will."""
        keys = (f"{self._prefix}ec:{call}",)
        await self._run(scripts.TELL, keys, self._prefix, call, 0 if lost else 1)

    async def abandon(self, effect: str, fence: int) -> None:
        """Free the claim: nothing happened."""
        await self._run(scripts.ABANDON, self._effect(effect), fence, effect)

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
                tool.decode(),
                caller.decode(),
                bool(blocks),
                shown,
            )
            for key, function, state, started, settled, tool, caller, blocks, shown in rows
        ]

    async def calls(self, *, limit: int = 100, uncertain: bool = False) -> Sequence[CallRow]:
        """List calls, or those with an effect of unknown end only."""
        _, rows = await self._listed(limit, uncertain=uncertain)
        found = [
            CallRow(
                call.decode(),
                mark,
                state.decode(),
                float(expires),
                float(started),
                tool.decode(),
                caller.decode(),
                number,
                blocking,
            )
            for call, mark, state, expires, started, tool, caller, number, blocking in rows
        ]
        if uncertain:
            return sorted(found, key=lambda row: row.started)
        return sorted(found, key=lambda row: row.expires, reverse=True)

    async def count_calls(self, *, uncertain: bool = False) -> int:
        """Count what `calls` would list without a limit."""
        return (await self._listed(0, uncertain=uncertain))[0]

    async def _listed(self, limit: int, *, uncertain: bool) -> tuple[int, Sequence[Any]]:
        index = "started" if uncertain else "calls"
        script = scripts.UNCERTAIN_CALLS if uncertain else scripts.CALLS
        return await self._run(script, (self._prefix + index,), self._prefix, limit)

    async def settle_uncertain(self, call: str, key: str, *, result: bytes | None) -> bool:
        """Settle an uncertain effect by an operator's word, and let its call go on."""
        keys = (f"{self._prefix}ec:{call}",)
        done = int(result is not None)
        given = (self._prefix, call, key, done, result or b"", STANDS)
        return bool(await self._run(scripts.DECIDE, keys, *given))

    async def unsettle(self, call: str, key: str, *, result: bytes) -> bool:
        """Take back a result that an operator gave and that is of no use."""
        keys = (f"{self._prefix}ec:{call}",)
        return bool(await self._run(scripts.UNSETTLE, keys, self._prefix, key, result))

    # --- segments ------------------------------------------------------------------------------

    async def keep(
        self,
        call: str,
        round: int,
        digest: bytes,
        data: bytes,
        *,
        owner: str,
        quota: int,
        ttl: float,
    ) -> bool:
        """Keep a segment; False when its owner would keep more than `quota` bytes."""
        segment = f"{round}:{digest.hex()}"
        prefix = self._prefix
        keys = (f"{prefix}s:{call}:{segment}", f"{prefix}sc:{call}", f"{prefix}b:{owner}")
        return bool(await self._run(scripts.KEEP, keys, call, segment, data, owner, quota, ttl))

    async def fetch(self, call: str, round: int, digest: bytes) -> bytes | None:
        """Return the segment, or None when it is gone."""
        key = f"{self._prefix}s:{call}:{round}"
        try:
            # Earlier versions named a segment without its digest.
            named = await self._redis.mget(f"{key}:{digest.hex()}", key)
        except RedisError as error:
            raise _failure(error) from error
        return cast("bytes | None", named[0] or named[1])


def _restart(effect: Effect) -> tuple[str, bytes, int]:
    restart = effect.restart
    return ("", b"", 0) if restart is None else (restart.name, restart.seed, restart.generation)


def _equal(effect: Effect) -> tuple[bytes | str, ...]:
    equal = effect.equal
    return (b"", b"") if equal is None else (equal.answers, equal.inputs, *equal.names)


async def _connected(connection: Connection) -> None:
    """Check a server with every new connection: it may be another one after a failover."""
    await connection.on_connect()
    await connection.send_command("INFO", "memory")
    text = cast("bytes | str", await connection.read_response())
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    _check_info(dict(line.split(":", 1) for line in lines if ":" in line))


def _check_info(info: Mapping[str, Any]) -> None:
    """Refuse a server that may forget, or that lacks a command.

    Raises:
        _RefusedByRedis: With the cure.
    """
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise _RefusedByRedis(
            f"this Redis may evict keys (maxmemory-policy {policy}), so that a token could be "
            "redeemed twice. Set maxmemory-policy noeviction, or use another server."
        )
    version = str(info.get("redis_version", ""))
    if version and tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise _RefusedByRedis(f"Redis {version} is too old: 6.2 or newer is needed.")


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
        case b"equal":
            call, id, state, arguments, inputs, result, error = found[1:]
            text = None if error is None else error.decode()
            return InEqualCall(
                call.decode(), id.decode(), state.decode(), arguments, inputs or b"", result, text
            )
        case b"fenced":
            return LeaseLost()
        case _:
            return Uncertain(found[1].decode())


def _failure(error: RedisError) -> StoreError:
    """Name the kind of failure; the server's text may hold what was sent."""
    if isinstance(error, _RefusedByRedis):
        return StoreError(str(error), retryable=False)
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error):
        return StoreFull("the Redis store is full: it has no memory left. Raise its maxmemory.")
    name = type(error).__name__
    away = isinstance(error, (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError))
    away = away and not isinstance(error, AuthenticationError)
    cause = find_redis_cause(str(error))
    if cause is not None:
        what = f"{cause.what} ({name}). {cause.advice}"
    elif away:
        what = f"{name}. Check that it is reachable and try again"
    else:
        what = f"{name}. Check its configuration and the rights of its user"
    return StoreError(f"the Redis store failed: {what}.", retryable=away)
