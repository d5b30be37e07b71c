"""Lines are counted by whatever a Python offers: `sys.settrace` in 3.11, else `sys.monitoring`."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.apps.dev.line_counts import AuthorFiles

PROGRAM = """
import asyncio, importlib.util, sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("line_counts", {source!r})
line_counts = importlib.util.module_from_spec(spec)
sys.modules["line_counts"] = line_counts
spec.loader.exec_module(line_counts)
AuthorFiles, counting, start_counting = (
    line_counts.AuthorFiles, line_counts.counting, line_counts.start_counting
)

loaded = []
start_counting(AuthorFiles(Path({folder!r}), lambda file, text: loaded.append((file, text))))
sys.path.insert(0, {folder!r})
import handler

before = handler.run(2)
lines = {{}}
token = counting.set(lines)
asyncio.run(handler.wait(3))
counting.reset(token)
handler.run(1)
assert [Path(name).name for name, _ in loaded] == ["handler.py"], loaded
assert "def run" in loaded[0][1]
(counts,) = lines.values()
print(sorted(counts.items()))
"""
HANDLER = """import asyncio
import json


def run(times):
    for _ in range(times):
        json.dumps([])


async def wait(times):
    await asyncio.gather(asyncio.to_thread(run, times), branch())


async def branch():
    await asyncio.sleep(0)
    json.dumps([])
"""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfx = 1\r\ny = 2\r\n", "x = 1\ny = 2\n"),
        (b"# coding: latin-1\nx = '\xe4'\n", "# coding: latin-1\nx = 'ä'\n"),
        (b"# \xe4\nx = 1\n", "# \ufffd\nx = 1\n"),
        (b"# coding: klingon\n", "# coding: klingon\n"),
    ],
)
def test_a_file_is_shown_as_python_reads_it(tmp_path: Path, data: bytes, text: str) -> None:
    file = tmp_path / "handler.py"
    file.write_bytes(data)
    loaded: list[tuple[str, str]] = []
    assert str(file) in AuthorFiles(tmp_path, lambda name, read: loaded.append((name, read)))
    assert loaded == [(str(file), text)]


def pythons() -> list[str]:
    """Return this Python and the newer ones of the machine, also those that pyenv keeps."""
    named = (shutil.which(f"python3.{minor}") for minor in (12, 13, 14))
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [*filter(None, named), *map(str, sorted(kept.glob("3.1[2-4]*/bin/python")))]
    return [sys.executable, *(python for python in found if _runs(python))]


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=20).returncode == 0


@pytest.mark.parametrize("python", pythons())
async def test_lines_of_the_author_count_for_the_run_they_belong_to(
    tmp_path: Path, python: str
) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    source = str(Path(__file__).parents[2] / "src" / "antiphon" / "apps" / "dev" / "line_counts.py")
    program = PROGRAM.format(source=source, folder=str(tmp_path))
    ran = await asyncio.to_thread(
        subprocess.run, [python, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert ran.returncode == 0, ran.stderr
    # The threads and branches of a handler count for it; Python's own files and other runs do not.
    assert ran.stdout.strip() == "[(6, 4), (7, 3), (11, 1), (15, 1), (16, 1)]"
