"""Keys, workers, store, times and callers: what can be said without opening anything."""

import ast
from collections.abc import Iterator

from antiphon.apps.doctor.findings import Diagnosis, diagnosis
from antiphon.apps.doctor.sources import calls_of, may_ask, uses_effects
from antiphon.apps.doctor.subject import SourcedHandler, Subject
from antiphon.protocol.asks import seconds
from antiphon.seal.keys_in_use import KeptInFile

_MOST_KEYS = 3
_THINK_TIME = 120.0
"""Seconds that a person needs to read a question and to answer it."""

_KEY_LENGTH = 43


def check_keys(subject: Subject) -> Iterator[Diagnosis]:
    """Look at the keys that seal and open."""
    keys, store = subject.parts.keys, subject.parts.environment.store
    apart = subject.deployment.machines > 1 or (store.durable and keys.file is None)
    if keys.made and apart:
        yield diagnosis("keys-made", "ANTIPHON_KEYS")
    if len(keys.ids) > _MOST_KEYS:
        yield diagnosis("keys-left-over", f"keys {', '.join(keys.ids)}")
    for path, tree in subject.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_named(node.func, "Seal") and _has_key(node):
                yield diagnosis("key-in-source", f"{path}:{node.lineno}")


def _is_named(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name
    return isinstance(node, ast.Name) and node.id == name


def _has_key(call: ast.Call) -> bool:
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str | bytes)
        and len(node.value) >= _KEY_LENGTH
        for keyword in call.keywords
        if keyword.arg == "keys"
        for node in ast.walk(keyword.value)
    )


def check_store(subject: Subject) -> Iterator[Diagnosis]:
    """Compare the store with what it is to be promised."""
    environment, deployment = subject.parts.environment, subject.deployment
    store = environment.store
    given = not subject.parts.keys.made and environment.sealer.has_keys
    chosen = environment.spill and deployment.processes > 1
    if not store.shared and (given or chosen or deployment.machines > 1):
        yield diagnosis("store-in-memory", "store=")
    if deployment.machines > 1 and isinstance(store, KeptInFile):
        yield diagnosis("store-on-one-machine", "store=")
    if store.durable and store.shared and not environment.keeps_tasks:
        for sourced in subject.handlers:
            if uses_effects(sourced):
                yield diagnosis("store-may-forget", sourced.where)
    for sourced in subject.handlers:
        options = sourced.handler.options
        if not environment.keeps_tasks and (sourced.handler.needs_tasks or options.holds):
            yield diagnosis("store-without-tasks", sourced.where)
    if subject.server.task_runs == "workers" and not store.shared:
        yield diagnosis("tasks-never-run", "task_runs=")


def check_times(subject: Subject) -> Iterator[Diagnosis]:
    """Compare lifetimes of tokens with what people need, and with the life of calls."""
    sealer, limits = subject.parts.environment.sealer, subject.parts.environment.limits
    if sealer.ttl > limits.call.total_seconds():
        yield diagnosis("ttl-beyond-deadline", "Seal(ttl=...)")
    for sourced in subject.handlers:
        options = sourced.handler.options
        ttl = sealer.ttl if options.ttl is None else seconds(options.ttl)
        deadline = limits.call.total_seconds()
        if options.deadline is not None:
            deadline = seconds(options.deadline)
        if may_ask(sourced) and min(ttl, deadline) < _THINK_TIME:
            yield diagnosis("ttl-below-think-time", sourced.where)
        if options.ttl is not None and ttl > deadline:
            yield diagnosis("ttl-beyond-deadline", sourced.where)


def check_callers(subject: Subject) -> Iterator[Diagnosis]:
    """Look for what tells callers apart where nobody says who calls."""
    if subject.server.knows_callers or subject.deployment.stdio:
        return
    for listed, sourced in zip(subject.listed(), subject.handlers, strict=True):
        options = sourced.handler.options
        adopts = options.restarts is not None and options.restart_key is None
        hidden = listed.admission is not None and listed.admission.restricted
        if adopts or hidden or _shares_effects(sourced):
            yield diagnosis("principal-inert", sourced.where)


def _shares_effects(sourced: SourcedHandler) -> bool:
    """Tell whether an effect is shared by the calls of one caller."""
    for call in calls_of(sourced, {"once"}):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        scope = given.get("scope")
        if isinstance(scope, ast.Constant) and scope.value == "arguments":
            return "scope_key" not in given
    return False
