"""Writes docs/reference.md: every public name, from what the code says of itself.

python -m tests.docs.reference > docs/reference.md
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import antiphon

HEAD = """\
# Every public name

Everything here is imported from `antiphon`; no other name of it is a promise, except
`antiphon.testing` ([testing](testing.md)), `antiphon.telemetry`, the ports of
`antiphon.ports` ([stores](stores.md)), and `AntiphonTools` of `antiphon.integrations`
([inside other servers](inside-other-servers.md)). This page is written from the code by
`python -m tests.docs.reference`.
"""

CHAPTERS = {
    "Servers and handlers": ("server", "engine", "handlers", "forms", "seal",
                             "stores", "auth", "console", "audit", "protocol.limits",
                             "protocol.request", "ports.call_end"),
    "Asks and how they end": ("protocol.asks", "protocol.inbox"),
    "Content": ("protocol.content",),
    "Clients and answers": ("client",),
    "Errors of servers": ("errors",),
    "Errors of clients": ("client.errors",),
}  # fmt: skip
"""By module; the longest name that fits decides."""


SPOKEN_TO = {"Server", "Context", "Flow", "Client", "Step", "Outcome", "Completion", "CallAnswers"}
"""What people call methods of; those of the others are for the framework, or said elsewhere."""


def public_names() -> list[str]:
    """Return what `antiphon/__init__.py` imports under its own name: there everything is named."""
    tree = ast.parse(Path(inspect.getfile(antiphon)).read_text("utf-8"))
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = (alias for node in imported for alias in node.names)
    return sorted(alias.name for alias in aliases if alias.asname == alias.name)


def chapter_of(name: str) -> str:
    home = getattr(antiphon, name).__module__
    fits = [
        (len(place), chapter)
        for chapter, places in CHAPTERS.items()
        for place in places
        if f"{home}.".startswith(f"antiphon.{place}.")
    ]
    return max(fits)[1]


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|")


def methods_of(cls: type) -> Iterator[str]:
    ours = [one for one in cls.__mro__ if one.__module__.startswith("antiphon")]
    found = {name: value for one in reversed(ours) for name, value in vars(one).items()}
    for name, value in sorted(found.items()):
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
            yield f"| `{cls.__name__}.{name}` | {first_line(getattr(cls, name))} |"


def page() -> str:
    lines = [HEAD]
    chapters = {name: chapter_of(name) for name in public_names()}
    for chapter in CHAPTERS:
        lines += [f"## {chapter}", "", "| name | what it is |", "|---|---|"]
        for name in (name for name, home in chapters.items() if home == chapter):
            thing = getattr(antiphon, name)
            lines.append(f"| `{name}` | {first_line(thing)} |")
            if name in SPOKEN_TO:
                lines += methods_of(thing)
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
