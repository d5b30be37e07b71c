"""Tools that real hosts drop, rename or refuse: names, descriptions and schemas.

The rules are those of the interfaces by which hosts give tools to models (Anthropic, OpenAI), as
their documentation has them; the protocol itself allows more.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from antiphon.doctor.findings import Diagnosis, diagnosis
from antiphon.doctor.subject import Subject

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ARGUMENT = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_MOST_TOOLS = 128
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
