"""The official suite of both revisions against one process, at the same time."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.child_processes import http_server

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {"2025-11-25": 30, "2026-07-28": 37}
POLLING = "^server-sse-polling$"
"""Pending in the suite, and passed here."""


async def run_suite(url: str, revision: str, output: Path) -> tuple[int | None, str]:
    must = ["--must", POLLING] if revision == "2025-11-25" else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "conformance.run", "server", "--url", url, "--revision", revision,
        "--output", str(output), *must,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_one_process_passes_both_suites_at_once(tmp_path: Path) -> None:
    async with http_server("conformance.server:server") as url:
        found = await asyncio.gather(
            *(run_suite(url, revision, tmp_path / revision) for revision in REQUIRED)
        )
    for (revision, required), (status, said) in zip(REQUIRED.items(), found, strict=True):
        polling = revision == "2025-11-25"
        assert said.splitlines()[-1] == f"{required + polling} passed, 0 failed, 0 skipped", said
        assert status == 0
