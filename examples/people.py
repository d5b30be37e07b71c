"""What the checks of the examples share: people who decide in their browser."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import httpx

from examples.processes import antiphon

_HIDDEN = re.compile(r'type="hidden" name="(token|digest|shown)" value="([^"]*)"')


def decide(
    server: Path, origin: str, role: str, choice: str, *, folder: Path, env: Mapping[str, str]
) -> None:
    """Decide the first thing that waits, as Anna would who has the role."""
    words = antiphon("inbox", "open", str(server), "--as", "anna", "--role", role)
    printed = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    link = re.search(r"http://\S+", printed)
    assert link is not None, printed
    with httpx.Client(headers={"origin": origin}, follow_redirects=True) as browser:
        inbox = browser.post(link[0])
        item = re.search(r'href="([^"]*/ask/[^"]*)"', inbox.text)
        assert item is not None, inbox.text
        page = browser.get(f"{origin}{item[1]}")
        form = dict(_HIDDEN.findall(page.text))
        done = browser.post(str(page.url), data={**form, "choice": choice, "note": "checked"})
        assert done.status_code == 200, done.text
