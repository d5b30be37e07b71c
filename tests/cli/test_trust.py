"""What a command does with what others wrote: saved calls, results, the environment of servers."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from antiphon.cli.connect import read_named
from antiphon.cli.login.saved import SavedLogin
from antiphon.client import Client, Scripted
from antiphon.client.errors import SavedCallInvalid
from antiphon.client.saved import load
from antiphon.client.targets.named import (
    Command,
    File,
    Module,
    NamedTarget,
    Url,
    parse_target,
)
from antiphon.client.targets.target import CommandTarget, HttpTarget, read_target
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


RESUME = ["resume", "call.json", "--no-input"]


@pytest.mark.parametrize("more", [[], ["--run"], ["--restart", "--run"]])
@pytest.mark.parametrize(
    "target",
    [
        ["touch", "ran"],
        "touch ran",
        "http://shop.example/mcp.py",
        "HTTP://shop.example/mcp.py",
        "http:/shop.example/mcp.py",
        "shop.py",
        "shop.py:server",
    ],
)
def test_a_saved_call_runs_no_program_whatever_its_target_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, more: list[str]
):
    monkeypatch.chdir(tmp_path)
    for folder in ("http:", "HTTP:"):
        (tmp_path / folder / "shop.example").mkdir(parents=True)
    for file in ("http:/shop.example/mcp.py", "HTTP:/shop.example/mcp.py", "shop.py"):
        (tmp_path / file).write_text("open('ran', 'w').close()")
    saved_call(tmp_path, target)
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # no name is looked up
    assert antiphon(*RESUME, *more, "--timeout", "5").code in (1, 2, 4)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("http://shop.example/mcp.py", Url("http://shop.example/mcp.py")),
        ("https://h/a.py:server", Url("https://h/a.py:server")),
        ("python http://h/a.py", Command(("python", "http://h/a.py"))),
        ("python server.py", Command(("python", "server.py"))),
        ("server.py", File("server.py")),
        ("a/server.py:shop", File("a/server.py", "shop")),
        ("'my server.py'", File("my server.py")),
        ("C:\\shop.py", File("C:\\shop.py")),
        ("my-server", Command(("my-server",))),
        ("shop:server", Module("shop:server")),
        ("shop.till:server", Module("shop.till:server")),
    ],
)
def test_every_reader_of_a_text_takes_it_for_the_same_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: NamedTarget
):
    monkeypatch.chdir(tmp_path)
    # Files of these names must make no difference.
    for name in ("python server.py", "my-server", "server.py", "my server.py", "C:\\shop.py"):
        (tmp_path / name).touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "server.py").touch()
    assert parse_target(text) == value
    assert read_named(text, json=False) == value
    opened = read_target(text, {})
    saved = {**json.loads(Path(saved_call(tmp_path, None)).read_text()), "target": text}
    if isinstance(value, Url):
        assert isinstance(opened, HttpTarget)
        assert opened.url == load(json.dumps(saved)).target == value
        return
    served = isinstance(value, File | Module)
    words = value.command.words if served else cast("Command", value).words
    assert cast("CommandTarget", opened).command == words
    with pytest.raises(SavedCallInvalid):
        load(json.dumps(saved))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("127.0.0.1:8400", "http://127.0.0.1:8400/mcp"),
        ("localhost:8400/mcp", "http://localhost:8400/mcp"),
        ("shop.example:80/", "http://shop.example:80/"),
        ("[::1]:8400", "http://[::1]:8400/mcp"),
    ],
)
def test_an_address_without_its_scheme_is_told_the_url(text: str, url: str):
    ran = antiphon("tools", text)
    assert (ran.code, ran.err) == (2, f"error: {text!r} is no URL: write {url}\n")


def test_a_call_of_somebody_else_gets_no_headers_unasked(tmp_path: Path):
    with ScriptedServer(lambda m: text("done")) as server:
        file = saved_call(tmp_path, server.url, params={"name": "t", "arguments": {"eur": 9}})
        for named in ([], ["--target", server.url]):
            refused = antiphon("resume", file, *CREDENTIALS, *named)
            assert (refused.code, server.messages) == (2, [])
            assert f"would send the headers to {server.url}" in refused.err
            for shown in (f"server: {server.url}", "tools/call: t", 'arguments: {"eur": 9}'):
                assert shown in refused.err
            assert "secret" not in refused.err
        assert antiphon("resume", file, *CREDENTIALS, "--run").out == "done\n"
        assert server.headers[-1]["authorization"] == "Bearer secret"
        assert antiphon("resume", file).out == "done\n"
        assert "authorization" not in server.headers[-1]


def keep_login(url: str) -> None:
    tokens = {"access_token": "MINE", "token_type": "Bearer", "expires_in": 99999}
    client = {"client_id": "x", "redirect_uris": ["http://127.0.0.1/callback"]}
    login = {"tokens": tokens, "expires": 9999999999.0, "client": client}
    SavedLogin(url).save(json.dumps(login).encode())


@pytest.mark.parametrize("named", [False, True])
def test_a_call_of_somebody_else_gets_no_kept_login_unasked(tmp_path: Path, named: bool):
    with ScriptedServer(lambda m: text("done")) as server:
        keep_login(server.url)
        file = saved_call(tmp_path, server.url)
        words = ["resume", file, *(["--target", server.url] if named else [])]
        ran = antiphon(*words)
        assert ran.out == "done\n", ran.err
        assert f"Your login for {server.url} is not used" in ran.err
        assert all("authorization" not in each for each in server.headers)
        assert antiphon(*words, "--run").out == "done\n"
        assert server.headers[-1]["authorization"] == "Bearer MINE"


def test_a_call_of_somebody_else_goes_through_no_proxy_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with (
        ScriptedServer(lambda m: text("done")) as server,
        ScriptedServer(lambda m: text("by proxy")) as proxy,
    ):
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/mcp"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        file = saved_call(tmp_path, server.url)
        assert antiphon("resume", file).out == "done\n"
        assert proxy.messages == []
        assert antiphon("resume", file, "--run").out == "by proxy\n"


@pytest.mark.parametrize("target", ["true", "asking.py"])
def test_a_call_of_somebody_else_is_made_on_no_program_of_the_user_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text("open('ran', 'w').close()")
    ran = antiphon("resume", saved_call(tmp_path, None), "--target", target)
    assert (ran.code, "on a program of yours" in ran.err) == (2, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("run", [[], ["--run"]])
def test_a_call_that_was_never_begun_is_not_resumed(tmp_path: Path, run: list[str]):
    with ScriptedServer(lambda m: text("done")) as server:
        file = saved_call(tmp_path, server.url, token=None)
        ran = antiphon("resume", file, *run)
        assert (ran.code, "Pass --restart to begin it" in ran.err) == (2, True)
        assert server.messages == []
        assert antiphon("resume", file, "--restart", *run).out == "done\n"


def begun(server: ScriptedServer, file: Path) -> dict[str, Any]:
    assert antiphon("call", server.url, "t", "eur=9", "--save", str(file)).code == 4
    return json.loads(file.read_text())


def one_question(message: dict[str, Any]) -> dict[str, Any]:
    """Serve one tool, which asks once."""
    if message["method"] == "tools/list":
        tool = {"name": "t", "inputSchema": {"type": "object"}}
        return {"resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private"}
    if "inputResponses" in message["params"]:
        return text("done")
    return asks("token", k=form(name={"type": "string"}))


def test_a_call_that_the_user_saved_here_keeps_login_and_headers(tmp_path: Path):
    file = tmp_path / "call.json"
    with ScriptedServer(one_question) as server:
        keep_login(server.url)
        begun(server, file)
        ran = antiphon("resume", str(file), "--header", "X-Key: 1", "-a", "k.name=Ada")
        assert ran.out == "done\n", ran.err
        assert "not saved by you" not in ran.err
        assert server.headers[-1]["authorization"] == "Bearer MINE"
        assert server.headers[-1]["x-key"] == "1"


@pytest.mark.parametrize("change", ["params", "target", "token", "mac", "key"])
def test_a_call_that_others_changed_is_theirs(tmp_path: Path, own_folder: Path, change: str):
    file = tmp_path / "call.json"
    with ScriptedServer(one_question) as server:
        keep_login(server.url)
        saved = begun(server, file)
        before = len(server.messages)
        if change == "key":
            (own_folder / "antiphon" / "saved-calls.key").write_text("0" * 64)
        elif change == "mac":
            saved["mac"] = "0" * 64
        elif change == "params":
            saved["params"]["arguments"]["eur"] = 9999
        else:
            saved[change] += "?x=1"
        file.write_text(json.dumps(saved, separators=(",", ":")))
        ran = antiphon("resume", str(file), "-a", "k.name=Ada")
        assert ran.out == "done\n", ran.err
        assert "was not saved by you on this computer" in ran.err
        assert len(server.messages) > before
        assert all("authorization" not in each for each in server.headers[before:])


def test_a_call_of_somebody_else_stays_theirs_when_it_is_saved_again(tmp_path: Path):
    with ScriptedServer(lambda m: asks("token", k=form())) as server:
        keep_login(server.url)
        file = saved_call(tmp_path, server.url)
        for _ in range(2):
            ran = antiphon("resume", file)
            assert ran.code == 4, ran.err
            assert "was not saved by you on this computer" in ran.err
        assert all("authorization" not in each for each in server.headers)
        assert antiphon("resume", file, "--run").code == 4
        assert "not saved by you" not in antiphon("resume", file).err


def test_the_key_of_saved_calls_is_private(tmp_path: Path, own_folder: Path):
    with ScriptedServer(one_question) as server:
        begun(server, tmp_path / "call.json")
    key = own_folder / "antiphon" / "saved-calls.key"
    assert key.stat().st_mode & 0o777 == 0o600


def test_the_hint_after_saving_names_what_resuming_needs(tmp_path: Path):
    asking = tmp_path / "asking.py"
    asking.write_text(ASKING)
    file = tmp_path / "call.json"
    ran = antiphon("call", str(asking), "greet", "--save", str(file))
    hint = ran.err.partition("Continue with: antiphon ")[2]
    assert json.loads(file.read_text())["target"] is None
    # Keys in memory ended with the process, so that its token says nothing to another one.
    done = antiphon(*shlex.split(hint), "--restart", "-a", "who.name=Ada")
    assert (done.code, done.out) == (0, "{'name': 'Ada'}\n"), done.err


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
