"""Writes docs/options.md from the typed options of the decorators.

`python -m tests.docs.options > docs/options.md`
"""

import ast
import inspect
from dataclasses import fields

from antiphon.engine.handler import Options
from antiphon.handlers import options

INTRODUCTION = """\
# Options of the decorators

What may stand in the parentheses of `@server.tool(...)`, `@server.prompt(...)`,
`@server.resource(uri, ...)` and `server.flow(name, ...)`. A wrong name or value is refused at
registration; editors and type checkers know them too. Times are seconds or a `timedelta`.
"""

SECTIONS = (
    ("All four", "_Common"),
    ("Tools and flows", "FlowOptions"),
    ("Tools", "ToolOptions"),
    ("Prompts", "PromptOptions"),
    ("Resources", "ResourceOptions"),
)

TEMPLATES = """\

## URIs of resources

A URI with variables is a template; the parameters of the function are its variables. `{name}`
matches within one segment of the path, `{+name}` matches any rest, and only one of these may occur.
Between two variables there must be some text. Values are percent-decoded. What would lead out of
a directory that the value is joined to does not match: `..`, a name of dots and blanks alone, an
encoded slash in `{name}`, an absolute path, a drive letter. To serve absolute paths, write the
slash into the template: `file:///{+path}`.
"""


def explained() -> dict[str, dict[str, tuple[str, str]]]:
    """Return type and text of each option, by class; each class's own options only."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for node in ast.parse(inspect.getsource(options)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = dict(_members(node))
    return found


def _members(node: ast.ClassDef) -> list[tuple[str, tuple[str, str]]]:
    members: list[tuple[str, tuple[str, str]]] = []
    for line, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr):
                text = " ".join(ast.literal_eval(following.value).split())
            kind = ast.unparse(line.annotation).replace(" | None", "").replace("'", '"')
            members.append((line.target.id, (kind.replace("|", "\\|"), text)))
    return members


def defaults() -> dict[str, str]:
    """Return the defaults that are not just "not set"."""
    return {
        field.name: f"`{field.default!r}`".replace("'", '"')
        for field in fields(Options)
        if field.default not in (None, "", ())
    }


def page() -> str:
    """Return the whole page."""
    classes, preset = explained(), defaults()
    parts = [INTRODUCTION]
    for title, name in SECTIONS:
        parts.append(f"\n## {title}\n\n| option | type | default | |\n|---|---|---|---|\n")
        parts += [
            f"| `{option}` | `{kind}` | {preset.get(option, '')} | {text} |\n"
            for option, (kind, text) in classes[name].items()
        ]
    return "".join(parts) + TEMPLATES


if __name__ == "__main__":
    print(page(), end="")
