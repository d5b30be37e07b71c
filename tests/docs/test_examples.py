"""Every story under examples checks itself; here they are all run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CHECKS = ["provision", *sorted(f"{path.parent.name}.check" for path in EXAMPLES.glob("*/check.py"))]


def test_the_page_lists_every_example():
    listed = re.findall(r"^\| \[(\w+)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(name.removesuffix(".check") for name in CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_an_example_runs_to_its_good_end(check: str):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{check}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
