"""CONTRIBUTING.md names what can be made, and the hook holds what it says of commits."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()


def test_every_target_of_the_makefile_is_explained() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    told = re.findall(r"^\| `make ([a-z-]+)` \|", PAGE, re.M)
    assert sorted(told) == sorted({*targets} - {"help", "clean"})


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("Add a table", False),
        ("A" * 72, False),
        (
            "Add a table\n\nIts rows are described in a sentence that is longer than that.",
            False,
        ),
        (
            "Merge branch 'a-name-so-long-that-the-subject-does-not-fit-into-the-bound'",
            False,
        ),
        ("A" * 73, True),
        ("add a table", True),
        ("Add a table.", True),
    ],
)
def test_the_hook_refuses_a_subject_that_does_not_fit(message: str, refused: bool) -> None:
    assert "at most 72 characters" in PAGE
    (pattern,) = re.findall(r"- id: subject\n.*\n +entry: '(.*)'\n +language: pygrep", HOOKS)
    found = re.search(pattern, message + "\n", re.MULTILINE | re.DOTALL)
    assert (found is not None) == refused
