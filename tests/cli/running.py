"""Runs the command line: in a process of its own, as a user does, or quickly in this one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from antiphon.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
ANTIPHON = [sys.executable, "-m", "antiphon.cli.app"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
    return {**plain, **more}


def antiphon(*words: str) -> Ran:
    """Run one command in this process, without a terminal."""
    done = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}).invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)


def spawned(*words: str, **env: str) -> Ran:
    """Run one command as a process of its own, without a terminal."""
    done = subprocess.run(
        [*ANTIPHON, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        env=environment(**env),
    )
    return Ran(done.returncode, done.stdout, done.stderr)
