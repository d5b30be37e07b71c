"""The page on testing in an environment that has pytest and Antiphon, and nothing else."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs_src" / "testing.py"
NAME = re.compile(r"[A-Za-z0-9._-]+")


def needed(*names: str) -> dict[str, Distribution]:
    """The packages that these need, without their extras."""
    found: dict[str, Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or version
        lines = [line for line in found[name].requires or () if "extra ==" not in line]
        wanted += [match[0].lower() for line in lines if (match := NAME.match(line))]
    return found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with a built Antiphon and pytest."""
    folder = tmp_path_factory.mktemp("fresh")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True, timeout=60)
    venv.create(folder / "env", with_pip=False)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    for name, dist in needed("antiphon", "pytest").items():
        if name != "antiphon":
            for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
                if not (packages / top).exists():
                    (packages / top).symlink_to(Path(str(dist.locate_file(top))))
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    return folder / "env" / "bin" / "python"


@pytest.mark.timeout(180)
def test_the_page_runs_word_for_word_with_nothing_but_pytest(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(EXAMPLE.read_text())
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(fresh), "-m", "pytest", "-q"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 passed" in done.stdout
    listed = subprocess.run(
        [str(fresh), "-c", "import pytest_asyncio"], capture_output=True, text=True
    )
    assert "ModuleNotFoundError" in listed.stderr
