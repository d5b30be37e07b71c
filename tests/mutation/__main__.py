"""`make mutants`: change the core line by line; some test must fail for every change.

Which tests a mutant is tried with follows from which lines each test executes. Mutants that no test
can tell from the original are listed with the reason in `tests/mutation/unobservable.toml` and
shown in docs/testing-antiphon.md. Fails when fewer than 90 % of the others are killed.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation import trials
from tests.mutation.mutants import Mutant, mutants_of, ruined, unchanged
from tests.mutation.unobservable import read_unobservable

ROOT = trials.ROOT
HEART = (
    "core/journal.py", "core/capabilities.py", "engine/redemption.py", "engine/effects.py",
    "engine/execution.py", "engine/questions.py", "engine/call.py", "seal/claims.py",
)  # fmt: skip
TESTS = (
    "tests/core", "tests/engine", "tests/linear", "tests/seal", "tests/handlers", "tests/testing",
    "tests/requirements", "tests/security", "tests/stores/test_memory.py",
    "tests/tasks/test_becoming.py", "tests/tasks/test_uncertain_effects.py",
    "tests/test_telemetry.py",
)  # fmt: skip
BUILD = ROOT / "build" / "mutants"
SLOW = 8.0
"""Seconds beyond which a test is not used."""
MOST = 60
"""Tests for one mutant, beside those of its module: half the fastest, half of unusual ways."""
NEAR = 12
"""Lines before and after a mutant that are near it."""


@dataclass(frozen=True)
class Covered:
    """Which tests execute which lines."""

    tests: dict[str, dict[str, Any]]

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests to try a mutant with, the fastest first."""
        file = str(mutant.path)
        lines = set(range(mutant.line, mutant.last_line + 1))
        usable = {
            name: test
            for name, test in self.tests.items()
            if test["passed"] and test["seconds"] < SLOW and file in test.get("lines", {})
        }
        on_line = [n for n, test in usable.items() if lines & set(test["lines"][file])]
        # What runs at import is executed before any test: whoever uses the file may notice.
        chosen, most = (on_line, MOST) if on_line else (list(usable), 3 * MOST)
        own = [name for name in chosen if _imports(name.split("::")[0], mutant.module)]
        rare = self._rarest_first(chosen, usable, mutant)[: most // 2]
        fast = sorted(chosen, key=lambda name: usable[name]["seconds"])
        picked = list(dict.fromkeys([*own[:most], *rare, *fast]))[: most + len(own[:most])]
        return sorted(picked, key=lambda name: usable[name]["seconds"])

    def _rarest_first(
        self, names: list[str], usable: dict[str, dict[str, Any]], mutant: Mutant
    ) -> list[str]:
        """Put those tests first that execute what few others do, near the mutant.

        Hundreds of tests pass through a line of the hot path; those that take the unusual branches
        around it are the ones that hold what it decides.
        """
        file, near = str(mutant.path), range(mutant.line - NEAR, mutant.last_line + NEAR + 1)
        lines = {name: set(usable[name]["lines"][file]).intersection(near) for name in names}
        seen = Counter(line for of_test in lines.values() for line in of_test)
        worth = {name: sum(1 / seen[line] for line in of_test) for name, of_test in lines.items()}
        return sorted(names, key=lambda name: -worth[name])

    def seconds(self, names: Iterable[str]) -> float:
        """Return how long these tests take on the original."""
        return sum(self.tests[name]["seconds"] for name in names)


@cache
def _imports(test: str, module: str) -> bool:
    """Return whether a file of tests imports a module: then it is about that module."""
    return f"from {module} import" in (ROOT / test).read_text("utf-8")


def covered(files: list[Path], tests: list[str], *, fresh: bool) -> Covered:
    """Run the tests once and learn which lines they execute; kept until something changes."""
    BUILD.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join([*map(str, files), *tests]).encode())
    for source in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(source.read_bytes())
    kept = BUILD / f"lines-{digest.hexdigest()[:16]}.json"
    if fresh or not kept.exists():
        print(f"learning which of {' '.join(tests)} execute what", flush=True)
        environment = {
            **os.environ,
            "MUTATION_FILES": "\n".join(map(str, files)),
            "MUTATION_MAP": str(kept),
        }
        subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--timeout=300",
                "-p", "tests.mutation.lines", *tests,
            ],
            cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    return Covered(json.loads(kept.read_text()))


def tried(
    mutants: list[Mutant], covered: Covered, *, jobs: int, seconds: float
) -> Iterator[tuple[Mutant, str]]:
    """Try mutants side by side for as long as there is time; gives what came of each."""
    waiting = list(mutants)
    running: list[trials.Trial] = []
    end = time.monotonic() + seconds
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() < end:
            mutant = waiting.pop()
            tests = covered.of(mutant)
            if not tests:
                yield mutant, "survived: no test executes it"
                continue
            patience = 20 + 10 * covered.seconds(tests)
            running.append(trials.begin(mutant, tests, patience))
        if not running:
            return
        for trial in list(running):
            code = trials.ended(trial)
            if code is not None:
                running.remove(trial)
                yield trial.mutant, _outcome(code)
        time.sleep(0.02)


def _outcome(code: int) -> str:
    if code == 0:
        return "survived"
    if code in (1, 2):  # a test failed, or could not be imported
        return "killed"
    return "killed: it hung" if code < 0 else f"not tried: pytest ended with {code}"


def hold_control(files: list[Path], covered: Covered, jobs: int) -> None:
    """Try each file unchanged, when all tests must pass, and ruined, when some must fail."""
    controls = [make(file) for file in files for make in (unchanged, ruined)]
    for control, end in tried(controls, covered, jobs=jobs, seconds=1e9):
        if end != ("survived" if control.name == "unchanged" else "killed"):
            sys.exit(f"the trials are worth nothing: {control.path} {control.name} {end}")


def report(outcomes: dict[str, str], mutants: dict[str, Mutant], unobservable: set[str]) -> bool:
    """Print what came of the mutants; tells whether enough of them were killed."""
    survivors = [n for n, end in outcomes.items() if end.startswith("survived")]
    for name in sorted(survivors):
        known = " (listed)" if name in unobservable else ""
        line = mutants[name].line
        print(f"{outcomes[name]}{known}: {name} [line {line}]")
    counts: Counter[str] = Counter()
    for name, end in outcomes.items():
        file = name.split(" ", 1)[0]
        if name in unobservable and end.startswith("survived"):
            counts[f"{file} listed"] += 1
        else:
            counts[f"{file} {end.split(':')[0]}"] += 1
    killed = total = 0
    for file in sorted({name.split(" ", 1)[0] for name in outcomes}):
        k, s = counts[f"{file} killed"], counts[f"{file} survived"]
        killed, total = killed + k, total + k + s
        print(f"{file}: {k} of {k + s} killed, {counts[f'{file} listed']} listed as unobservable")
    stale = sorted(name for name in unobservable & set(outcomes) if name not in survivors)
    for name in stale:
        print(f"listed as unobservable, but killed: {name}")
    share = killed / total if total else 1.0
    print(f"all: {killed} of {total} killed ({share:.1%})", flush=True)
    return share >= 0.9 and not stale


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--files", nargs="+", default=list(HEART), help="under src/antiphon")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--only", default="", help="only mutants whose name holds this text")
    parser.add_argument("--seconds", type=float, default=36_000, help="then say what is known")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list the mutants and try none")
    parser.add_argument("--fresh", action="store_true", help="learn anew which tests execute what")
    options = parser.parse_args()
    package = ROOT / "src" / "antiphon"
    mutants = {
        mutant.name: mutant
        for file in options.files
        for mutant in mutants_of(package / file, file)
        if options.only in mutant.name
    }
    if options.list:
        print("\n".join(mutants))
        return
    known = covered([package / file for file in options.files], options.tests, fresh=options.fresh)
    trials.import_libraries()
    hold_control([package / file for file in options.files], known, options.jobs)
    order = list(mutants.values())
    random.Random(1).shuffle(order)
    outcomes: dict[str, str] = {}
    for mutant, end in tried(order, known, jobs=options.jobs, seconds=options.seconds):
        outcomes[mutant.name] = end
        if end.startswith("survived"):
            print(f"{end}: {mutant.name} [line {mutant.line}]", flush=True)
        if len(outcomes) % 25 == 0:
            print(f"{len(outcomes)} of {len(mutants)} mutants tried", flush=True)
    sys.exit(not report(outcomes, mutants, set(read_unobservable())))


if __name__ == "__main__":
    main()
