"""Chooses the tests for a mutant: those that execute its line, the most likely to fail first."""

from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant

SLOW = 8.0
"""Seconds beyond which a test is not used."""

NEAR = 12
"""Lines before and after a mutant that are near it."""

_FIRST = 30
"""How many of the tests that have killed most are tried first."""


class Choice:
    """Which tests execute which lines, and which have killed."""

    def __init__(self, tests: dict[str, dict[str, Any]], budget: float) -> None:
        self._budget = budget
        """Seconds that the tests of one mutant take together on the original, at most."""

        self._tests = {
            name: test for name, test in tests.items() if test["passed"] and test["seconds"] < SLOW
        }
        self._kills: Counter[tuple[str, str]] = Counter()

    def killed(self, mutant: Mutant, test: str) -> None:
        """Note which test a mutant failed: its neighbours may fail it, too."""
        self._kills[mutant.function, test] += 1
        self._kills[str(mutant.path), test] += 1

    def drop(self, test: str) -> None:
        """Use a test no more: it fails without a mutant."""
        self._tests.pop(test, None)

    def of(self, mutant: Mutant, doubtful: Collection[str] = ()) -> dict[str, float]:
        """Return the tests to try a mutant with, and how long each may take."""
        file = str(mutant.path)
        using = [name for name, test in self._tests.items() if file in test["lines"]]
        chosen = [name for name in using if mutant.lines & set(self._tests[name]["lines"][file])]
        # What runs at import is executed before any test: whoever uses the file may notice.
        ordered = self._ordered(chosen or (using if mutant.at_import else []), mutant)
        picked: dict[str, float] = {}
        spent = 0.0
        for name in ordered:
            if name in doubtful:
                continue
            seconds = self._tests[name]["seconds"]
            spent += seconds
            if spent > self._budget:
                break
            picked[name] = 3 + 10 * seconds
        return picked

    def _ordered(self, names: list[str], mutant: Mutant) -> list[str]:
        """Put those first that killed others nearby, then by what they tell for their time."""
        worth = self._worth(names, mutant)
        first: list[str] = []
        for place in (mutant.function, str(mutant.path)):
            rate = {n: self._kills[place, n] / (0.1 + self._tests[n]["seconds"]) for n in names}
            first += sorted(filter(rate.__getitem__, names), key=lambda n: -rate[n])[:_FIRST]
        rest = sorted(names, key=lambda name: -worth[name])
        return list(dict.fromkeys([*first, *rest]))

    def _worth(self, names: list[str], mutant: Mutant) -> dict[str, float]:
        """Value tests that execute what few others do near the mutant, and those that are fast.

        Hundreds of tests pass through a line of the hot path; those that take the unusual branches
        around it, and those that import its module, are the ones that hold what it decides.
        """
        file = str(mutant.path)
        near = {line + away for line in mutant.lines for away in range(-NEAR, NEAR + 1)}
        lines = {name: set(self._tests[name]["lines"][file]).intersection(near) for name in names}
        seen = Counter(line for of_test in lines.values() for line in of_test)
        worth: dict[str, float] = {}
        for name, of_test in lines.items():
            own = 10 if _imports(name.split("::")[0], mutant.module) else 1
            rare = sum(1 / seen[line] for line in of_test)
            worth[name] = own * rare / (0.05 + self._tests[name]["seconds"])
        return worth


@cache
def _imports(test: str, module: str) -> bool:
    """Return whether a file of tests imports a module: then it is about that module."""
    return f"from {module} import" in Path(test).read_text("utf-8")
