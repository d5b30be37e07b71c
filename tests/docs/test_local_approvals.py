"""The example for one machine: pasted, served, called and decided as the page says."""

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.running import ANTIPHON, environment, spawned
from tests.console.console_inbox import form_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "approvals-by-others.md").read_text("utf-8")
CODE = (ROOT / "docs_src" / "approvals_local.py").read_text("utf-8")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def shop(tmp_path: Path, port: int) -> Iterator[Path]:
    """The pasted file, served in its own folder."""
    file = tmp_path / "shop.py"
    store = f"sqlite:///{tmp_path.as_posix()}/shop.db"
    file.write_text(CODE.replace("8400", str(port)).replace("sqlite:///shop.db", store))
    with subprocess.Popen(
        [*ANTIPHON, "serve", "shop.py", "--console", "--http", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert any("Serving on" in line for line in process.stderr)
            yield file
        finally:
            process.kill()


def test_the_page_shows_all_of_the_file() -> None:
    assert f"```python\n{CODE}```" in PAGE


def test_a_call_is_decided_with_the_link_of_the_inbox(shop: Path, port: int) -> None:
    target = f"http://127.0.0.1:{port}/mcp"
    begun = spawned("call", target, "refund", "order=A1", "cents=400", "--detach")
    assert begun.code == 4, begun.err
    opened = spawned("inbox", str(shop), "--as", "anna", "--role", "finance")
    assert opened.code == 0, opened.err
    link = opened.out.strip()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}",
        headers={"origin": f"http://127.0.0.1:{port}"},
        follow_redirects=True,
    ) as browser:
        inbox = browser.post(link)
        item = re.search(r'href="([^"]*/console/ask/[0-9a-f]+)"', inbox.text)
        assert item is not None, inbox.text
        browser.post(item[1], data=form_of(browser.get(item[1])))
    ended = spawned("tasks", target, "--wait", begun.out.strip())
    assert (ended.code, ended.out) == (0, "Refunded, receipt R-A1-400.\n"), ended.err
