"""What the suite left behind, judged: which scenarios count, and how each of them ended.

Knows the suite's files (a requirement set, `checks.json` per scenario), starts no process. It is
stricter than the suite: a warning fails a scenario that counts, and so does a scenario in which
nothing was checked, which the suite calls passed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Leg = Literal["server", "client"]
State = Literal["PASS", "WARN", "FAIL", "SKIP", "NONE"]
Bucket = Literal["passed", "failed", "skipped"]

_STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario of a revision. `why` is empty when the revision requires it."""

    name: str
    why: str
    must: bool

    @property
    def required(self) -> bool:
        return not self.why

    @property
    def counts(self) -> bool:
        return self.required or self.must


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    scenario: Scenario
    state: State
    checks: tuple[Check, ...]
    alone: bool = False
    """Passed only when it was run again without the others."""

    @property
    def bucket(self) -> Bucket:
        """Where a scenario that counts is counted."""
        if self.state == "PASS":
            return "passed"
        # Some extension scenarios always skip; a required one that skips has shown nothing.
        return "skipped" if self.state == "SKIP" and not self.scenario.required else "failed"

    @property
    def faults(self) -> list[Check]:
        return [check for check in self.checks if check.status in {"FAILURE", "WARNING"}]


def plan(requirements: Mapping[str, Any], leg: Leg, must: re.Pattern[str] | None) -> list[Scenario]:
    """The scenarios of one leg of a revision's requirement set, in its order."""
    required = [(name, "") for name in requirements.get(leg) or []]
    others = [
        (entry["scenario"], entry["reason"])
        for entry in requirements.get("not_scored") or []
        if entry["leg"] == leg
    ]
    return [
        Scenario(name=name, why=why, must=bool(must and must.search(name)))
        for name, why in [*required, *others]
    ]


def read_results(folder: Path, leg: Leg) -> dict[str, tuple[Check, ...]]:
    """The checks of every scenario below a folder; of two runs of one scenario the later counts."""
    found: dict[str, tuple[Check, ...]] = {}
    for path in sorted(folder.rglob("checks.json")):
        name = _STAMP.sub("", path.parent.relative_to(folder).as_posix())
        if leg == "server":
            name = name.removeprefix("server-")
        found[name] = tuple(_check(entry) for entry in json.loads(path.read_text("utf-8")))
    return found


def _check(entry: Mapping[str, Any]) -> Check:
    details = entry.get("details")
    told = details.get("message") if isinstance(details, dict) else None
    message = entry.get("errorMessage") or told or entry.get("description") or ""
    return Check(name=entry["id"], status=entry["status"], message=" ".join(str(message).split()))


def judge(scenario: Scenario, checks: Iterable[Check] | None, *, alone: bool = False) -> Verdict:
    listed = tuple(checks or ())
    return Verdict(scenario=scenario, state=_state(listed), checks=listed, alone=alone)


def _state(checks: tuple[Check, ...]) -> State:
    counted = Counter(check.status for check in checks)
    if counted["FAILURE"]:
        return "FAIL"
    if counted["WARNING"]:
        return "WARN"
    if counted["SUCCESS"]:
        return "PASS"
    return "SKIP" if counted["SKIPPED"] else "NONE"


def lines(verdict: Verdict) -> list[str]:
    """One line for the scenario, and one for each check that failed or warned."""
    counted = Counter(check.status for check in verdict.checks)
    words = {"SUCCESS": "ok", "FAILURE": "failed", "WARNING": "warned", "SKIPPED": "skipped"}
    parts = [f"{counted[status]} {word}" for status, word in words.items() if counted[status]]
    if verdict.alone and verdict.state == "PASS":
        parts.append("only when run alone")
    scenario = verdict.scenario
    note = "" if scenario.required else f"  ({scenario.why}{', must' if scenario.must else ''})"
    told = ", ".join(parts) or "nothing was checked"
    first = f"{verdict.state}  {scenario.name:<48} {told}{note}"
    return [first, *(f"        {fault.name}: {fault.message[:300]}" for fault in verdict.faults)]


def totals(verdicts: Iterable[Verdict]) -> Counter[Bucket]:
    """How many of the scenarios that count passed, failed and were skipped."""
    return Counter(verdict.bucket for verdict in verdicts if verdict.scenario.counts)
