"""Questions that cannot be answered: by anybody, by some clients, or in too many rounds."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from antiphon.core.limits import Limits
from antiphon.doctor.findings import Diagnosis, diagnosis
from antiphon.doctor.sources import (
    acts_before_asking,
    asked_kinds,
    forms_of,
    roles_of,
    rounds_of,
)
from antiphon.doctor.subject import Subject
from antiphon.errors import AntiphonError
from antiphon.forms.form import of

_MOST_ROUNDS = 10
_MOST_FIELDS = 12


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
    if subject.server.limits.rounds > Limits().rounds:
        yield diagnosis("rounds-above-clients", f"Limits(rounds={subject.server.limits.rounds})")
    for flow in subject.server.flows:
        if len(flow.steps) > _MOST_ROUNDS:
            yield diagnosis("rounds-above-clients", f"tool {flow.name}")


def check_roles(subject: Subject) -> Iterator[Diagnosis]:
    """Look for decisions that nobody can make."""
    console = subject.server.console
    for sourced in subject.handlers:
        for role in dict.fromkeys(roles_of(sourced)):
            if console is None:
                yield diagnosis("by-without-console", f"{sourced.where}: by={role!r}")
            elif console.roles is not None and role not in console.roles:
                yield diagnosis("role-nobody-holds", f"{sourced.where}: by={role!r}")


def check_forms(subject: Subject) -> Iterator[Diagnosis]:
    """Look for forms that some hosts do not show."""
    for sourced in subject.handlers:
        for form in forms_of(sourced):
            properties = _properties(form)
            several = [name for name, field in properties.items() if field.get("type") == "array"]
            if several and "legacy" in subject.server.eras:
                yield diagnosis("form-not-shown", f"{sourced.where}: {', '.join(several)}")
            if len(properties) > _MOST_FIELDS:
                yield diagnosis("form-too-long", sourced.where)


def _properties(form: Any) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(of(form).schema_json)["properties"]
    except (AntiphonError, KeyError, TypeError):
        return {}  # refused with its own words when it is used
