"""Four processes behind nginx, killed at every step: nothing happens twice and nothing is lost.

The short form; `make chaos` hits every failpoint twenty times with 200 calls at a time.
"""

from pathlib import Path

import pytest

from tests import servers
from tests.chaos.chaos_run import Night

SHORT = Night(clients=60, kills=2, chance=0.02, lease=3.0)


def play(name: str, store: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        SHORT.run(name, store, folder)


def test_nothing_happens_twice_on_sqlite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play("sqlite", f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path, capsys)


def test_nothing_happens_twice_on_postgresql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with servers.postgres() as dsn:
        play("postgresql", dsn, tmp_path, capsys)
