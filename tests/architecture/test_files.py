"""The project stands alone: no file names a place on one machine or a registry's host."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

MADE = {
    ".git", ".venv", ".peers", "node_modules", "__pycache__", "build", "dist", ".hypothesis",
    ".pytest_cache", ".ruff_cache",
}  # fmt: skip

FOREIGN = {
    "a home directory": re.compile(r"(?<![\w.~-])/(?:home|Users)/\w|(?<![\w.~/-])/roo[t](?:/|\b)"),
    "a registry's host": re.compile(
        r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|deb\.debian\.org"
    ),
    "an index chosen for everybody": re.compile(
        r"--(?:extra-)?index[-]url|--find[-]links|--registr[y]"
    ),
}


def project_files() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name for name in folders if name not in MADE and not name.startswith(".venv-")
        ]
        yield from (Path(folder, name) for name in files if not name.endswith((".pyc", ".db")))


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in project_files()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(what: str) -> None:
    assert lines_with(FOREIGN[what]) == []


def test_no_file_names_the_folder_this_checkout_is_in() -> None:
    assert lines_with(re.compile(rf"(?<![\w.-]){re.escape(str(ROOT))}\b")) == []


def test_the_search_sees_the_project() -> None:
    seen = {path.relative_to(ROOT).as_posix() for path in project_files()}
    assert {"README.md", "pyproject.toml", ".ci/run", "requirements/dev.lock"} <= seen
    assert len(lines_with(re.compile("antiphon"))) > 100


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a home directory", "DIR = '/ho" + "me/alice/data'"),
        ("a home directory", "see /ro" + "ot/.cache"),
        ("a registry's host", "https://py" + "pi.org/simple"),
        ("an index chosen for everybody", "pip install --index" + "-url x"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, line: str) -> None:
    assert FOREIGN[what].search(line)
