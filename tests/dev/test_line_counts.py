"""Lines are counted by whatever this Python offers, and by the other way where it has both."""

import asyncio
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys, threading
sys.path.insert(0, {source!r})
from antiphon.dev.line_counts import AuthorFiles, counting, start_counting
from pathlib import Path

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


async def test_lines_of_the_author_count_for_the_run_they_belong_to(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    source = str(Path(__file__).parents[2] / "src")
    program = PROGRAM.format(source=source, folder=str(tmp_path))
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert ran.returncode == 0, ran.stderr
    # The threads and branches of a handler count for it; Python's own files and other runs do not.
    assert ran.stdout.strip() == "[(6, 4), (7, 3), (11, 1), (15, 1), (16, 1)]"
