"""Writes docs/api.md: the signature and the docstring of every public name.

python -m tests.docs.api > docs/api.md
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.docs.reference import SPOKEN_TO

HEAD = """\
# Signatures

Every public name with its parameters and what the code says of it, module by module.
[Every public name](reference.md) is the same in one line each. This page is
written from the code by `python -m tests.docs.api`.

"""

MODULES = {
    "antiphon": "Servers, handlers, clients and errors.",
    "antiphon.testing": "Helpers for tests; see [testing](testing.md).",
    "antiphon.console": "Web pages where people answer; see [approvals by "
    "others](approvals-by-others.md).",
    "antiphon.telemetry": "Traces and counters; see [traces and metrics](observing.md).",
    "antiphon.ports": "What a store of your own provides; see [stores](stores.md).",
}

SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes):$")


def names_of(module: ModuleType) -> list[str]:
    """Return what a module offers: what it imports under its own name, or defines."""
    tree = ast.parse(Path(inspect.getfile(module)).read_text("utf-8"))
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = (alias for node in imported for alias in node.names)
    found = {alias.name for alias in aliases if alias.asname == alias.name}
    found |= {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return sorted(name for name in found if not name.startswith("_"))


def definition(thing: object) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the source of a class or function as a tree."""
    try:
        source = textwrap.dedent(inspect.getsource(thing))  # pyright: ignore[reportArgumentType]
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0]
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node
    return None


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> str:
    """Write the parameters of a function, one in a line if they are many."""
    arguments = node.args
    if bound and arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    text = ast.unparse(arguments)
    if len(text) < 72:
        return f"({text})"
    return "(\n" + "".join(f"    {one},\n" for one in split(text)) + ")"


def split(text: str) -> list[str]:
    """Split parameters at the commas that stand outside of brackets and texts."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def signature(name: str, thing: object) -> str:
    """Write the line by which something is made or called."""
    node = definition(thing)
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        made = next(
            (
                one
                for one in node.body
                if isinstance(one, ast.FunctionDef) and one.name == "__init__"
            ),
            None,
        )
        if made is not None:
            return f"class {name}{parameters(made, bound=True)}"
        return f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    if node is None:
        return name
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    gives = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{word} {name}{parameters(node, bound='.' in name)}{gives}"


def prose(thing: object) -> Iterator[str]:
    """Write a docstring; its sections become lists."""
    section = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if SECTION.match(line):
            section = True
            yield f"*{line}*"
            yield ""
        elif section and line.startswith("    ") and not line.startswith("     "):
            name, colon, text = line.strip().partition(": ")
            yield f"- `{name}`{colon}{text}" if colon else f"- {name}"
        elif section and line.startswith("     "):
            yield f"  {line.strip()}"
        else:
            section = section and not line.strip()
            yield line


def fields(thing: object) -> Iterator[str]:
    """List the fields of a data class that has no constructor of its own."""
    node = definition(thing)
    if not isinstance(node, ast.ClassDef) or any(
        isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body
    ):
        return
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if field.target.id.startswith("_"):
            continue
        default = f" = {ast.unparse(field.value)}" if field.value is not None else ""
        said = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            said = " ".join(str(after.value.value).split())
        yield f"- `{field.target.id}: {ast.unparse(field.annotation)}{default}` {said}".rstrip()


def settings(thing: object) -> Iterator[str]:
    """List what the constructor of a class takes by name beyond its parameters."""
    node = definition(thing)
    made = node.body if isinstance(node, ast.ClassDef) else []
    for one in made:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__" and one.args.kwarg:
            typed = ast.unparse(one.args.kwarg.annotation or ast.Constant(""))
            name = typed.removeprefix("Unpack[").removesuffix("]")
            if name != typed:
                yield from fields(getattr(inspect.getmodule(thing), name))


def entry(module: ModuleType, name: str) -> Iterator[str]:
    thing = getattr(module, name)
    yield f"### {name}"
    yield ""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        yield f"`{type(thing).__name__}`"
        yield ""
        return
    yield "```python"
    yield signature(name, thing)
    yield "```"
    yield ""
    yield from prose(thing)
    yield ""
    listed = [*fields(thing), *settings(thing)]
    if listed:
        yield from listed
        yield ""
    if inspect.isclass(thing) and name in SPOKEN_TO | {"Rounds", "BlockingClient"}:
        yield from methods(thing)


def methods(cls: type) -> Iterator[str]:
    ours = [one for one in cls.__mro__ if one.__module__.startswith("antiphon")]
    found = {name: value for one in reversed(ours) for name, value in vars(one).items()}
    for name, value in sorted(found.items()):
        if name.startswith("_") or not (inspect.isroutine(value) or isinstance(value, property)):
            continue
        yield f"#### {cls.__name__}.{name}"
        yield ""
        if not isinstance(value, property):
            plain = inspect.unwrap(getattr(cls, name))
            yield "```python"
            yield signature(f"{cls.__name__}.{name}", plain)
            yield "```"
            yield ""
        yield from prose(value.fget if isinstance(value, property) else getattr(cls, name))
        yield ""


@cache
def page() -> str:
    lines = [HEAD]
    for path, about in MODULES.items():
        module = importlib.import_module(path)
        lines += [f"## {path}", "", about, ""]
        for name in names_of(module):
            lines += entry(module, name)
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
