"""The pytest plugin in a project of its own that has configured nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs_src" / "testing.py"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize(
    "options",
    [("--asyncio-mode=strict",), ("--asyncio-mode=auto",), ("-p", "no:asyncio", "--anyio")],
    ids=["strict pytest-asyncio", "automatic pytest-asyncio", "anyio"],
)
def test_the_example_of_the_page_runs_without_configuration(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    marked = "--anyio" in options
    mark = "import pytest\n\npytestmark = pytest.mark.anyio\n" if marked else ""
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    (tmp_path / "test_shop.py").write_text(EXAMPLE.read_text() + mark)
    done = run(tmp_path, *(option for option in options if option != "--anyio"))
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout


def test_a_coroutine_test_that_fails_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(
        "async def test_wrong(antiphon_clock):\n    assert antiphon_clock() < 0\n"
    )
    done = run(tmp_path, "-p", "no:asyncio", "-p", "no:anyio")
    assert (done.returncode, "1 failed" in done.stdout) == (1, True)


def test_fixtures_of_common_names_are_left_to_the_project(tmp_path: Path) -> None:
    (tmp_path / "test_names.py").write_text(
        "import pytest\n\n\n"
        "@pytest.mark.parametrize('name', ['rounds', 'tally', 'fake_clock'])\n"
        "def test_name(request, name):\n"
        "    with pytest.raises(pytest.FixtureLookupError):\n"
        "        request.getfixturevalue(name)\n"
    )
    assert run(tmp_path).returncode == 0
