"""Reads the source tree for the architecture tests: its modules and what each one imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = "antiphon"
GROUPED = {
    *(f"apps.{name}" for name in ("console", "dev", "doctor", "gateway", "lint")),
    *(f"integrations.{name}" for name in ("audit", "oauth", "telemetry")),
}
"""Packages in a package that have rules of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, and whether it is loaded with its importer, in a function, or never."""

    target: str
    line: int
    in_function: bool
    typing_only: bool

    @property
    def runs_on_import(self) -> bool:
        return not self.in_function and not self.typing_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        return package_of(self.name)

    @property
    def within(self) -> str:
        """The path below the package, as the tables of the tests write it."""
        return self.path.relative_to(SOURCE / PACKAGE).as_posix()


def package_of(name: str) -> str:
    """`antiphon.protocol.journal` is in `protocol`, `antiphon.apps.dev.run` in `apps.dev`."""
    parts = name.split(".")
    if ".".join(parts[1:3]) in GROUPED:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else PACKAGE


def read_modules() -> dict[str, Module]:
    paths = {module_name(path): path for path in sorted((SOURCE / PACKAGE).rglob("*.py"))}
    return {
        name: Module(name=name, path=path, imports=tuple(read_imports(path, set(paths))))
        for name, path in paths.items()
    }


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(path: Path, known: set[str]) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    yield from _walk(tree, known, in_function=False, typing_only=False)


def _walk(
    node: ast.AST, known: set[str], *, in_function: bool, typing_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for target in _targets(child, known):
                yield Import(
                    target=target,
                    line=child.lineno,
                    in_function=in_function,
                    typing_only=typing_only,
                )
        elif isinstance(child, ast.If) and _asks_for_type_checking(child.test):
            yield from _walk(child, known, in_function=in_function, typing_only=True)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(
                child, known, in_function=in_function or function, typing_only=typing_only
            )


def _asks_for_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _targets(node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """`from antiphon.forms import form` imports `antiphon.forms.form`, not the package."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in known else base
