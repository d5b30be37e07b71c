"""The page on testing: its example runs as it stands, and every name on it exists."""

import re
from pathlib import Path

from antiphon import testing
from antiphon.testing import Rounds, RoundTrip
from antiphon.testing.problems import CURES
from docs_src.testing import test_a_crash_repeats_nothing as test_a_crash_repeats_nothing
from docs_src.testing import test_a_round_sent_again as test_a_round_sent_again
from docs_src.testing import (
    test_a_task_is_followed_to_its_end as test_a_task_is_followed_to_its_end,
)
from docs_src.testing import (
    test_calls_in_flight_survive_this_change as test_calls_in_flight_survive_this_change,
)
from docs_src.testing import test_it_starts_after_approval as test_it_starts_after_approval
from docs_src.testing import test_nothing_without_a_yes as test_nothing_without_a_yes
from docs_src.testing_decisions import test_no_answer_is_no_yes as test_no_answer_is_no_yes
from docs_src.testing_layout import (
    test_an_account_is_closed_after_approval as test_an_account_is_closed_after_approval,
)

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_every_step_of_the_table_is_a_method():
    text = (
        PAGE.read_text(encoding="utf-8").split("## One round at a time")[1].split("## What if")[0]
    )
    calls = re.findall(r"^\| `(\w+)", text, re.MULTILINE)
    assert len(calls) > 7
    assert [name for name in calls if not hasattr(Rounds, name) and name != "clock"] == []
    named = re.findall(r"A step has (.*?) and the\n`(\w+)`", text, re.DOTALL)[0]
    members = [*re.findall(r"`(\w+)`", named[0]), named[1]]
    fields = set(RoundTrip.__dataclass_fields__)
    assert [name for name in members if not hasattr(RoundTrip, name) and name not in fields] == []


def test_every_problem_stands_on_the_page():
    text = PAGE.read_text(encoding="utf-8").split("## What if")[1].split("## Calls in flight")[0]
    rows = "".join(re.findall(r"^\| (`[a-z-]+.*?) \|", text, re.MULTILINE))
    assert set(re.findall(r"`([a-z-]+)`", rows)) == set(CURES)


def test_every_name_of_the_kit_is_there():
    for name in ("Rounds", "MISSING", "Raw", "Unscripted", "MortalStore", "Process", "Crash"):
        assert name in PAGE.read_text(encoding="utf-8") or name == "Crash"
        assert hasattr(testing, name)
