"""The parts of a server, made and joined in one place; each is complete when it is constructed.

changes -> registry -> catalog
changes + environment -> tasks -> engine
changes + registry + tasks -> subscriptions
all of them -> dispatcher (for the transports) and lifetime (what is open while one runs)
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypedDict

from antiphon.audit import Audit
from antiphon.engine.engine import Engine
from antiphon.engine.environment import Environment, Redeem, StoreTrouble
from antiphon.engine.handler import CachePolicy
from antiphon.handlers.catalog import Catalog
from antiphon.handlers.registry import Registry, TaskHandlers
from antiphon.integrations.audit.log import AuditLog
from antiphon.integrations.audit.rounds import audited, refusals_audited
from antiphon.ports import AuditTrail, Carrier, Clock, Entropy, Store, Telemetry
from antiphon.protocol.changes import Changes
from antiphon.protocol.effect_ends import unknown_types
from antiphon.protocol.inbox import InboxPlace
from antiphon.protocol.limits import Limits
from antiphon.protocol.methods import TASK_METHODS
from antiphon.protocol.quotas import Holdings
from antiphon.protocol.request import Era, Request
from antiphon.protocol.results import server_meta
from antiphon.seal.keys_in_use import HELD, KeysInUse, find_keys
from antiphon.seal.policy import Seal
from antiphon.seal.sealer import Sealer
from antiphon.server.lifetime import EnterLifespan, ServerLifetime
from antiphon.stores import open_store
from antiphon.tasks.calls import CarrierCalls
from antiphon.tasks.held import HeldCalls
from antiphon.tasks.queues import open_carrier
from antiphon.tasks.service import TaskService
from antiphon.transports.dispatcher import Dispatcher, Serve, ServerInfo
from antiphon.transports.subscriptions import Subscriptions, TaskPolling

TaskRunsIn = Literal["in_process", "workers"]


class ServerSettings(TypedDict, total=False):
    """What few servers set."""

    redeem: Redeem
    """`once`; `strict` spends a token also when its round failed."""

    eras: tuple[Era, ...]
    """`("modern", "legacy")`; `("modern",)` refuses clients of the earlier era."""

    task_runs: TaskRunsIn
    """`in_process`; `workers` leaves running tasks to `antiphon worker` processes."""

    carrier: str | Carrier | None
    """Brings ready tasks to workers: `temporal://host:port/namespace`, `nats://host:port`,
    `leases:` (workers claim them from the store), or a carrier of your own; without it,
    `ANTIPHON_CARRIER`, else `leases:`."""

    audit: Audit | None
    """Keeps a record of every call, round, task run, effect, decision and refusal."""

    telemetry: Telemetry | None
    """Traces and counts rounds: `antiphon.telemetry.OpenTelemetry()`."""

    cache: CachePolicy | None
    """The caching hints of the lists."""

    unknown_after: Sequence[type[Exception]]
    """Your exceptions after which an effect may have happened, beside time-outs and lost
    connections."""

    expose_errors: bool
    """Shows clients the text of unexpected exceptions, for development."""

    clock: Clock
    """Seconds since the epoch; for tests."""

    entropy: Entropy
    """Random bytes; for tests."""

    environ: Mapping[str, str] | None
    """Instead of `os.environ`; for tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What a server is made from, as its author says it."""

    info: ServerInfo
    limits: Limits = field(default_factory=Limits)
    seal: Seal = field(default_factory=Seal)
    store: str | Store | None = None
    settings: ServerSettings
    lifespan: EnterLifespan | None = None
    inbox: InboxPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Everything that a server consists of."""

    environment: Environment
    keys: KeysInUse
    changes: Changes
    registry: Registry
    catalog: Catalog
    tasks: TaskService
    engine: Engine
    subscriptions: Subscriptions
    lifetime: ServerLifetime
    dispatcher: Dispatcher


def assemble(plan: ServerPlan) -> ServerParts:
    """Make the parts of a server and join them; nothing is opened."""
    environment, keys = _environment(plan)
    changes = Changes()
    registry = Registry(changes)
    catalog = Catalog(
        registry,
        environment.sealer,
        plan.limits,
        meta=environment.meta,
        cache=plan.settings.get("cache") or CachePolicy(),
        instructions=plan.info.instructions,
    )
    tasks = TaskService(environment, TaskHandlers(registry), changes)
    held = HeldCalls(environment, tasks)
    engine = Engine(environment, registry, tasks, held)
    if tasks.available:
        registry.offer("tasks")
    subscriptions, polling = _subscriptions(environment, registry, tasks, changes)
    methods = {**catalog.methods(), **dict.fromkeys(TASK_METHODS, tasks.serve)}
    dispatcher = Dispatcher(
        plan.info,
        limits=plan.limits,
        holdings=environment.holdings,
        served=registry.served,
        subscriptions=subscriptions,
        changes=changes,
        capabilities=catalog.capabilities,
        calls=_traced(_audited(engine.call, environment.audit), environment.telemetry),
        others=_with_refusals_audited(methods, environment.audit),
        probe=partial(environment.store.effects, "readiness"),
        scopes=registry.scopes_needed,
        store_failed=environment.trouble.refused,
    )
    lifetime = ServerLifetime(
        environment,
        registry,
        engine,
        tasks,
        held,
        polling,
        keys,
        lifespan=plan.lifespan,
        calls=_calls(plan, tasks),
    )
    return ServerParts(
        environment=environment,
        keys=keys,
        changes=changes,
        registry=registry,
        catalog=catalog,
        tasks=tasks,
        engine=engine,
        subscriptions=subscriptions,
        lifetime=lifetime,
        dispatcher=dispatcher,
    )


def _subscriptions(
    environment: Environment, registry: Registry, tasks: TaskService, changes: Changes
) -> tuple[Subscriptions, TaskPolling | None]:
    """Return who listens to changes, and what looks for those that other processes made."""
    subscriptions = Subscriptions(
        environment.holdings.listeners,
        changes,
        offered=registry.served.capabilities,
        hidden=registry.hides,
        allowed=registry.may_watch,
        tasks=tasks if tasks.available else None,
    )
    if not tasks.available or not environment.store.shared:
        return subscriptions, None
    return subscriptions, TaskPolling(subscriptions, changes, tasks.store.tasks_updated)


def _calls(plan: ServerPlan, tasks: TaskService) -> CarrierCalls | None:
    """Return the carrier of task runs; None where workers claim them from the store."""
    environ, carrier = plan.settings.get("environ"), plan.settings.get("carrier")
    environ = os.environ if environ is None else environ
    if carrier is None and tasks.available:
        # A server whose store keeps no tasks has nothing to carry.
        carrier = environ.get("ANTIPHON_CARRIER") or None
    opened = open_carrier(carrier, tasks.server)
    return None if opened is None else CarrierCalls(opened, tasks.store, tasks.server)


def _traced(call: Serve, telemetry: Telemetry | None) -> Serve:
    """Enclose each round in a span, where somebody wants to see it."""
    if telemetry is None:
        return call

    async def counted(request: Request) -> bytes:
        with telemetry.round(request):
            return await call(request)

    async def traced(request: Request) -> bytes:
        with telemetry.round(request):
            request.result = result = await call(request)
            return result

    return traced if telemetry.reads_results else counted


def _audited(call: Serve, audit: AuditTrail | None) -> Serve:
    """Write a record of each round, where there is an audit."""
    return call if audit is None else audited(call, audit)


def _with_refusals_audited(
    others: Mapping[str, Serve], audit: AuditTrail | None
) -> Mapping[str, Serve]:
    """Write a record of each refusal, where there is an audit."""
    if audit is None:
        return others
    return {method: refusals_audited(serve, audit) for method, serve in others.items()}


def _environment(plan: ServerPlan) -> tuple[Environment, KeysInUse]:
    """Return what the engine needs of the world, and where its keys came from."""
    info, limits, seal, settings = plan.info, plan.limits, plan.seal, plan.settings
    clock = settings.get("clock", time.time)  # noqa: TID251 - the real clock is injected here
    entropy = settings.get("entropy", os.urandom)  # noqa: TID251 - real randomness likewise
    environ, audit = settings.get("environ"), settings.get("audit")
    # No child process inherits the keys; other servers of this process still find them.
    environ = HELD.take(os.environ) if environ is None else environ
    # `antiphon serve --workers` gives its workers a common store this way.
    store = plan.store if plan.store is not None else environ.get("ANTIPHON_STORE") or None
    audience = seal.audience or info.name
    opened = open_store(store, clock=clock).for_server(audience)
    keys = find_keys(seal, environ, entropy, opened)
    sealer = Sealer(
        keys.keyring,
        ttl=seal.ttl,
        audience=audience,
        clock=clock,
        entropy=entropy,
        codec=seal.codec,
        max_bytes=2 * limits.state_bytes + 16_384,
    )
    trouble = StoreTrouble(time.monotonic)
    meta = server_meta(info.name, info.version, info.title)
    environment = Environment(
        sealer=sealer,
        store=opened,
        limits=limits,
        holdings=Holdings(limits),
        clock=clock,
        entropy=entropy,
        meta=meta,
        redeem=settings.get("redeem", "once"),
        spill=store is not None,
        telemetry=settings.get("telemetry"),
        unknown_after=unknown_types(settings.get("unknown_after", ())),
        expose_errors=settings.get("expose_errors", False),
        trouble=trouble,
        inbox=plan.inbox,
        audit=None
        if audit is None
        else AuditLog(
            audit,
            opened,
            server=sealer.audience,
            digest=lambda data: sealer.names(b"audit", data)[0],
            meta=meta,
            refused=trouble.refused,
            clock=clock,
            entropy=entropy,
        ),
    )
    return environment, keys
