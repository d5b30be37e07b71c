"""Every story under examples checks itself; here they are all run."""

import subprocess
import sys
from pathlib import Path

import pytest

STORIES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_stories():
    assert STORIES


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_a_story_runs_to_its_good_end(story: Path):
    done = subprocess.run(
        [sys.executable, str(story)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
