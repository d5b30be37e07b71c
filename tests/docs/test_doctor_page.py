"""docs/doctor.md lists what the doctor finds, in its own words."""

import re
from pathlib import Path

from antiphon.apps.doctor.findings import COMPLAINTS

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def test_the_page_lists_every_finding_in_the_words_of_the_command() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert listed == [(id, one.reason, one.cure) for id, one in COMPLAINTS.items()]
