"""What `antiphon` exports: everything that users need, and the client at no cost for servers."""

import subprocess
import sys

import antiphon
from tests.docs.reference import public_names


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_is_exported() -> None:
    assert antiphon.__all__ == public_names()
    assert {"Client", "Server", "Context", "Depends", "ToolError"} <= set(antiphon.__all__)


def test_a_star_import_brings_every_name_and_nothing_else() -> None:
    names = run("before = set(dir())\nfrom antiphon import *\nprint(sorted(set(dir()) - before))")
    assert names == str(sorted([*antiphon.__all__, "before"]))


def test_a_server_does_not_load_the_client_nor_what_runs_servers() -> None:
    loaded = run(
        "import sys, antiphon; antiphon.Server('shop'); "
        "print([name for name in ('mcp', 'antiphon.client', 'antiphon.transports.processes', "
        "'uvloop', 'jsonschema') if name in sys.modules])"
    )
    assert loaded == "[]"
    assert run("import sys, antiphon; antiphon.Client; print('mcp' in sys.modules)") == "True"
