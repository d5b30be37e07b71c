"""Print the sizes of the source and the path of a round. Nothing is held to these numbers."""

import ast
import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from antiphon import Client, Context, Scripted, Server

TREE = Path(__file__).resolve().parents[1] / "src" / "antiphon"
FORM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}
SHOWN = 10


def main() -> None:
    """Print every table."""
    texts = {path: path.read_text("utf-8") for path in sorted(TREE.rglob("*.py"))}
    lines = {within(path): len(text.splitlines()) for path, text in texts.items()}
    packages: Counter[str] = Counter()
    for name, size in lines.items():
        packages[name.partition("/")[0]] += size
    print(f"{len(lines)} modules, {sum(lines.values()):,} lines")
    show("lines by package", packages, most=len(packages))
    show("longest modules", Counter(lines))
    classes, functions, parameters = Counter[str](), Counter[str](), Counter[str]()
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes[f"{within(path)}:{node.name}"] = length(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{within(path)}:{node.name}"
                functions[name] = length(node)
                arguments = node.args
                parameters[name] = len(arguments.args) + len(arguments.kwonlyargs)
    show("longest classes", classes)
    show("longest functions", functions)
    show("functions with the most parameters", parameters)
    for name, entered in asyncio.run(traced_calls()).items():
        files = {file for file, _ in entered}
        print(f"\n{name}: {entered.total()} calls of functions in {len(files)} files")


def within(path: Path) -> str:
    """Name a module below the package."""
    return path.relative_to(TREE).as_posix()


def length(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a definition."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def show(title: str, sizes: Counter[str], most: int = SHOWN) -> None:
    """Print the largest entries."""
    print(f"\n{title}")
    for name, size in sizes.most_common(most):
        print(f"{size:7,}  {name}")


class Trace:
    """Counts the functions of the package that are entered."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.entered: Counter[tuple[str, str]] = Counter()
        self._frames: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call once: a generator that is resumed keeps its frame."""
        code = frame.f_code
        if event != "call" or id(frame) in self._frames:
            return
        if code.co_filename.startswith(str(TREE)):
            self._frames[id(frame)] = frame  # kept alive: no later frame gets the same id
            self.entered[code.co_filename, code.co_qualname] += 1


async def traced_calls() -> dict[str, Counter[tuple[str, str]]]:
    """Trace calls in process, with everything warm."""
    server = Server("traced")

    @server.tool
    async def plain(name: str) -> str:
        """Ask nothing."""
        return name

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Ask once, act once."""
        where = await ctx.elicit("Where?", FORM, key="where")
        return await ctx.once("rent", str, f"{name} in {where['region']}")

    found: dict[str, Counter[tuple[str, str]]] = {}
    async with Client(server, answers=Scripted(where={"region": "eu"})) as client:
        for name in ("plain", "provision"):
            for _ in range(3):
                await client.call_tool(name, {"name": "orders"})
            trace = Trace()
            sys.setprofile(trace)
            try:
                await client.call_tool(name, {"name": "orders"})
            finally:
                sys.setprofile(None)
            found[f"a whole call of {name}, client included"] = trace.entered
    return found


if __name__ == "__main__":
    main()
