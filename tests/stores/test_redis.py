"""The Redis store: the contracts between two handles, what it refuses, and a server that fails."""

import time
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import RedisError

from antiphon.errors import ConfigError, StoreError, StoreFull
from antiphon.ports import Claimed, Effect, NewTask, Running
from antiphon.stores.redis import RedisStore, _check_info
from antiphon.stores.redis_scripts import GRACE
from antiphon.testing.contracts import (
    STORE_CONTRACTS,
    Contract,
    an_evicted_outcome_is_spent_and_its_mark_stays,
)
from antiphon.testing.contracts.parts import store_passes
from tests import servers
from tests.servers import opened


@pytest.fixture
async def stores(redis_url: str) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    first, second = RedisStore(redis_url), RedisStore(redis_url)
    async with opened(first), opened(second):
        yield first, second


async def claim(store: RedisStore, call: str, *, ttl: float = 600):
    return await store.claim(call, 2, b"yes", lease=30, ttl=ttl, tries=5)


@pytest.mark.parametrize("contract", STORE_CONTRACTS, ids=lambda contract: contract.__name__)
async def test_the_redis_store_keeps_the_contract(
    contract: Contract, stores: tuple[RedisStore, RedisStore]
) -> None:
    await contract(*stores)


async def test_an_outcome_above_the_cap_is_recorded_without_its_body(redis_url: str) -> None:
    async with opened(RedisStore(redis_url, outcome_bytes=1000)) as store:
        await an_evicted_outcome_is_spent_and_its_mark_stays(store, body=bytes(1001))


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused_with_the_cure(policy: str) -> None:
    with servers.own_redis("--maxmemory-policy", policy) as url:
        store = RedisStore(url)
        with pytest.raises(ConfigError, match=f"{policy}.*noeviction"):
            await store.open()
        await store.close()


async def test_a_full_server_refuses_and_forgets_nothing() -> None:
    with servers.own_redis() as url:
        async with opened(RedisStore(url)) as store:
            first = await claim(store, "call")
            assert isinstance(first, Claimed)
            await store._redis.config_set("maxmemory", 1000)
            with pytest.raises(StoreFull, match="no memory left"):
                await store.keep("a", 2, b"digest", b"more", owner="me", quota=9, ttl=600)
            with pytest.raises(StoreFull):
                await claim(store, "another")
            effect = Effect("id", "call", "key", "pay", b"args")
            with pytest.raises(StoreFull):
                await store.begin(effect, lease=30, ttl=600, under=None, retry=False)
            assert await claim(store, "call") == Running()


async def test_a_restart_of_the_server_costs_no_more_than_one_duty() -> None:
    with servers.own_redis() as url:
        store = RedisStore(url, timeout=2)
        await store.open()
        await claim(store, "call")
    with pytest.raises(StoreError) as caught:
        await claim(store, "call")
    assert caught.value.retryable
    with servers.own_redis("--port", url.split(":")[2].split("/")[0]):
        assert isinstance(await claim(store, "call"), Claimed)
        await store.close()


async def test_what_expired_is_removed_by_the_server_itself(redis_url: str) -> None:
    async with opened(RedisStore(redis_url, prefix="expiry:")) as store:
        gone = await claim(store, "gone")
        assert isinstance(gone, Claimed)
        await store.record("gone", 2, gone.fence, b"out", ttl=-1000)
        await store.keep("gone", 1, b"digest", b"data", owner="me", quota=9, ttl=0.01)
        await claim(store, "kept")
        await store_passes(store, 0.02)
        keys = {key async for key in store._redis.scan_iter("expiry:*")}
        assert b"expiry:/r:kept:2" in keys
        assert b"expiry:/r:gone:2" not in keys
        assert b"expiry:/s:gone:1:" + b"digest".hex().encode() not in keys
        for key in keys - {b"expiry:/calls"}:
            assert 0 < await store._redis.pttl(key) <= (600 + GRACE) * 1000


async def test_a_round_that_is_held_is_kept_by_the_server(redis_url: str) -> None:
    async with opened(RedisStore(redis_url, prefix="held:")) as store:
        mine = await claim(store, "call", ttl=0.01)
        assert isinstance(mine, Claimed)
        for key in ("held:/r:call:2", "held:/m:call"):
            await store._redis.pexpire(key, 1_000)  # its life is nearly over
        assert await store.renew("call", 2, mine.fence, lease=30)
        for key in ("held:/r:call:2", "held:/m:call"):
            assert await store._redis.pttl(key) > 30_000


async def test_a_server_that_begins_to_evict_is_refused_from_then_on() -> None:
    with servers.own_redis() as url:
        async with opened(RedisStore(url)) as store, opened(RedisStore(url)) as fresh:
            assert isinstance(await claim(store, "call"), Claimed)
            await store._redis.config_set("maxmemory-policy", "allkeys-lru")
            await fresh._redis.connection_pool.disconnect()
            with pytest.raises(StoreError, match="may evict keys") as caught:
                await claim(fresh, "on a new connection")
            assert not caught.value.retryable
            store._check_at = 0.0  # a minute has passed
            with pytest.raises(StoreError, match="may evict keys"):
                await claim(store, "on an old connection")
            await store._redis.config_set("maxmemory-policy", "noeviction")
            assert isinstance(await claim(store, "mended"), Claimed)


@pytest.mark.parametrize(("version", "good"), [("6.0.16", False), ("6.2.0", True), ("8.2", True)])
def test_a_server_without_the_commands_of_the_scripts_is_refused(version: str, good: bool) -> None:
    if good:
        _check_info({"redis_version": version})
    else:
        with pytest.raises(RedisError, match=r"6.0.16 is too old: 6.2"):
            _check_info({"redis_version": version})


async def test_a_clock_that_differs_by_a_minute_is_refused(redis_url: str) -> None:
    store = RedisStore(redis_url, clock=lambda: time.time() - 100)
    with pytest.raises(ConfigError, match=r"clock of this process is 100 s behind.*Set the clocks"):
        await store.open()
    await store.close()


async def test_the_cause_of_a_refused_login_is_named() -> None:
    with servers.own_redis("--requirepass", "right") as url:
        host = url.removeprefix("redis://")
        with pytest.raises(StoreError, match="wrong user or password") as failed:
            await RedisStore(f"redis://:hunter2@{host}").open()
        assert "hunter2" not in str(failed.value)
        with pytest.raises(StoreError, match="the URL has none"):
            await RedisStore(url).open()
    with pytest.raises(StoreError, match=r"nothing listens at 127\.0\.0\.1:1 "):
        await RedisStore("redis://127.0.0.1:1/0").open()


async def test_a_server_that_is_not_there_is_a_retryable_failure_without_the_password() -> None:
    store = RedisStore(f"redis://:secret-word@127.0.0.1:{servers.free_port()}/0")
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert caught.value.retryable
    assert "secret-word" not in str(caught.value)
    await store.close()


async def test_tasks_are_refused_and_the_round_stays_claimed(redis_url: str) -> None:
    async with opened(RedisStore(redis_url)) as store:
        mine = await claim(store, "detaching")
        assert isinstance(mine, Claimed)
        task = NewTask("id", "cloud", "me", "tool", "working", "", 0.0, 9e9, b"state")
        with pytest.raises(StoreError, match="no tasks") as caught:
            await store.record("detaching", 2, mine.fence, b"out", ttl=600, task=task)
        assert not caught.value.retryable
        assert await store.renew("detaching", 2, mine.fence, lease=30)
