import json
import re
from pathlib import Path

import pytest

from conformance.judge import Check, Scenario, judge, lines, plan, read_results, totals

REQUIREMENTS = {
    "server": ["tools-list", "caching"],
    "client": ["tools_call"],
    "not_scored": [
        {"scenario": "tasks-lifecycle", "leg": "server", "reason": "extension"},
        {"scenario": "json-schema-2020-12", "leg": "server", "reason": "pending"},
        {"scenario": "auth/dpop", "leg": "client", "reason": "extension"},
    ],
}
REQUIRED = Scenario(name="caching", why="", must=False)
UNSCORED = Scenario(name="tasks-lifecycle", why="extension", must=False)
MUST = Scenario(name="tasks-lifecycle", why="extension", must=True)


def checks(*statuses: str) -> list[Check]:
    return [
        Check(name=f"check-{number}", status=status, message="told")
        for number, status in enumerate(statuses)
    ]


def write(folder: Path, *statuses: str) -> None:
    folder.mkdir(parents=True)
    entries = [{"id": "one", "status": status, "errorMessage": "a\n  b"} for status in statuses]
    (folder / "checks.json").write_text(json.dumps(entries))


def test_a_plan_holds_the_required_scenarios_then_the_unscored_ones_of_its_leg() -> None:
    found = plan(REQUIREMENTS, "server", re.compile("^json"))
    assert [(one.name, one.required, one.counts) for one in found] == [
        ("tools-list", True, True),
        ("caching", True, True),
        ("tasks-lifecycle", False, False),
        ("json-schema-2020-12", False, True),
    ]


@pytest.mark.parametrize(
    ("scenario", "statuses", "bucket"),
    [
        (REQUIRED, ["SUCCESS", "INFO", "SKIPPED"], "passed"),
        (REQUIRED, ["SUCCESS", "FAILURE"], "failed"),
        (REQUIRED, ["SUCCESS", "WARNING"], "failed"),
        (REQUIRED, ["SKIPPED"], "failed"),
        (REQUIRED, ["INFO"], "failed"),
        (REQUIRED, [], "failed"),
        (MUST, ["SUCCESS"], "passed"),
        (MUST, ["SUCCESS", "WARNING"], "failed"),
        (MUST, ["SKIPPED"], "skipped"),
        (MUST, [], "failed"),
    ],
)
def test_a_scenario_passes_only_when_something_was_checked_and_nothing_complained(
    scenario: Scenario, statuses: list[str], bucket: str
) -> None:
    assert totals([judge(scenario, checks(*statuses))]) == {bucket: 1}


def test_a_scenario_without_a_result_fails() -> None:
    verdict = judge(REQUIRED, None)
    assert (verdict.state, verdict.bucket) == ("NONE", "failed")
    assert "nothing was checked" in lines(verdict)[0]


def test_an_unscored_scenario_is_told_but_not_counted() -> None:
    verdict = judge(UNSCORED, checks("FAILURE"))
    assert totals([verdict]) == {}
    assert lines(verdict)[0].startswith("FAIL  tasks-lifecycle")


def test_each_complaint_gets_a_line_with_its_message() -> None:
    told = lines(judge(REQUIRED, checks("SUCCESS", "FAILURE", "WARNING")))
    assert told[1:] == ["        check-1: told", "        check-2: told"]


def test_results_are_found_by_scenario_and_the_later_run_counts(tmp_path: Path) -> None:
    write(tmp_path / "server-caching-2026-11-01T10-00-00-000Z", "FAILURE")
    write(tmp_path / "server-caching-2026-11-01T10-00-09-000Z", "SUCCESS")
    write(tmp_path / "server-server-stateless-2026-11-01T10-00-00-000Z", "SUCCESS")
    found = read_results(tmp_path, "server")
    assert found.keys() == {"caching", "server-stateless"}
    assert found["caching"] == (Check(name="one", status="SUCCESS", message="a b"),)


def test_a_client_scenario_in_a_folder_of_its_own_keeps_its_whole_name(tmp_path: Path) -> None:
    write(tmp_path / "auth" / "dpop-nonce-2026-11-01T10-00-00-000Z", "SUCCESS")
    assert read_results(tmp_path, "client").keys() == {"auth/dpop-nonce"}
