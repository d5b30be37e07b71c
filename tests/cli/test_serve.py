"""`antiphon serve`: HTTP, stdio and several workers, each a process of its own."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import pytest

from antiphon.client import Client, Scripted, StateRefused
from antiphon.seal.keyring import generate_key
from tests.cli.running import ANTIPHON, Ran, antiphon, environment, spawned
from tests.processes.running import ready

MODULE = '''
import asyncio
import os
import sys
from antiphon import Context, Server

server = Server("served", version="1")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@server.tool
async def greet(ctx: Context) -> str:
    """Greet somebody."""
    who = await ctx.elicit("Who?", FORM, key="who")
    again = await ctx.elicit("Again?", FORM, key="again")
    return f"{who['name']} {again['name']} {os.getpid()}"


@server.tool
async def leave() -> str:
    """Start a task that exits, as a command line parser does."""

    async def parse() -> None:
        sys.exit(3)

    await asyncio.gather(parse())
    return "never"


@server.tool
async def pid() -> str:
    """The process that serves this."""
    return str(os.getpid())
'''
ANSWERS = Scripted(who={"name": "Ada"}, again={"name": "Grace"})


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "house.py").write_text(MODULE)
    return tmp_path


@contextmanager
def serving(house: Path, *words: str, workers: int = 1) -> Iterator[str]:
    words = (*words, "--workers", str(workers))
    with subprocess.Popen(
        [*ANTIPHON, "serve", "house:server", "--http", "127.0.0.1:0", *words],
        cwd=house,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        seen = ""
        try:
            for line in process.stderr:
                seen += line
                found = re.search(r"Serving on (http://\S+)", seen)
                if found:
                    yield found[1]
                    break
            else:
                pytest.fail(f"the server did not start:\n{seen}")
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            process.wait(20)


async def test_a_server_is_served_over_http(house: Path):
    with serving(house) as url:
        async with Client(url, answers=ANSWERS) as client:
            assert client.server == {"name": "served", "version": "1"}
            said = (await client.call_tool("greet")).content[0].text  # pyright: ignore[reportAttributeAccessIssue]
            assert said.startswith("Ada Grace")


async def test_a_server_is_served_over_stdio(house: Path):
    command = [sys.executable, "-m", "antiphon.cli.app", "serve", "house:server", "--stdio"]
    async with Client(command, answers=ANSWERS, cwd=house) as client:
        assert client.era == "modern"
        assert (await client.call_tool("greet")).content[0].text.startswith("Ada Grace")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("over", ["http", "stdio"])
async def test_a_task_of_a_handler_that_exits_does_not_end_the_process(house: Path, over: str):
    command = [sys.executable, "-m", "antiphon.cli.app", "serve", "house:server", "--stdio"]
    with serving(house) if over == "http" else nullcontext(command) as server:
        async with Client(server, cwd=house) if over == "stdio" else Client(server) as client:
            before = (await client.call_tool("pid")).content
            for _ in range(2):
                failed = await client.call_tool("leave")
                assert failed.is_error
            assert (await client.call_tool("pid")).content == before


async def test_any_of_several_workers_takes_any_round(house: Path):
    with serving(house, workers=2) as url:
        seen: set[str] = set()

        async def one() -> None:
            # A connection of its own for every round, so that the rounds are spread.
            async with Client(url) as client:
                seen.add((await client.call_tool("pid")).content[0].text)  # pyright: ignore[reportAttributeAccessIssue]
                step = await client.begin("greet")
            for key, name in (("who", "Ada"), ("again", "Grace")):
                async with Client(url) as client:
                    step = await client.resume(step.dump(), {key: {"name": name}})
            assert step.result.content[0].text.startswith("Ada Grace")

        # The kernel spreads connections as it likes; on a quiet machine one worker may take many.
        for turn in range(25):
            await asyncio.gather(*(one() for _ in range(4)))
            if len(seen) == 2 and turn >= 3:
                break
        assert len(seen) == 2
    assert (house / ".antiphon" / "ledger.db").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nonesuch:server"], "no module 'nonesuch'"),
        (["json:server"], "has no 'server'"),
        (["json:dumps"], "not a Server"),
        (["json"], "'json' has no server"),
        (["/nowhere/shop.py"], "there is no file /nowhere/shop.py"),
        ([":server"], "write module:server or path/to/file.py"),
        (["http://127.0.0.1:8400/mcp"], "is a URL. This command loads the server itself"),
        (["ledger.db"], "A store is named by its URL: sqlite:///ledger.db"),
        (["audit.jsonl"], "there is no file audit.jsonl"),
        (["json:dumps", "--http", "8400", "--port", "8400"], "leave out --port"),
        (["json:dumps", "--http", "nowhere"], "HOST:PORT"),
        (["json:dumps", "--stdio", "--workers", "2"], "excludes"),
    ],
)
def test_a_wrong_name_or_address_is_usage(words: list[str], told: str):
    ran = antiphon("serve", *words)
    assert ran.code == 2
    assert told in ran.err


@pytest.mark.parametrize("name", ["theirs.py", "theirs.py:mcp", "theirs", "theirs:mcp"])
def test_the_server_of_another_library_is_told_the_ways_to_serve_it(house: Path, name: str):
    text = "from mcp.server.mcpserver import MCPServer\nmcp = MCPServer('shop')\n"
    (house / "theirs.py").write_text(text)
    ran = started(house, name)
    command = "python theirs.py" if ".py" in name else "python -m theirs"
    assert ran.code == 2
    assert f"MCPServer behind a gateway, `antiphon gateway '{command}'`" in ran.err
    assert "AntiphonTools" in ran.err


@pytest.mark.parametrize("name", ["token.py", "token.py:server", "my shop.py:server"])
async def test_a_server_is_served_from_its_file_wherever_the_command_runs(
    tmp_path: Path, name: str
):
    folder = tmp_path / "far"
    folder.mkdir()
    (folder / "beside.py").write_text("VERSION = '7'")
    text = MODULE.replace("import os", "import os\nfrom beside import VERSION", 1)
    (folder / name.partition(":")[0]).write_text(text.replace('version="1"', "version=VERSION"))
    command = [*ANTIPHON, "serve", str(folder / name), "--stdio"]
    async with Client(command, answers=ANSWERS, cwd=tmp_path) as client:
        assert (client.server or {})["version"] == "7"
        assert "Ada Grace" in str((await client.call_tool("greet")).content)


async def test_several_workers_serve_a_file(house: Path):
    async with (
        ready(2, folder=house, target=str(house / "house.py")) as running,
        Client(running.url, answers=ANSWERS) as client,
    ):
        assert "Ada Grace" in str((await client.call_tool("greet")).content)


def test_a_file_is_a_target_of_every_command(house: Path):
    ran = spawned("tools", str(house / "house.py"), "--json")
    assert [tool["name"] for tool in ran.json["tools"]] == ["greet", "leave", "pid"], ran.err


def test_one_of_several_servers_must_be_named(house: Path):
    (house / "two.py").write_text("from antiphon import Server\na, b = Server('a'), Server('b')")
    ran = antiphon("serve", str(house / "two.py"))
    assert (ran.code, "has several servers (a, b)" in ran.err) == (2, True)
    wrong = antiphon("serve", f"{house / 'two.py'}:c")
    assert (wrong.code, "has no 'c'; it has a, b" in wrong.err) == (2, True)


def started(house: Path, *words: str, command: str = "serve", **env: str) -> Ran:
    """Start a server that cannot run, and see it end."""
    done = subprocess.run(
        [*ANTIPHON, command, *words],
        cwd=house,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        env=environment(**{"ANTIPHON_KEYS": generate_key(), **env}),
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def errors_of(ran: Ran) -> list[str]:
    """Lines beside the notes and warnings about how workers share."""
    lines = ran.err.splitlines()
    return [line for line in lines if not line.startswith(("ANTIPHON_", "INFO ", "WARNING "))]


def test_workers_in_a_folder_that_cannot_be_written_are_told_what_to_do():
    ran = started(Path("/proc"), "house:server", "--workers", "2")  # nobody can write there
    assert ran.code == 2
    assert errors_of(ran)[-1].startswith("error: .antiphon cannot be made: ")
    assert "Run the command in a folder that you can write to" in ran.err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_one_line_and_exit_code_one(house: Path, workers: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = started(house, "house:server", "--http", address, "--workers", workers)
    (line,) = errors_of(ran)
    assert ran.code == 1
    assert address in line
    assert "Address already in use" in line
    assert "another port" in line


@pytest.mark.parametrize("how", [["--http", "127.0.0.1:0"], ["--stdio"]])
@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("sqlite:///house.py/x.db", "correct the URL"),
        ("postgresql://127.0.0.1:1/none", "Check that the database is reachable"),
    ],
)
def test_a_store_that_cannot_be_opened_is_one_line_and_exit_code_one(
    house: Path, store: str, told: str, how: list[str]
):
    text = MODULE.replace('version="1"', f'version="1", store={store!r}')
    (house / "shut.py").write_text(text)
    ran = started(house, "shut:server", *how)
    (line,) = errors_of(ran)
    assert ran.code == 1
    assert line.startswith("error: ")
    assert told in line


def test_an_import_that_fails_within_the_module_is_named(house: Path):
    (house / "inner.py").write_text("import nonesuch_package")
    (house / "outer.py").write_text("import inner")
    (house / "wrong.py").write_text("from json import nonesuch")
    missing = started(house, "outer:server")
    assert (missing.code, "'inner' imports 'nonesuch_package'" in missing.err) == (2, True)
    wrong = started(house, "wrong:server")
    assert (wrong.code, "'wrong' cannot be imported" in wrong.err) == (2, True)
    assert "Traceback" not in missing.err + wrong.err


@pytest.mark.parametrize("name", ["slip:server", "slip.py"])
def test_a_setting_that_is_refused_is_told_with_its_line(house: Path, name: str):
    (house / "slip.py").write_text(
        "from antiphon import Server\n\nserver = Server('slip')\n\n"
        "@server.tool(tsk='allowed')\nasync def slow() -> str:\n    return ''\n"
    )
    ran = started(house, name)
    told = "error: slip.py, line 5: unknown option tsk; did you mean task?\n"
    assert (ran.code, ran.err) == (2, told)


def test_a_name_of_another_module_is_told_where_it_is(house: Path):
    (house / "slip.py").write_text("from antiphon import OneTimeLink\n")
    ran = started(house, "slip.py")
    assert ran.code == 2
    assert ran.err.endswith(". Write `from antiphon.console import OneTimeLink`\n")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "Address already in use. Choose another port, or end the program"),
        ("192.0.2.1", "Listen at an address of this machine"),
        ("nohost.invalid", "Listen at an address of this machine"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--workers", "2")])
def test_an_address_that_cannot_be_used_is_told_what_to_do(
    house: Path, host: str, told: str, more: tuple[str, ...]
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = started(house, "house:server", "--http", f"{host}:{port}", *more)
    assert (ran.code, told in ran.err) == (1, True), ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "where", "how"),
    [
        ("x = 1\nprint(nonesuch)", "line 2, in <module>", "it raised NameError"),
        ("x = (", "line 1", "it raised SyntaxError"),
        ("raise SystemExit('not today')", "", "it exits (not today)"),
    ],
)
@pytest.mark.parametrize("name", ["slip:server", "slip.py"])
def test_a_mistake_in_the_module_is_shown_by_its_own_lines(
    house: Path, text: str, where: str, how: str, name: str
):
    (house / "slip.py").write_text(text)
    ran = started(house, name)
    assert ran.code == 2
    assert where in ran.err
    assert ran.err.endswith(f"error: module 'slip' cannot be loaded: {how}\n")
    assert "load_server.py" not in ran.err
    assert "importlib" not in ran.err


def test_a_worker_whose_database_is_down_is_one_line_and_exit_code_one(house: Path):
    text = MODULE.replace('version="1"', 'version="1", store="postgresql://127.0.0.1:1/none"')
    (house / "shut.py").write_text(text)
    ran = started(house, "shut:server", command="worker")
    (line,) = errors_of(ran)
    assert (ran.code, "Check that the database is reachable" in line) == (1, True)


def test_a_worker_without_keys_ends_with_the_cure(house: Path):
    text = MODULE.replace('version="1"', 'version="1", store="sqlite:///tasks.db"')
    (house / "kept.py").write_text(text)
    ran = started(house, "kept:server", command="worker", ANTIPHON_KEYS="")
    (line,) = errors_of(ran)
    assert ran.code == 2
    assert line.startswith("error: a worker needs the keys of the processes that accept the calls")
    assert "set ANTIPHON_KEYS to the same value everywhere" in line
    assert not (house / "tasks.db").exists()


async def test_a_server_without_keys_and_store_says_what_does_not_survive_it(house: Path):
    env = {"ANTIPHON_KEYS": "", "ANTIPHON_STORE": "memory:"}
    async with ready(1, folder=house, target="house:server", env=env) as running:
        assert (
            "WARNING antiphon: no keys are set: keys were made for this process, so calls that "
            "wait for an answer end with it" in running.log
        )
        assert "Set ANTIPHON_KEYS (make a key with `antiphon keygen`)" in running.log


async def test_a_server_without_keys_keeps_those_it_made_beside_its_file(house: Path):
    env = {"ANTIPHON_KEYS": "", "ANTIPHON_STORE": "sqlite:///kept.db"}
    async with ready(1, folder=house, target="house:server", env=env) as running:
        assert "keys were made and are kept in kept.db.keys" in running.log
        async with Client(running.url) as client:
            saved = (await client.begin("greet", can={"form"})).dump()
    assert (house / "kept.db.keys").stat().st_mode & 0o777 == 0o600
    async with ready(1, folder=house, target="house:server", env=env) as running:
        assert "no keys are set" not in running.log
        async with Client(running.url) as client:
            done = await client.resume(saved, {"who": {"name": "Ada"}})
        assert not done.done  # the next question, not a refusal


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_database_without_keys_is_refused_with_the_cure(house: Path, command: str):
    text = MODULE.replace('version="1"', 'version="1", store="postgresql://127.0.0.1:1/none"')
    (house / "shut.py").write_text(text)
    ran = started(house, "shut:server", command=command, ANTIPHON_KEYS="")
    (line,) = errors_of(ran)
    assert ran.code == (2 if command == "worker" else 1)
    assert "ANTIPHON_KEYS" in line
    assert "antiphon keygen" in line


async def test_the_log_of_a_served_server_says_why_a_token_was_refused(house: Path):
    env = {"ANTIPHON_KEYS": generate_key(), "PYTHONPATH": str(house)}
    async with ready(1, folder=house, target="house:server", env=env) as running:
        async with Client(running.url) as client:
            step = await client.begin("greet", can={"form"})
            other = msgspec.json.decode(step.dump())
            other["token"] = other["token"][:-4] + "AAAA"
            with pytest.raises(StateRefused):
                await client.resume(msgspec.json.encode(other).decode(), {"who": {"name": "Ada"}})
        await running.says(
            r"WARNING antiphon: token refused \(tool:greet\): it was changed after it was sealed"
        )
