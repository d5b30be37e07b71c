"""`antiphon call`, `resume`, `tools`, `keygen` and `demo` as a script meets them."""

import asyncio
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import __version__
from tests.cli.running import ANTIPHON, antiphon, environment, spawned
from tests.client.programs import ENVIRONMENT, over_http, over_stdio
from tests.client.scripted_server import META, Error, Raw, ScriptedServer, asks, form, text

ROOM, SURE = "__main__:which_room", "__main__:really"
ANSWERED = ["--answer", f"{ROOM}.room=Oak", "--answer", f"{SURE}.sure=yes"]


@pytest.fixture(scope="module")
def rooms() -> Iterator[str]:
    with over_http("official resolvers") as url:
        yield url


def test_a_call_is_answered_from_the_command_line(rooms: str):
    ran = antiphon("call", rooms, "book", "day=friday", *ANSWERED)
    assert (ran.code, ran.out) == (0, "Oak for 4 on friday\n"), ran.err


def test_a_stdio_server_is_called_by_its_command_line():
    command = shlex.join(over_stdio("typescript"))
    answers = ["-a", "room.room=Elm", "-a", "room.seats=7", "-a", "sure.sure=true"]
    env = [word for name in ENVIRONMENT for word in ("--env", name)]
    ran = spawned("call", command, "book", "day=monday", *answers, *env, **ENVIRONMENT)
    assert (ran.code, ran.out) == (0, "Elm for 7 on monday\n"), ran.err


def test_json_is_one_object_for_scripts(rooms: str):
    ran = antiphon("call", rooms, "book", "day=friday", "--json", *ANSWERED)
    assert ran.json["outcome"] == "done"
    assert ran.json["result"]["content"][0]["text"] == "Oak for 4 on friday"


def test_arguments_take_their_types_from_the_tool(rooms: str):
    assert antiphon("call", rooms, "count", "to=3").out == "counted\n"
    wrong = antiphon("call", rooms, "count", "to=three")
    assert (wrong.code, "'to' takes a value of type integer" in wrong.err) == (2, True)
    unknown = antiphon("call", rooms, "count", "too=3")
    assert (unknown.code, "it has to" in unknown.err) == (2, True)
    missing = antiphon("call", rooms, "nonesuch", "a=1")
    assert (missing.code, "book, visit" in missing.err) == (2, True)


def test_without_terminal_and_answer_a_call_that_asks_fails_and_says_what_it_asks(rooms: str):
    ran = antiphon("call", rooms, "book", "day=friday")
    assert ran.code == 2
    assert f"--answer {ROOM}.room=" in ran.err
    assert "--save" in ran.err


def test_a_saved_call_is_finished_by_another_process(rooms: str, tmp_path: Path):
    file = tmp_path / "booking.json"
    ran = spawned("call", rooms, "book", "day=friday", "--save", str(file), "--json")
    assert (ran.code, ran.json["outcome"]) == (4, "waiting"), ran.err
    assert list(ran.json["asks"]) == [ROOM]
    assert file.stat().st_mode & 0o777 == 0o600
    again = spawned("resume", str(file), "--answer", f"{ROOM}.room=Elm")
    assert again.code == 4, again.err
    assert list(json.loads(file.read_text())["asks"]) == [SURE]
    done = spawned("resume", str(file), "--answer", f"{SURE}.sure=true")
    assert (done.code, done.out) == (0, "Elm for 4 on friday\n"), done.err


def test_a_call_begun_in_a_killed_process_is_finished_in_another(rooms: str, tmp_path: Path):
    file = tmp_path / "call.json"
    program = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from antiphon.client import Client\n"
        "async def main():\n"
        "    async with Client(sys.argv[1]) as client:\n"
        "        step = await client.begin('book', {'day': 'friday'})\n"
        "        pathlib.Path(sys.argv[2]).write_text(step.dump())\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    begun = subprocess.run([ANTIPHON[0], "-c", program, rooms, str(file)], timeout=50)
    assert begun.returncode == -signal.SIGKILL
    done = spawned("resume", str(file), *ANSWERED)
    assert (done.code, done.out) == (0, "Oak for 4 on friday\n"), done.err


def test_a_declined_question_is_exit_code_three(rooms: str):
    ran = antiphon("call", rooms, "book", "day=friday", "--answer", f"{ROOM}=decline")
    assert ran.code == 3, ran.err


def test_an_answer_that_does_not_fit_is_usage_and_nothing_is_sent():
    with ScriptedServer(lambda m: asks("s", k=form(n={"type": "integer"}))) as server:
        ran = antiphon("call", server.url, "t", "--answer", "k.n=many")
    assert (ran.code, len(server.calls)) == (2, 1)
    assert "whole number" in ran.err or "integer" in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["bok", "day=friday"], "the server has no tool 'bok'; it has: "),
        (["bok"], "the server has no tool 'bok'; it has: "),
        (["book"], "the tool needs day: add day=STRING"),
        (["book", "dya=friday"], "the tool has no argument 'dya'; it has day"),
        (["book", "friday"], "write name=value or name:=JSON"),
        (["book", "day:=friday"], "is not JSON: 'friday'. Write day=TEXT for a text"),
    ],
)
def test_words_that_do_not_fit_the_tool_are_usage(rooms: str, words: list[str], told: str):
    ran = antiphon("call", rooms, *words)
    assert (ran.code, ran.out, told in ran.err) == (2, "", True), ran


def test_a_module_is_called_as_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shelf.py").write_text(
        "from antiphon import Server\n\nserver = Server('shelf')\n\n"
        "@server.tool\nasync def count() -> str:\n    return 'three'\n"
    )
    monkeypatch.chdir(tmp_path)
    ran = antiphon("call", "shelf:server", "count")
    assert (ran.code, ran.out) == (0, "three\n"), ran.err
    wrong = antiphon("call", "shelf:srv", "count")
    assert (wrong.code, "'shelf' has no 'srv'; it has server" in wrong.err) == (1, True)


def test_a_server_without_tls_is_told_with_its_url():
    with ScriptedServer(lambda m: None) as server:
        ran = antiphon("tools", server.url.replace("http:", "https:"))
    assert ran.code == 1
    assert f"it does not speak TLS. Write {server.url} (" in ran.err


def test_a_tool_error_is_exit_code_one():
    failed = {**text("it broke"), "isError": True}
    with ScriptedServer(lambda m: failed) as server:
        ran = antiphon("call", server.url, "t")
        told = antiphon("call", server.url, "t", "--json")
    assert (ran.code, ran.out) == (1, "it broke\n")
    assert (told.code, told.json["outcome"]) == (1, "error")


def test_a_server_that_is_not_there_is_one_line():
    with ScriptedServer(lambda m: None) as server:
        url = server.url
    ran = antiphon("call", url, "t")
    assert ran.code == 1
    assert ran.err.startswith(f"error: cannot reach {url}: is the server running?")
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("call", "t"), ("call", "t", "a=1"), ("tools",), ("tasks", "id")]
)
def test_a_failed_connection_is_one_json_object_for_scripts(words: tuple[str, ...]):
    with ScriptedServer(lambda m: None) as server:
        url = server.url
    for target, code in ((url, 1), ("htp://x", 2)):
        ran = antiphon(words[0], target, *words[1:], "--json")
        assert (ran.code, ran.json["outcome"]) == (code, "failed")
        assert ran.json["error"]["type"] == "CannotConnect"


def test_an_answer_to_a_key_that_nobody_asked_is_warned_of(rooms: str):
    ran = antiphon("call", rooms, "book", "day=friday", *ANSWERED, "-a", "rom.room=hidden")
    assert (ran.code, ran.out) == (0, "Oak for 4 on friday\n")
    assert (
        ran.err == f"warning: --answer rom.room was not used: the server asked for {ROOM}, {SURE}\n"
    )
    typo = antiphon("call", rooms, "book", "day=friday", "-a", "rom.room=hidden")
    assert (typo.code, f"the server asked for {ROOM}\n" in typo.err) == (2, True)
    assert "hidden" not in ran.err + typo.err
    assert "warning" not in antiphon("call", rooms, "book", "day=friday", *ANSWERED).err


def test_hints_are_not_broken_into_lines_without_a_terminal(tmp_path: Path):
    file = tmp_path / ("long" * 40)
    with ScriptedServer(lambda m: asks(who=form("Who?"))) as server:
        ran = antiphon("call", server.url, "t", "--save", str(file))
    assert ran.code == 4, ran.err
    assert f"Continue with: antiphon resume {file}\n" in ran.err


def test_the_version_is_printed():
    assert antiphon("--version").out == f"antiphon {__version__}\n"


def test_the_last_words_of_a_command_that_died_are_shown():
    ran = spawned("tools", f"{ANTIPHON[0]} -c 'raise SystemExit(\"no licence found\")'")
    assert ran.code == 1
    assert "no licence found" in ran.err


def test_a_servers_control_characters_do_not_reach_the_terminal():
    with ScriptedServer(lambda m: text("a\x1b[2Jb\u202ec")) as server:
        ran = antiphon("call", server.url, "t")
    assert ran.out == "a\\x1b[2Jb\\u202ec\n"


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"antiphon":"call","version":9}'])
def test_a_file_that_is_no_saved_call_is_usage(tmp_path: Path, content: str):
    file = tmp_path / "x.json"
    file.write_text(content)
    ran = antiphon("resume", str(file))
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_tools_are_listed_for_people_and_for_scripts(rooms: str):
    table = antiphon("tools", rooms)
    assert "book" in table.out
    assert "day=string" in table.out
    listed = antiphon("tools", rooms, "--json").json["tools"]
    assert [tool["name"] for tool in listed] == ["book", "visit", "dream", "where", "hold", "count"]


def test_an_old_server_is_answered_from_the_same_options():
    command = shlex.join(over_stdio("official resolvers"))
    answers = ["-a", "form.room=Oak", "-a", "form.sure=yes"]
    ran = antiphon("call", command, "book", "day=friday", "--era", "legacy", *answers)
    assert (ran.code, ran.out) == (0, "Oak for 4 on friday\n"), ran.err
    no = antiphon("call", command, "book", "day=friday", "--era", "legacy", "-a", "form=decline")
    assert no.code == 3, no.err


def test_keygen_prints_a_key_of_32_bytes():
    first, second = antiphon("keygen").out.strip(), antiphon("keygen").out.strip()
    assert len(bytes.fromhex(first)) == 32
    assert first != second


def test_the_demonstration_runs_by_itself_without_a_terminal():
    ran = spawned("demo")
    assert ran.code == 0, ran.err
    provisioned, refunded = ran.out.splitlines()
    assert provisioned == "orders.eu-west is running"
    assert ran.err.count("asked:") == 2
    assert refunded == "Refunded order 4711, receipt R-4711, approved by finance."
    assert ran.err.count("/console/link/") == 2
    for words in ("It goes on only then", "he cannot approve it", "Approved by Anna (finance)"):
        assert words in " ".join(ran.err.split())


def test_help_loads_neither_the_sdk_nor_a_server():
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from antiphon.cli.app import app\n"
        "result = CliRunner().invoke(app, ['call', '--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "heavy = ('mcp', 'mcp_types', 'uvicorn', 'httpx2')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [ANTIPHON[0], "-c", program], capture_output=True, text=True, env=environment(), timeout=50
    )
    assert done.stdout == "[]\n", done.stderr


ROOTS = {"method": "roots/list"}
SAMPLE = {
    "method": "sampling/createMessage",
    "params": {
        "maxTokens": 9,
        "messages": [{"role": "user", "content": {"type": "text", "text": "A verse?"}}],
    },
}


def asks_for_what_it_can(message: dict[str, Any]) -> Any:
    """Ask for roots and a completion, or refuse as a modern server does."""
    params = message["params"]
    if params.get("inputResponses"):
        return text(json.dumps(params["inputResponses"], sort_keys=True))
    declared = params["_meta"][META + "clientCapabilities"]
    missing = {name: {} for name in ("roots", "sampling") if name not in declared}
    if missing:
        return Error(-32021, "cannot", {"requiredCapabilities": missing}, status=400)
    return asks("s", roots=ROOTS, sample=SAMPLE)


def test_what_a_call_needs_is_said_in_options_of_the_command_line():
    with ScriptedServer(asks_for_what_it_can) as server:
        ran = antiphon("call", server.url, "t")
    assert ran.code == 1
    assert "--answer roots=/a/folder and --answer sample=TEXT" in ran.err
    assert "answers=" not in ran.err


def test_roots_and_completions_are_answered_now_or_later(tmp_path: Path):
    file = str(tmp_path / "call.json")
    answers = ["-a", "roots=/srv", "-a", "sample=A rose"]
    with ScriptedServer(asks_for_what_it_can) as server:
        now = antiphon("call", server.url, "t", *answers)
        saved = antiphon("call", server.url, "t", "--save", file)
        later = antiphon("resume", file, *answers)
    assert (now.code, "file:///srv" in now.out, "A rose" in now.out) == (0, True, True), now.err
    assert saved.code == 4, saved.err
    assert "    --answer roots=/a/folder\n" in saved.err
    assert "  sample: a completion of: A verse?\n    --answer sample=TEXT\n" in saved.err
    assert (later.code, later.out) == (0, now.out), later.err


def test_the_help_of_answers_names_every_kind():
    words = " ".join(antiphon("call", "--help").out.replace("│", " ").split())
    for kind in ("key.field=value", "key=accept", "roots=/a/folder", "sample=TEXT", "key=decline"):
        assert kind in words


def test_a_timeout_is_said_in_options_of_the_command_line():
    with ScriptedServer(lambda m: asyncio.sleep(30)) as server:
        ran = antiphon("call", server.url, "t", "--timeout", "0.3")
    assert (ran.code, "--timeout" in ran.err, "Timeouts(" in ran.err) == (1, True, False)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("http://", "the URL names no host"),
        ("http://[::1", "the URL cannot be read"),
        ("/nowhere/shop.py", "there is no file /nowhere/shop.py"),
        ("/nowhere/shop.py:server", "there is no file /nowhere/shop.py"),
        ("python /nowhere/shop.py", "can't open file"),
        ("no-such-program", "cannot start 'no-such-program'"),
        ("'open", "the command cannot be read"),
    ],
)
def test_a_target_that_cannot_be_is_named(target: str, told: str):
    ran = spawned("tools", target)
    assert ran.code in (1, 2)
    assert told in ran.err
    assert "Traceback" not in ran.err


def test_a_task_that_is_known_by_its_id_only_is_not_started_over(tmp_path: Path):
    file = tmp_path / "task.json"
    saved = {"antiphon": "call", "version": 2, "method": "tools/call", "params": {}, "asks": {}}
    file.write_text(json.dumps({**saved, "target": "http://127.0.0.1:1/", "task": {"id": "t"}}))
    ran = antiphon("resume", str(file), "--restart")
    assert (ran.code, "call the tool again" in ran.err) == (2, True)


def test_a_refusal_by_middleware_is_told_with_status_and_body():
    refused = Raw(b"no tenant \x1b[31m" + b"x" * 9000, status=400, content_type="text/plain")
    with ScriptedServer(lambda m: refused, discover=None) as server:
        ran = antiphon("call", server.url, "t")
    assert ran.code == 1
    assert "HTTP 400 Bad Request: no tenant \\x1b[31m" in ran.err
    assert len(ran.err) < 800
