"""What clients cannot use: tools that hosts drop, rename or refuse, and questions without answer.

The rules on names, descriptions and schemas are those of the interfaces by which hosts give tools
to models (Anthropic, OpenAI), as their documentation has them; the protocol itself allows more.
Questions cannot be answered by anybody, by some clients, or in too many rounds.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from antiphon.apps.doctor.findings import Diagnosis, diagnosis
from antiphon.apps.doctor.sources import (
    acts_before_asking,
    asked_kinds,
    forms_of,
    pauses_of,
    roles_of,
    rounds_of,
)
from antiphon.apps.doctor.subject import Deployment, Subject
from antiphon.errors import UnsupportedForm
from antiphon.forms.form import of
from antiphon.protocol.limits import Limits
from antiphon.server import Server

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ARGUMENT = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MOST_TOOLS = 128
_MOST_ROUNDS = 10
_MOST_FIELDS = 12
_COMBINED = ("anyOf", "oneOf", "allOf")


def check_hosting(subject: Subject) -> Iterator[Diagnosis]:
    """Look at the list of tools as a host does."""
    tools = subject.parts.registry.tools
    if len(tools) > _MOST_TOOLS:
        yield diagnosis("too-many-tools", f"{len(tools)} tools")
    alike: dict[str, str] = {}
    for name, listed in tools.items():
        entry = cast("dict[str, Any]", msgspec.json.decode(listed.entry))
        if not _NAME.fullmatch(name):
            yield diagnosis("tool-name-refused", f"tool {name}")
        plain = re.sub(r"[._-]", "", name).lower()
        if plain in alike:
            yield diagnosis("tool-names-alike", f"tools {alike[plain]} and {name}")
        alike[plain] = name
        if not str(entry.get("description") or "").strip():
            yield diagnosis("tool-without-description", f"tool {name}")
        yield from _check_schema(name, entry["inputSchema"])


def _check_schema(name: str, schema: Mapping[str, Any]) -> Iterator[Diagnosis]:
    for argument in schema.get("properties", {}):
        if not _ARGUMENT.fullmatch(argument):
            yield diagnosis("argument-name-refused", f"tool {name}: {argument}")
    combined = [word for word in _COMBINED if word in schema]
    if combined:
        yield diagnosis("schema-refused", f"tool {name}: {', '.join(combined)}")


def check_asking(subject: Subject) -> Iterator[Diagnosis]:
    """Compare what handlers ask with what they declare, and with what clients can do."""
    for sourced in subject.handlers:
        options, kinds = sourced.handler.options, asked_kinds(sourced)
        declared = set(sourced.handler.needs)
        if options.asks and kinds - declared:
            missing = ", ".join(sorted(kinds - declared))
            yield diagnosis("asks-incomplete", f"{sourced.where}: {missing}")
        if not declared and acts_before_asking(sourced):
            yield diagnosis("asks-not-declared", sourced.where)
        if rounds_of(sourced) > _MOST_ROUNDS and options.task is None:
            yield diagnosis("rounds-above-clients", sourced.where)
        elif pauses_of(sourced) + rounds_of(sourced) > _MOST_ROUNDS and options.task is None:
            yield diagnosis("pauses-above-clients", sourced.where)
    if subject.server.limits.rounds > Limits().rounds:
        yield diagnosis("rounds-above-clients", f"Limits(rounds={subject.server.limits.rounds})")
    for flow in subject.server.flows:
        if len(flow.steps) > _MOST_ROUNDS:
            yield diagnosis("rounds-above-clients", f"tool {flow.name}")


def named_roles(server: Server) -> set[str]:
    """Return the roles that the tools of a server wait for, as far as their source says it."""
    subject = Subject(server, Deployment())
    return {role for sourced in subject.handlers for role in roles_of(sourced)}


def check_roles(subject: Subject) -> Iterator[Diagnosis]:
    """Look for decisions that nobody can make, and pages that nobody can reach."""
    console = subject.server.console
    if console is not None and console.is_elsewhere(subject.deployment.port):
        yield diagnosis("console-elsewhere", f"{console.url}, port {subject.deployment.port}")
    for sourced in subject.handlers:
        for role in dict.fromkeys(roles_of(sourced)):
            if console is None:
                yield diagnosis("by-without-console", f"{sourced.where}: by={role!r}")
            elif console.roles is not None and role not in console.roles:
                yield diagnosis("role-nobody-holds", f"{sourced.where}: by={role!r}")


def check_issuers(subject: Subject) -> Iterator[Diagnosis]:
    """Look for callers who can never be recognised among those who approve."""
    callers = subject.server.callers_vouched_elsewhere
    if callers is None:
        return
    for sourced in subject.handlers:
        if any(roles_of(sourced)):
            yield diagnosis("approvers-of-another-issuer", f"{sourced.where}: callers of {callers}")


def check_forms(subject: Subject) -> Iterator[Diagnosis]:
    """Look for forms that cannot be asked, or that some hosts do not show."""
    for sourced in subject.handlers:
        for form in forms_of(sourced):
            try:
                properties = _properties(form)
            except UnsupportedForm as error:
                yield diagnosis("form-refused", sourced.where, str(error))
                continue
            several = [name for name, field in properties.items() if field.get("type") == "array"]
            if several and "legacy" in subject.server.eras:
                yield diagnosis("form-not-shown", f"{sourced.where}: {', '.join(several)}")
            if len(properties) > _MOST_FIELDS:
                yield diagnosis("form-too-long", sourced.where)


def _properties(form: Any) -> Mapping[str, Any]:
    return msgspec.json.decode(of(form).schema_json)["properties"]
