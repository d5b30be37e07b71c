"""The workflows of the project: the official linter finds nothing, and what they run exists."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# The linter's build for Node is older than this permission.
NEWER_THAN_THE_LINTER = 'unknown permission scope "attestations"'


def findings(text: str) -> list[str]:
    ran = subprocess.run(
        [ROOT / ".peers" / "bin" / "node", "peers/lint_workflow.mjs"],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [finding["message"] for finding in json.loads(ran.stdout)]
    return [message for message in found if not message.startswith(NEWER_THAN_THE_LINTER)]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_the_linter_finds_nothing(workflow: Path) -> None:
    assert findings(workflow.read_text()) == []


def test_the_linter_finds_a_mistake() -> None:
    text = WORKFLOWS[0].read_text().replace("${{ matrix.python }}", "${{ matrix.nothing }}")
    assert findings(text)


def test_every_target_that_a_workflow_makes_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    made = {
        target
        for workflow in WORKFLOWS
        for line in re.findall(r"- run: make (.+)", workflow.read_text())
        for target in line.split()
        if re.fullmatch(r"[a-z-]+", target)
    }
    nightly = re.search(r"target: \[(.+)\]", (WORKFLOWS[0].parent / "nightly.yml").read_text())
    assert nightly is not None
    made |= set(nightly[1].split(", "))
    assert made
    assert {
        target for target in made if not re.search(rf"^{target}:", makefile, re.MULTILINE)
    } == set()
