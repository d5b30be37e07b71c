"""Installs what `make dist` built, as a user would, and runs it.

The wheel and the sdist each get a fresh environment in a folder away from the checkout. Both run
the demonstration; the sdist also runs tests that it carries.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TEST_TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "jsonschema", "httpx")
# They need no other implementation and no database; `make test` there runs all of them.
CARRIED = ("tests/core", "tests/wire", "tests/forms", "tests/seal")


def fresh(folder: Path, package: Path, *more: str) -> Path:
    """Make an environment with the package and return its folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    run(programs / "python", "-m", "pip", "install", "-q", f"{package}[console]", *more, cwd=folder)
    return programs


def run(program: Path, *arguments: str, cwd: Path) -> None:
    subprocess.run([program, *arguments], cwd=cwd, check=True, stdin=subprocess.DEVNULL)


def one(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"dist holds {len(found)} files like {pattern}: run `make dist`")
    return found[0]


def main() -> None:
    wheel, sdist = one("*.whl"), one("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        away = Path(name)
        run(fresh(away / "wheel", wheel) / "antiphon", "demo", cwd=away)
        programs = fresh(away / "sdist", sdist, *TEST_TOOLS)
        run(programs / "antiphon", "demo", cwd=away)
        with tarfile.open(sdist) as archive:
            archive.extractall(away, filter="data")
        unpacked = away / sdist.name.removesuffix(".tar.gz")
        run(programs / "python", "-m", "pytest", "-q", *CARRIED, cwd=unpacked)
    print(f"{wheel.name} and {sdist.name} work in fresh environments")


if __name__ == "__main__":
    main()
