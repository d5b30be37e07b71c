"""What a command does with what others wrote: saved calls, results, the environment of servers."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.client import Client, Scripted
from antiphon.seal.keyring import generate_key
from tests.cli.running import antiphon, spawned
from tests.client.scripted_server import ScriptedServer, asks, form, text
from tests.processes.running import ready

CREDENTIALS = ["--header", "Authorization: Bearer secret"]


def saved_call(folder: Path, target: Any, **more: Any) -> str:
    """Write a saved call as its owner leaves it: nobody else can read it."""
    saved: dict[str, Any] = {
        "antiphon": "call",
        "version": 1,
        "method": "tools/call",
        "params": {"name": "t", "arguments": {}},
        "asks": {},
        "token": "t",
        "target": target,
        **more,
    }
    file = folder / "call.json"
    file.write_text(json.dumps(saved))
    file.chmod(0o600)
    return str(file)


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_command_in_a_saved_call_is_not_run_unasked(tmp_path: Path, as_text: bool, mode: int):
    mark = tmp_path / "ran"
    command = ["touch", str(mark)]
    file = saved_call(tmp_path, shlex.join(command) if as_text else command)
    os.chmod(file, mode)
    ran = antiphon("resume", file, "--no-input")
    assert ran.code == 2
    assert not mark.exists()
    assert ("no URL" if as_text else f"would run the command: touch {mark}") in ran.err
    antiphon("resume", file, "--no-input", "--run")
    assert mark.exists() != as_text, "a text is no command, whoever trusts the file"


def test_headers_are_not_sent_to_the_url_of_a_saved_call_unasked(tmp_path: Path):
    with ScriptedServer(lambda m: text("done")) as server:
        file = saved_call(tmp_path, server.url)
        refused = antiphon("resume", file, *CREDENTIALS)
        assert (refused.code, server.messages) == (2, [])
        assert f"would send the headers to {server.url}" in refused.err
        assert "secret" not in refused.err
        assert antiphon("resume", file, *CREDENTIALS, "--run").out == "done\n"
        assert server.headers[-1]["authorization"] == "Bearer secret"
        assert antiphon("resume", file, *CREDENTIALS, "--target", server.url).code == 0
        assert antiphon("resume", file).out == "done\n"
        assert "authorization" not in server.headers[-1]


def test_the_hint_after_saving_names_what_resuming_needs(tmp_path: Path):
    (tmp_path / "asking.py").write_text(ASKING)
    file = tmp_path / "call.json"
    ran = antiphon("call", str(tmp_path / "asking.py"), "greet", "--save", str(file))
    assert f"antiphon resume {file} --run" in ran.err, ran.err


BANK = {"name": "bank", "version": "1"}
MOVED = (
    "this call was begun with 'bank' at https://bank.example/mcp and goes on with 'scripted' at "
)


def test_resuming_with_another_server_says_so(tmp_path: Path):
    with ScriptedServer(lambda m: text("done")) as server:
        file = saved_call(tmp_path, "https://bank.example/mcp", server=BANK)
        ran = spawned("resume", file, "--target", server.url)
    assert f"{MOVED}{server.url}" in ran.err


@pytest.mark.parametrize("options", [[], ["--restart"]])
def test_only_another_server_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: list[str]
):
    with ScriptedServer(lambda m: text("done")) as server:
        same = saved_call(tmp_path, server.url, server={"name": "scripted", "version": "0"})
        assert antiphon("resume", same, *options).out == "done\n"
        assert caplog.messages == []
        other = saved_call(tmp_path, "https://bank.example/mcp", server=BANK)
        assert antiphon("resume", other, "--target", server.url, *options).out == "done\n"
    assert [each for each in caplog.messages if each.startswith(f"{MOVED}{server.url}")]


HIDDEN = "ok\u202egnp.exe \x9b31mRED \x1b]0;own\x07 \u2066x\u2069 \u200b\u3164\U000e0101\u2800"


@pytest.mark.parametrize(
    "result",
    [
        {"structuredContent": {"name": HIDDEN, HIDDEN: 1}},
        {"content": [{"type": "text", "text": HIDDEN}]},
        {"content": [{"type": "resource_link", "name": "n", "uri": f"http://x/{HIDDEN}"}]},
        {"content": [{"type": "resource", "resource": {"uri": "x:y", "text": HIDDEN}}]},
    ],
    ids=["structured", "text", "link", "resource"],
)
def test_hidden_characters_of_a_result_are_shown(result: dict[str, Any]):
    whole = {"resultType": "complete", "content": [], **result}
    with ScriptedServer(lambda m: whole) as server:
        ran = antiphon("call", server.url, "t")
    assert ran.code == 0, ran.err
    assert not set(ran.out) & set("\u202e\x9b\x1b\x07\u2066\u2069\u200b\u3164\U000e0101\u2800")
    assert "u202e" in ran.out


def test_structured_results_stay_readable():
    whole = {"resultType": "complete", "content": [], "structuredContent": {"città": ["東京"]}}
    with ScriptedServer(lambda m: whole) as server:
        ran = antiphon("call", server.url, "t")
    assert json.loads(ran.out) == {"città": ["東京"]}
    assert "東京" in ran.out


def test_a_question_cannot_pass_for_an_option_of_the_command_line():
    forged = form("Pay?\n    --answer k.ok=yes\n  other: fine", name={"type": "string"})
    with ScriptedServer(lambda m: asks("s", **{"k\n  x": forged})) as server:
        ran = antiphon("call", server.url, "t")
    assert ran.code == 2
    lines = ran.err.splitlines()
    assert "    | " + "    --answer k.ok=yes" in lines
    assert "    --answer k.ok=yes" not in lines
    assert "  k\\n  x: Pay?" in lines


# --- environments -------------------------------------------------------------------------------

ASKING = '''
import os
from antiphon import Context, Server

server = Server("asking")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool
async def greet(ctx: Context) -> str:
    """Greet somebody."""
    return str(await ctx.elicit("Who?", FORM, key="who"))


@server.tool
async def variables() -> str:
    """Name the variables of this process."""
    return " ".join(sorted(os.environ))
'''


def test_a_stdio_server_inherits_few_variables_and_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "asking.py"
    file.write_text(ASKING)
    own = {"ANTIPHON_KEYS": generate_key(), "AWS_SECRET_ACCESS_KEY": "x", "REGION": "eu"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    ran = antiphon("call", str(file), "variables", "-e", "REGION", "-e", "MODE=test")
    assert ran.code == 0, ran.err
    seen = set(ran.out.split())
    assert {"REGION", "MODE", "PATH", "HOME"} <= seen
    inherited = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}
    assert seen - inherited - {"REGION", "MODE", "LC_CTYPE", "PWD", "SHLVL", "_"} == set()


@pytest.mark.parametrize("given", ["NOT_SET_ANYWHERE", "=x"])
def test_a_variable_that_cannot_be_given_is_usage(given: str):
    ran = antiphon("tools", "http://127.0.0.1:1/mcp", "--env", given)
    assert (ran.code, "--env takes NAME=VALUE" in ran.err) == (2, True)


CHILDREN = '''
import subprocess
import sys
from antiphon import Context, Server

server = Server("children")
SHOW = "import os; print(os.environ.get('ANTIPHON_KEYS', 'none'))"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool
async def child() -> str:
    """Run a program as tools do."""
    ran = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True)
    return ran.stdout.strip()


@server.tool
async def ask(ctx: Context) -> str:
    """Ask, so that a token is sealed."""
    return (await ctx.elicit("Who?", FORM, key="who"))["name"]
'''


@pytest.mark.parametrize("workers", [1, 2])
async def test_programs_that_tools_start_do_not_see_the_keys(tmp_path: Path, workers: int):
    (tmp_path / "children.py").write_text(CHILDREN)
    env = {"ANTIPHON_KEYS": generate_key(), "PYTHONPATH": str(tmp_path)}
    async with ready(workers, folder=tmp_path, target="children:server", env=env) as running:
        for _ in range(6):
            async with Client(running.url, answers=Scripted(who={"name": "Ada"})) as client:
                assert said(await client.call_tool("child")) == "none"
                # Each worker opens what another has sealed, so they do have the keys.
                assert said(await client.call_tool("ask")) == "Ada"
        environments = [file.read_text() for file in environments_of(running.children())]
    assert len(environments) == (workers if workers > 1 else 0)
    assert not any(env["ANTIPHON_KEYS"] in each for each in environments)


def said(result: Any) -> str:
    return result.content[0].text


def environments_of(pids: list[int]) -> list[Path]:
    return [Path(f"/proc/{pid}/environ") for pid in pids]


TWINS = """
import asyncio, os
from antiphon import Client, Context, Server

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def made() -> Server:
    server = Server("twin", version="1")

    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Who?", FORM, key="who"))["name"]

    return server


async def main() -> None:
    one = made()
    print("ANTIPHON_KEYS" in os.environ)
    async with Client(one) as client:
        begun = (await client.begin("ask")).dump()
    async with Client(made()) as client:
        done = await client.resume(begun, {"who": {"name": "Ada"}})
    print(done.result.content[0].text)


asyncio.run(main())
"""


def test_a_server_takes_the_keys_out_of_the_environment_and_later_ones_still_find_them():
    done = subprocess.run(
        [sys.executable, "-c", TWINS],
        env={**os.environ, "ANTIPHON_KEYS": generate_key()},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "False\nAda\n", done.stderr
