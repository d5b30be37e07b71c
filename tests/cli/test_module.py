"""`python -m antiphon` is the command line, for where its script is not on the path."""

import importlib
import subprocess
import sys

from antiphon import __version__
from tests.cli.running import environment


def test_the_package_runs_the_command_line() -> None:
    command = [sys.executable, "-m", "antiphon"]
    shown = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, timeout=50, env=environment()
    )
    assert (shown.returncode, shown.stdout) == (0, f"antiphon {__version__}\n")
    refused = subprocess.run(
        [*command, "nothing"], capture_output=True, text=True, timeout=50, env=environment()
    )
    assert refused.returncode == 2


def test_nothing_runs_when_the_module_is_imported() -> None:
    assert importlib.import_module("antiphon.__main__").main is not None
