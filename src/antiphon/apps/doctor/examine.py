"""Every check, on one server. The store is opened as the server would open it."""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from antiphon.apps.doctor.clients import (
    check_asking,
    check_forms,
    check_hosting,
    check_issuers,
    check_roles,
)
from antiphon.apps.doctor.findings import Diagnosis, diagnosis, of_lint
from antiphon.apps.doctor.running import check_callers, check_keys, check_store, check_times
from antiphon.apps.doctor.sources import uses_effects
from antiphon.apps.doctor.subject import Deployment, Subject
from antiphon.apps.lint.files import check_file
from antiphon.errors import ConfigError, StoreError
from antiphon.seal.keys_in_use import KeptInFile
from antiphon.server import Server

CHECKS = (
    check_keys,
    check_store,
    check_times,
    check_callers,
    check_roles,
    check_issuers,
    check_asking,
    check_forms,
    check_hosting,
)

_CLOCKS = 5.0
"""Seconds between two clocks that are worth a word."""


@runtime_checkable
class RemoteStore(Protocol):
    """A store on another machine, with a clock of its own."""

    clock_difference: float
    """Seconds by which this process is ahead; negative when it is behind."""


@runtime_checkable
class PooledStore(Protocol):
    """A store behind which a pooler may stand."""

    async def lends_connections(self) -> bool:
        """Tell whether connections are lent for one transaction."""
        ...


@runtime_checkable
class ReplicatedStore(Protocol):
    """A store that may have standbys."""

    async def may_lose_commits(self) -> bool:
        """Tell whether a crash or a failover may forget commits."""
        ...


async def examine(
    server: Server, deployment: Deployment, *, offline: bool = False
) -> list[Diagnosis]:
    """Return everything that is wrong with a server where it is to run."""
    subject = Subject(server, deployment)
    found = [one for check in CHECKS for one in check(subject)]
    found += [of_lint(one) for path in subject.files for one in check_file(path)]
    if not offline:
        found += [one async for one in _check_opened(subject)]
    return found


async def _check_opened(subject: Subject) -> AsyncIterator[Diagnosis]:
    """Open the store and look; a file that does not exist yet is not made."""
    store = subject.parts.environment.store
    if isinstance(store, KeptInFile) and not store.path.exists():
        if not store.path.parent.is_dir():
            reason = f"the folder {store.path.parent} of the SQLite store does not exist"
            yield diagnosis("store-unreachable", "store=", reason)
        return
    try:
        await store.open()
    except (StoreError, ConfigError) as error:
        different = isinstance(store, RemoteStore) and abs(store.clock_difference) >= _CLOCKS
        id = "clocks-differ" if different else "store-unreachable"
        yield diagnosis(id, "store=", str(error))
        return
    try:
        if isinstance(store, RemoteStore) and abs(store.clock_difference) >= _CLOCKS:
            yield diagnosis("clocks-differ", f"{store.clock_difference:+.0f} s")
        tasks = [one.where for one in subject.handlers if one.handler.options.task]
        if tasks and isinstance(store, PooledStore) and await store.lends_connections():
            yield diagnosis("pooler-lends-connections", tasks[0])
        acts = [one.where for one in subject.handlers if uses_effects(one)]
        if acts and isinstance(store, ReplicatedStore) and await store.may_lose_commits():
            yield diagnosis("replication-may-forget", acts[0])
    finally:
        await store.close()
