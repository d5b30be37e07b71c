"""`antiphon gateway`: its options, its file, and what it says when something does not fit."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli.app import app
from antiphon.cli.gateways.settings import (
    GatewayFile,
    OAuthClient,
    UpstreamEntry,
    gateway_server,
    read_gateway,
    write_gateway,
)
from antiphon.cli.load_server import load_server
from antiphon.errors import ConfigError
from tests.cli.running import spawned

FULL = GatewayFile(
    name="front",
    store="memory:",
    console="http://127.0.0.1:8400/console",
    allow=["a*"],
    deny=['b"*'],
    approve={"delete_*": "ops", "drop": ""},
    upstream=[
        UpstreamEntry(
            target="https://mcp.example.com/mcp",
            name="shop",
            headers={"X-Key": "env:SHOP_KEY"},
            oauth=OAuthClient("id", "env:SECRET", "https://login.example.com", "read"),
        ),
        UpstreamEntry(target=["node", "x y.mjs"], name="files", era="legacy", env={"A": "b"}),
    ],
)


def run(*arguments: str):
    return CliRunner().invoke(app, ["gateway", *arguments])


def test_settings_are_the_same_after_a_file(tmp_path: Path):
    file = tmp_path / "gateway.toml"
    file.write_text(write_gateway(FULL))
    assert read_gateway(file) == FULL


def test_options_are_saved_to_a_file_that_other_commands_take_as_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = run(
        "http://127.0.0.1:9/mcp", "false --x", "--name", "shop", "--name", "files",
        "--approve", "delete_*=ops", "--approve", "drop", "--deny", "files_*",
        "--console", "http://127.0.0.1:8400/console", "--header", "X-A=b", "--save", "g.toml",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    settings = read_gateway(tmp_path / "g.toml")
    assert settings.approve == {"delete_*": "ops", "drop": ""}
    assert [entry.name for entry in settings.upstream] == ["shop", "files"]
    assert settings.upstream[0].headers == {"X-A": "b"}
    assert settings.upstream[1].headers == {}
    assert load_server("g.toml").console is not None
    assert stat.S_IMODE((tmp_path / "g.toml").stat().st_mode) == 0o600, "headers are credentials"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["http://127.0.0.1:9/mcp", "false"], "need a name each"),
        (["http://127.0.0.1:9/mcp", "--approve", "=ops"], "TOOL=ROLE"),
        (["http://127.0.0.1:9/mcp", "--approve", "x=ops"], "console"),
        (["http://127.0.0.1:9/mcp", "--header", "nothing"], "NAME=VALUE"),
        (["http://127.0.0.1:9/mcp", "--header", "X=env:NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["http://127.0.0.1:9/mcp", "--name", "a b"], "A-Z"),
        (["http://127.0.0.1:9/mcp", "--oauth", "id=env:X"], "go together"),
        (["http://127.0.0.1:9/mcp", "--stdio", "--http", ":1"], "--stdio excludes"),
        (["ftp://127.0.0.1/"], "unknown scheme"),
        (["nosuch.toml"], "cannot be read"),
    ],
)
def test_what_does_not_fit_is_wrong_usage(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


@pytest.mark.parametrize(
    "text", ["", "upstream = 7", "[[upstream]]\ntarget='x'\ncolour='red'", "not toml ="]
)
def test_a_file_that_describes_no_gateway_is_refused(text: str, tmp_path: Path):
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="does not describe a gateway"):
        read_gateway(file)


def test_a_gateway_without_servers_is_refused():
    with pytest.raises(ConfigError, match="a server behind it"):
        gateway_server(GatewayFile(upstream=[], store="memory:"))


def test_headers_are_for_urls():
    entry = UpstreamEntry(target=["true"], headers={"A": "b"})
    with pytest.raises(ConfigError, match="for a URL"):
        gateway_server(GatewayFile(upstream=[entry], store="memory:"))


def test_a_console_without_its_url_is_usage():
    ran = spawned("gateway", "http://127.0.0.1:9/mcp", "--console", "--port", "8400")
    assert (ran.code, "--console takes the URL of the pages" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("saved", [False, True])
def test_a_gateway_with_a_console_says_how_to_decide(tmp_path: Path, saved: bool):
    words = ["http://127.0.0.1:9/mcp", "--store", "memory:"]
    words += ["--console", "http://127.0.0.1:8400/console"]
    if saved:
        file = str(tmp_path / "gate.toml")
        assert spawned("gateway", *words, "--save", file).code == 0
        words = [file]
    ran = spawned("gateway", *words, "--http", "127.0.0.1:0")
    assert "console: http://127.0.0.1:8400/console\n" in ran.err
    told = f"open the inbox: antiphon inbox {words[0] if saved else 'FILE'} --role ROLE"
    assert told in ran.err
    assert ("--save FILE" in ran.err) is not saved
    assert (ran.code, "127.0.0.1:9/mcp cannot be reached" in ran.err) == (1, True)


def test_a_server_that_cannot_be_reached_ends_the_command(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli.app", "gateway", "http://127.0.0.1:9/mcp",
         "--http", "127.0.0.1:0", "--store", "memory:"],
        cwd=tmp_path, capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
