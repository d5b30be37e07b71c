"""Tries the package with the lowest versions that it says it works with.

Reads the lower bounds of pyproject.toml, installs exactly those in a fresh environment, and runs
the tests that need no other implementation and no database.
"""

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXTRAS = ("console", "metrics")
TEST_TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "jsonschema", "httpx")
TESTS = (
    *(
        f"tests/{name}"
        for name in ("core", "wire", "forms", "seal", "engine", "linear", "handlers")
    ),
    "tests/telemetry",
    # These need a database or the type checker.
    "--ignore=tests/engine/test_outage.py",
    "--ignore=tests/linear/test_restarts.py",
    "--ignore=tests/handlers/test_typed_options.py",
)


def lowest(text: str) -> str:
    """Return a requirement that only its lower bound fulfils."""
    requirement = Requirement(text)
    bounds = [one.version for one in requirement.specifier if one.operator == ">="]
    if len(bounds) != 1:
        raise SystemExit(f"{text} has no lower bound")
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}=={bounds[0]}{marker}"


def pinned() -> list[str]:
    """Return every requirement of the package and of some extras at its lowest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    return [lowest(text) for text in wanted]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "environment"
        venv.create(folder, with_pip=True)
        python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        install = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        versions = pinned()
        print("\n".join(versions), flush=True)
        subprocess.run([*install, *versions, *TEST_TOOLS], check=True)
        subprocess.run([*install, "--no-deps", str(ROOT)], check=True)
        # Old versions of others warn in new interpreters; what they say is not what is tried here.
        run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *TESTS]
        subprocess.run([*run, *sys.argv[1:]], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
