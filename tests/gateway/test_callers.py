"""A gateway as a command: who may call it, what its file keeps back, and what it prints."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon import CannotConnect, Client, RemoteError
from antiphon.cli.app import app
from antiphon.cli.gateways.settings import (
    CallerAuth,
    GatewayFile,
    UpstreamEntry,
    check_callers,
    read_gateway,
    write_gateway,
)
from antiphon.errors import ConfigError
from tests.auth.issuer import AUDIENCE, Issuer, running
from tests.gateway import programs

pytestmark = pytest.mark.timeout(120)

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
SCRIPTED = [sys.executable, str(Path(__file__).parent / "peers" / "scripted.py")]
URL = "http://127.0.0.1:9/mcp"
CREDENTIALS = [
    UpstreamEntry(target=URL, headers={"X-Key": "k"}),
    UpstreamEntry(target="http://me:secret@127.0.0.1:9/mcp"),
    UpstreamEntry(target=["true"], env={"A": "env:HOME"}),
    UpstreamEntry(target=["true"], env={"API_KEY": "k"}),
]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running() as found:
        yield found


@pytest.mark.parametrize("entry", CREDENTIALS, ids=lambda entry: str(entry.target))
def test_a_gateway_with_credentials_serves_no_strangers(entry: UpstreamEntry) -> None:
    with pytest.raises(ConfigError, match="holds credentials"):
        check_callers(GatewayFile(upstream=[entry]), "127.0.0.1")
    check_callers(GatewayFile(upstream=[entry], open=True), "127.0.0.1")
    auth = CallerAuth(issuer="https://login.example.com", audience=AUDIENCE)
    check_callers(GatewayFile(upstream=[entry], auth=auth), "0.0.0.0")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "10.0.0.1", "mcp.example.com"])
def test_a_gateway_listens_beyond_loopback_only_for_known_callers(host: str) -> None:
    settings = GatewayFile(upstream=[UpstreamEntry(target=URL)])
    for hosts in ((host,), ("127.0.0.1", host)):
        with pytest.raises(ConfigError, match="other machines"):
            check_callers(settings, *hosts)
    check_callers(settings, "127.0.0.1", "localhost", "[::1]")


@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway", URL, "--header", "X-Key=k"],
        ["gateway", URL, "--http", "0.0.0.0:0"],
        ["gateway", URL, "--allow-host", "mcp.example.com"],
        ["gateway", "held.toml"],
        ["serve", "held.toml"],
        ["serve", "plain.toml", "--http", "0.0.0.0:0"],
        ["serve", "plain.toml", "--allow-host", "mcp.example.com"],
    ],
)
def test_every_command_that_listens_refuses_to_serve_strangers(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    held = GatewayFile(upstream=[UpstreamEntry(target=URL, headers={"X-Key": "k"})])
    (tmp_path / "held.toml").write_text(write_gateway(held))
    (tmp_path / "plain.toml").write_text(
        write_gateway(GatewayFile(upstream=[UpstreamEntry(target=URL)]))
    )
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert "Nobody knows who calls this gateway" in " ".join(done.output.split())


def test_rules_beside_a_file_are_refused_and_not_ignored(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(write_gateway(GatewayFile(upstream=[UpstreamEntry(target=URL)])))
    for option in (["--deny", "x"], ["--approve", "x"], ["--allow", "x"], ["--lock", "x"]):
        done = CliRunner().invoke(app, ["gateway", str(file), *option])
        assert done.exit_code == 2
        assert "not beside it" in " ".join(done.output.split())


def test_every_setting_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    settings = GatewayFile(
        upstream=[UpstreamEntry(target=URL, not_done=[503])],
        default="approve",
        unmatched="warn",
        lock="gateway.lock",
        open=True,
        auth=CallerAuth(issuer="https://login.example.com", audience=AUDIENCE, scopes=["mcp"]),
    )
    file = tmp_path / "gateway.toml"
    file.write_text(write_gateway(settings))
    assert read_gateway(file) == settings


# --- the file of the page, by the command line ---------------------------------------------------


def describe(folder: Path, issuer: str) -> Path:
    """Write the file of the page, with an issuer and servers that there are."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    shop = [*SCRIPTED, "modern", "plain", "look", "Delete_order", "drop"]
    files = [*SCRIPTED, "legacy", "plain", "read", "write_file", "delete_file"]
    changes = {
        r"store = .*": f'store = "sqlite:///{folder}/gateway.db"',
        r"console = .*": 'console = "http://127.0.0.1:8400/console"',
        r"audit = .*": f'audit = "{folder}/calls.jsonl"',
        r"lock = .*": f'lock = "{folder}/gateway.lock"',
        r'issuer = "https://login.example.com"': f'issuer = "{issuer}"',
        r"audience = .*": f'audience = "{AUDIENCE}"',
        r'target = "https://shop.internal/mcp"\nheaders = .*\noauth = .*': f"target = {shop}",
        r'target = \["node", "files.mjs"\]': f"target = {files}",
    }
    for found, put in changes.items():
        text, count = re.subn(found, lambda _, put=put: put, text)
        assert count == 1, found
    file = folder / "gateway.toml"
    file.write_text(text)
    return file


def accept(file: Path) -> str:
    done = subprocess.run(
        programs.command(str(file), "--accept"),
        cwd=file.parent,
        env=programs.environment(file.parent / "events"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


async def test_the_file_of_the_page_keeps_back_what_it_names(
    issuer: Issuer, tmp_path: Path
) -> None:
    file = describe(tmp_path, issuer.url)
    assert "new: shop Delete_order" in accept(file)
    assert "new: " not in accept(file)
    with programs.gateway(str(file), folder=tmp_path) as gateway:
        log = gateway.log()
        assert "shop: tool shop_look: passes" in log
        assert "shop: tool shop_Delete_order: needs approval by ops" in log
        assert "shop: tool shop_drop: needs approval by the caller" in log
        assert "files: tool files_delete_file: needs approval by ops" in log
        assert "files: tool files_write_file: denied (by 'files_write*')" in log
        with pytest.raises(CannotConnect):
            async with Client(gateway.url):
                pass
        token = issuer.sign_in("anna").header
        async with asyncio.timeout(60), Client(gateway.url, headers=token) as client:
            names = {one.name for one in await client.list_tools()}
            assert "files_write_file" not in names
            with pytest.raises(RemoteError, match="Unknown tool"):
                await client.call_tool("files_write_file")
            assert list((await client.begin("shop_drop")).asks)
            for tool in ("shop_Delete_order", "files_delete_file"):
                held = await client.begin(tool)
                assert held.result is None, tool
            for tool in ("shop_look", "files_read"):
                found = await client.call_tool(tool)
                assert found.content[0].text.startswith("listed")  # type: ignore[union-attr]
    (tmp_path / "gateway.lock").write_text('{"shop": {}}\n')
    with programs.gateway(str(file), folder=tmp_path) as gateway:
        assert "shop: tool shop_look: denied (it is new: not in the lock file)" in gateway.log()
