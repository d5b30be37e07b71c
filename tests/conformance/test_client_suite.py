"""The client passes every required scenario of the official suite, at both revisions."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEYOND = (
    "^(json-schema-2020-12-preservation"
    "|auth/(client-credentials-(basic|jwt)|enterprise-managed-authorization))$"
)
"""Unscored scenarios that the client passes and must go on passing."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("revision", "required"), [("2026-07-28", 32), ("2025-11-25", 18)])
def test_the_client_passes_the_official_suite(tmp_path: Path, revision: str, required: int) -> None:
    words = ["client", "--revision", revision, "--must", BEYOND, "--limit", "120"]
    done = subprocess.run(
        [sys.executable, "-m", "conformance.run", *words, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, failed, _ = (int(part.split()[0]) for part in done.stdout.splitlines()[-1].split(","))
    assert failed == 0, done.stdout
    assert passed >= required + 3, done.stdout
