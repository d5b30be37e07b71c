"""What `antiphon serve` logs: a line for each request with -v, as text or JSON, and no values."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon.client import Client
from tests.cli.running import ANTIPHON, antiphon, environment

MODULE = '''
import logging
from antiphon import Server

server = Server("desk")


@server.tool
async def parse(number: str) -> int:
    """Read a number."""
    return int(number)
'''


class Log:
    """What a server wrote to stderr; complete when it has ended."""

    url = ""
    text = ""

    @property
    def access(self) -> list[str]:
        return [line for line in self.text.splitlines() if " antiphon.access: " in line]


@contextmanager
def serving(folder: Path, *words: str, module: str = MODULE) -> Iterator[Log]:
    (folder / "desk.py").write_text(module)
    log = Log()
    with subprocess.Popen(
        [*ANTIPHON, "serve", "desk.py", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                log.text += line
                if found := re.search(r"Serving on (http://\S+)", line):
                    log.url = found[1]
                    yield log
                    break
            else:
                pytest.fail(f"the server did not start:\n{log.text}")
        finally:
            process.send_signal(signal.SIGINT)
            log.text += process.stderr.read()
            process.wait(20)


async def call_twice(log: Log) -> None:
    async with Client(log.url) as client:
        assert not (await client.call_tool("parse", {"number": "12"})).is_error
        assert (await client.call_tool("parse", {"number": "tvelve-please"})).is_error


@pytest.mark.parametrize("where", [["--port", "0"], ["--http", "0"]])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_line_is_logged_for_each_request_if_asked_for(
    tmp_path: Path, where: list[str], workers: str
) -> None:
    with serving(tmp_path, *where, "-v", "--workers", workers) as log:
        await call_twice(log)
        async with httpx2.AsyncClient() as http:
            await http.get(log.url.replace("/mcp", "/console/link/one-time-secret-4711?code=4711"))
    calls = [line for line in log.access if "tools/call" in line]
    assert len(calls) == 2
    assert all(
        re.fullmatch(r"INFO antiphon\.access: POST /mcp 200 [\d.]+ ms tools/call parse", line)
        for line in calls
    )
    (page,) = (line for line in log.access if " GET " in line)
    assert re.fullmatch(r"INFO antiphon\.access: GET /console/link/… 404 [\d.]+ ms", page)
    assert "4711" not in log.text


async def test_requests_are_not_logged_by_default_and_failures_are(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as log:
        await call_twice(log)
    assert log.access == []
    assert "tool:parse failed: ValueError: invalid literal for int()" in log.text
    assert "'<argument number>'" in log.text
    assert "    return int(number)" in log.text
    assert "tvelve" not in log.text


async def test_the_log_can_be_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", "-v", "--log-format", "json") as log:
        await call_twice(log)
    lines = [json.loads(line) for line in log.text.splitlines() if not line.startswith("Serving")]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    calls = [line for line in lines if line.get("method") == "tools/call"]
    assert [(line["status"], line["path"], line["target"]) for line in calls] == [
        (200, "/mcp", "parse")
    ] * 2
    assert all(line["duration_ms"] >= 0 for line in calls)
    (failure,) = (line for line in lines if line["level"] == "ERROR")
    assert "ValueError: invalid literal" in failure["message"]


async def test_a_module_that_configures_logging_keeps_its_own_unless_an_option_is_given(
    tmp_path: Path,
) -> None:
    module = MODULE + 'logging.basicConfig(format="mine %(message)s", level=logging.INFO)\n'
    with serving(tmp_path, "--port", "0", module=module) as log:
        await call_twice(log)
    assert "mine tool:parse failed" in log.text
    with serving(tmp_path, "--port", "0", "-v", module=module) as log:
        await call_twice(log)
    assert "mine" not in log.text
    assert log.access


@pytest.mark.parametrize(
    "words",
    [["--port", "1", "--http", "127.0.0.1:1"], ["--stdio", "--port", "1"], ["--http", "here"]],
)
def test_addresses_that_exclude_each_other_are_refused(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "desk.py").write_text(MODULE)
    ran = antiphon("serve", str(tmp_path / "desk.py"), *words)
    assert ran.code == 2
    assert words[-2] in ran.err
