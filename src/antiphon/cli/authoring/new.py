"""`antiphon new`: a small project that asks, with its test and its README."""

import keyword
import re
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.output import USAGE, fail, say
from antiphon.cli.written_files import NotWritten, make_new_folder, write_new

NAME = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the project and its folder: letters, digits, -.")
]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")

SERVER = '''"""An MCP server with one tool, which asks before it acts."""

from typing import Any

from pydantic import BaseModel

from antiphon import Context, Server


class Parcel(BaseModel):
    street: str
    express: bool = False


async def book(order: str, street: str, express: bool) -> str:
    """Book the parcel: your shipping company does it here."""
    return f"{{order}}-{{'fast' if express else 'slow'}}"


def make_server(**world: Any) -> Server:
    """Make the server; tests give it a store and keys of their own."""
    server = Server("{name}", **world)

    @server.tool
    async def ship(ctx: Context, order: str) -> str:
        """Ship an order, after approval."""
        parcel = await ctx.elicit(f"Where does order {{order}} go?", Parcel)
        if not await ctx.approve(f"Ship order {{order}} to {{parcel.street}}?"):
            return "Nothing was shipped."
        label = await ctx.once("book", book, order, parcel.street, parcel.express)
        return f"Shipped with label {{label}}."

    return server


server = make_server()
'''

TEST = '''"""Tests of the server: each drives a call through all its rounds."""

from antiphon import Decline

from {module} import make_server

PARCEL = {{"street": "Main Street 1", "express": True}}


async def test_an_order_is_shipped_after_approval(antiphon_rounds) -> None:
    world = antiphon_rounds(make_server)
    done = await world.call(
        "ship", {{"order": "A1"}}, answers={{"parcel": PARCEL, "approve": True}}
    )
    assert done.text == "Shipped with label A1-fast."


async def test_nothing_is_shipped_without_a_yes(antiphon_rounds) -> None:
    world = antiphon_rounds(make_server)
    done = await world.call(
        "ship", {{"order": "A1"}}, answers={{"parcel": PARCEL, "approve": Decline()}}
    )
    assert done.text == "Nothing was shipped."
'''

README = """# {name}

An MCP server. Its tool `ship` asks two things before it acts.

- `antiphon dev {module}.py` shows every round in the browser (`pip install "antiphon[dev]"`)
- `pytest` runs the tests (`pip install pytest`)
- `antiphon install {module}.py --client claude-code` prints how a client starts it
- `antiphon serve {module}.py` serves it over HTTP

`{module}.py` is the server, `test_{module}.py` its test.
"""


def _is_taken(module: str) -> bool:
    """Whether Python or an installed package has a module of this name, which a file would hide."""
    if module in sys.stdlib_module_names or module == "antiphon":
        return True
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    found = PathFinder.find_spec(module, folders)
    return found is not None and found.origin is not None


def new(name: NAME) -> None:
    """Write a small project into a new folder: a server that asks, its test, a README.

    Exit codes: 0 written, 1 the folder cannot be written, 2 a wrong name, or the folder exists.

    Examples:

    \b
      antiphon new shop
      cd shop && antiphon dev shop.py
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        fail(
            f"{name!r} cannot be the name of a project: begin with a letter, and use a to z, 0 to "
            "9, - and _",
            USAGE,
        )
    for file in (module, f"test_{module}"):
        if _is_taken(file):
            fail(f"{file}.py would hide the module {file}: choose another name", USAGE)
    folder = Path(name)
    texts = {f"{module}.py": SERVER, f"test_{module}.py": TEST, "README.md": README}
    try:
        make_new_folder(folder)
        for file, text in texts.items():
            # The user's own sources: readable as a compiler or a container expects.
            write_new(folder / file, text.format(name=name, module=module), mode=0o644)
    except (FileExistsError, NotWritten):
        fail(f"there is already something called {folder}: choose another name", USAGE)
    except OSError as error:
        fail(f"{folder} cannot be written: {error.strerror}")
    for file in texts:
        print(folder / file)
    say(f"next: cd {folder} && antiphon dev {module}.py")
