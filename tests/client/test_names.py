"""The public names of the client: all of them can be had, from both modules, and late."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
import antiphon.client as client


@pytest.mark.parametrize("name", dir(client))
def test_every_name_of_the_client_can_be_had_from_both_modules(name: str):
    assert getattr(antiphon, name) is getattr(client, name)
    assert name in dir(antiphon)


@pytest.mark.parametrize("module", [antiphon, client])
def test_what_type_checkers_see_is_what_can_be_had(module: object):
    source = Path(str(module.__file__)).read_text()  # pyright: ignore[reportAttributeAccessIssue]
    late = [
        alias.asname
        for node in ast.parse(source).body
        if isinstance(node, ast.If)
        for each in node.body
        if isinstance(each, ast.ImportFrom) and str(each.module).startswith("antiphon.client")
        for alias in each.names
    ]
    assert sorted(filter(None, late)) == dir(client)


def test_an_unknown_name_is_an_attribute_error():
    for module in (antiphon, client):
        with pytest.raises(AttributeError, match="Nonesuch"):
            module.Nonesuch  # pyright: ignore[reportAttributeAccessIssue] # noqa: B018


def test_plain_values_and_errors_need_no_sdk():
    program = (
        "import sys, antiphon\n"
        "antiphon.Accept, antiphon.Scripted, antiphon.StateRefused, antiphon.Timeouts\n"
        "print('mcp' in sys.modules)\n"
        "antiphon.Client\n"
        "print('mcp' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert ran.stdout.split() == ["False", "True"], ran.stderr
