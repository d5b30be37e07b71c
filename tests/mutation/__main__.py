"""`make mutants`: change the core line by line; some test must fail for every change.

Which tests a mutant is tried with follows from which lines each test executes. Mutants that no test
can tell from the original are listed with the reason in `tests/mutation/unobservable.toml` and
shown in docs/testing-antiphon.md. Fails when fewer than 90 % of the others are killed. Run it in
the directory of the project.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.choice import Choice
from tests.mutation.lines import Lines
from tests.mutation.mutants import Mutant, mutants_of, ruined
from tests.mutation.trials import PYTEST, Trials
from tests.mutation.unobservable import read_unobservable

HEART = (
    "protocol/journal.py", "protocol/journal_index.py", "protocol/capabilities.py",
    "engine/redemption.py",
    "engine/effects/once.py", "engine/effects/names.py", "engine/effects/performing.py",
    "engine/effects/settling.py",
    "engine/execution.py", "engine/questions.py", "engine/call.py", "seal/claims.py",
)  # fmt: skip
TESTS = (
    "tests/core", "tests/engine", "tests/linear", "tests/seal", "tests/handlers", "tests/testing",
    "tests/requirements", "tests/security", "tests/stores/test_memory.py",
    "tests/tasks/test_becoming.py", "tests/tasks/test_uncertain_effects.py",
    "tests/telemetry/test_rounds.py",
)  # fmt: skip
TOO_LONG = ("tests/linear/test_random_programs.py",)
"""Files of tests that would take minutes for every mutant."""


class Campaign:
    """Tries the mutants of some files with some tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._build = Path(options.build)
        self.files = {file: Path(options.package, file).resolve() for file in options.files}
        self.mutants = {
            mutant.name: mutant
            for file, path in self.files.items()
            for mutant in mutants_of(path, file)
            if any(text in mutant.name for text in options.only)
        }
        self.outcomes: dict[str, str] = {}
        self._sound: set[str] = set()
        """Tests that were seen to pass without a mutant."""

    def run(self, trials: Trials) -> None:
        """Learn what the tests execute, see that trials can fail, and try every mutant."""
        choice = Choice(self._learned(trials), self._options.budget)
        self._hold_control(trials, choice)
        written = self._build / "outcomes.txt"
        if self._options.resume:
            self._recall(written.read_text("utf-8").splitlines(), choice)
        order = [mutant for name, mutant in self.mutants.items() if name not in self.outcomes]
        random.Random(1).shuffle(order)
        end = time.monotonic() + self._options.seconds
        with written.open("a" if self._options.resume else "w", encoding="utf-8") as kept:
            for mutant in order:
                if time.monotonic() > end:
                    break
                outcome, test = self._tried(mutant, trials, choice)
                self.outcomes[mutant.name] = outcome
                print(f"{outcome}: {mutant.name} [{test}]", file=kept, flush=True)
                if outcome != "killed":
                    print(f"{outcome}: {mutant.name} [line {mutant.line}]", flush=True)
                if len(self.outcomes) % 50 == 0:
                    print(f"{len(self.outcomes)} of {len(self.mutants)} tried", flush=True)

    def _recall(self, lines: list[str], choice: Choice) -> None:
        """Take over which mutants were killed before, and by which tests."""
        for line in lines:
            outcome, _, rest = line.partition(": ")
            name, _, test = rest.removesuffix("]").rpartition(" [")
            if outcome == "killed" and name in self.mutants:
                self.outcomes[name] = outcome
                choice.killed(self.mutants[name], test.rpartition(" ")[0])

    def _learned(self, trials: Trials) -> dict[str, dict[str, Any]]:
        """Learn which lines each test executes; kept until its file or the package changes."""
        package = hashlib.sha256("\n".join(map(str, self.files.values())).encode())
        for source in sorted(Path(self._options.package).rglob("*.py")):
            package.update(source.read_bytes())
        learned: dict[str, dict[str, Any]] = {}
        for file in dict.fromkeys(test.partition("::")[0] for test in trials.tests):
            digest = package.copy()
            digest.update(Path(file).read_bytes())
            kept = self._build / f"{digest.hexdigest()[:16]}.json"
            if not kept.exists():
                print(f"learning what the tests of {file} execute", flush=True)
                trials.learn(file, Lines(self.files.values(), kept))
            learned |= json.loads(kept.read_text())
        return learned

    def _hold_control(self, trials: Trials, choice: Choice) -> None:
        """Try each file with every function ruined: its tests must notice."""
        for path in dict.fromkeys(mutant.path for mutant in self.mutants.values()):
            end = trials.run(choice.of(ruined(path)), ruined(path)).end
            if end not in ("failed", "hung"):
                pytest.exit(f"the trials are worth nothing: {path} is ruined, its tests {end}", 3)

    def _tried(self, mutant: Mutant, trials: Trials, choice: Choice) -> tuple[str, str]:
        """Try one mutant: what came of it, and the test that told."""
        doubtful: set[str] = set()
        while tests := choice.of(mutant, doubtful):
            trial = trials.run(tests, mutant)
            if trial.end == "passed":
                return "survived", ""
            if trial.end == "broken":
                return "not tried", trial.test
            if mutant.at_import:
                sound = trials.run(tests).end == "passed"
                return ("killed", trial.end) if sound else ("not tried", "tests fail without it")
            blamed = {trial.test: tests[trial.test]}
            if trial.test not in self._sound and trials.run(blamed).end != "passed":
                choice.drop(trial.test)
                continue
            self._sound.add(trial.test)
            if trials.run(blamed, mutant).end != "passed":  # again: a test may fail by chance
                choice.killed(mutant, trial.test)
                return "killed", f"{trial.test} {trial.end}"
            doubtful.add(trial.test)
        return "survived", "no test executes it"


def report(outcomes: dict[str, str], unobservable: set[str]) -> bool:
    """Print what came of the mutants; tells whether enough of them were killed."""
    for name, outcome in sorted(outcomes.items()):
        if outcome != "killed":
            print(f"{outcome}{' (listed)' if name in unobservable else ''}: {name}")
    counts: Counter[tuple[str, str]] = Counter()
    for name, outcome in outcomes.items():
        listed = outcome == "survived" and name in unobservable
        counts[name.split(" ", 1)[0], "listed" if listed else outcome] += 1
    for file in sorted({file for file, _ in counts}):
        parts = {end: n for (of, end), n in counts.items() if of == file}
        print(f"{file}: {sum(parts.values())} mutants, {json.dumps(parts, sort_keys=True)}")
    stale = [name for name in sorted(unobservable) if outcomes.get(name) == "killed"]
    for name in stale:
        print(f"listed as unobservable, but killed: {name}")
    killed, survived = (
        sum(n for (_, end), n in counts.items() if end == wanted)
        for wanted in ("killed", "survived")
    )
    share = killed / (killed + survived) if killed + survived else 1.0
    print(f"all: {killed} of {killed + survived} killed ({share:.1%})", flush=True)
    return share >= 0.9 and not stale


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--package", default="src/antiphon")
    parser.add_argument("--files", nargs="+", default=list(HEART), help="of the package")
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of mutants' names")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--seconds", type=float, default=36_000, help="then say what is known")
    parser.add_argument("--build", default="build/mutants", help="for what is kept")
    parser.add_argument("--resume", action="store_true", help="try only what was not killed before")
    parser.add_argument("--list", action="store_true", help="list the mutants and try none")
    options = parser.parse_args()
    campaign = Campaign(options)
    if options.list:
        print("\n".join(campaign.mutants))
        return
    Path(options.build).mkdir(parents=True, exist_ok=True)
    os.environ["CI"] = "1"  # generated examples are the same for every mutant
    with tempfile.TemporaryDirectory(prefix="mutants-") as files:
        ignored = [f"--ignore={file}" for file in TOO_LONG]
        arguments = [*PYTEST, f"--basetemp={files}", *ignored, *options.tests]
        trials = Trials(campaign.files.values(), campaign.run)
        code = pytest.main(arguments, plugins=[trials])
    enough = report(campaign.outcomes, set(read_unobservable()))
    sys.exit(code or not (enough and campaign.outcomes))


if __name__ == "__main__":
    main()
