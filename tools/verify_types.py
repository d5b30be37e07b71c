"""Holds every public name of the package to a type that is written down, as users' checkers see it.

The checker looks at an installed package, so the source is put into an environment of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def installed(folder: Path) -> Path:
    """Make an environment with the package and everything that ours has; return its programs."""
    venv.create(folder, symlinks=os.name != "nt")
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    shutil.copytree(ROOT / "src" / "antiphon", site / "antiphon")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Path(sysconfig.get_path("scripts", "venv", paths))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        away = Path(name)
        programs = installed(away / "environment")
        ran = subprocess.run(
            [Path(sys.executable).with_name("basedpyright"), "--verifytypes", "antiphon",
             "--ignoreexternal", "--outputjson"],
            cwd=away,
            env={**os.environ, "PATH": os.pathsep.join((str(programs), os.environ["PATH"]))},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    found = json.loads(ran.stdout)["typeCompleteness"]
    total = sum(found["exportedSymbolCounts"].values())
    if not total:
        raise SystemExit("the checker has found no package")
    for symbol in found["symbols"]:
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]:
            reasons = [one["message"].splitlines()[0] for one in symbol["diagnostics"]]
            print(f"{symbol['name']}: {'; '.join(reasons) or 'by what it is made of'}")
    if found["completenessScore"] < 1:
        raise SystemExit(f"{found['completenessScore']:.1%} of {total} public names have a type")
    print(f"all of {total} public names have a type")


if __name__ == "__main__":
    main()
