"""Commands in a folder that somebody else prepared: links, and files under the names they use."""

import json
import os
from pathlib import Path

import pytest

from antiphon.cli.written_files import (
    NotWritten,
    keep_copy,
    make_folder,
    open_to_append,
    read_plain,
    write_new,
    write_own,
)
from tests.cli.running import antiphon
from tests.client.scripted_server import ScriptedServer, asks, form

SHOP = "from antiphon import Server\nserver = Server('shop')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project of somebody else, the working directory, beside a server of the user's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "shop.py").write_text(SHOP)
    (tmp_path / "private.json").write_text('{"mcpServers": {"bank": {"env": {"KEY": "secret"}}}}')
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def install(*more: str) -> int:
    return antiphon("install", "../mine/shop.py", "--write", *more).code


def test_a_prepared_link_under_the_name_of_the_copy_is_not_followed(project: Path) -> None:
    victim = project.parent / "bashrc"
    victim.write_text("export PATH")
    (project / ".mcp.json").write_text('{"x": "$(touch pwned)"}')
    (project / ".mcp.json.before-antiphon").symlink_to(victim)
    assert install("--client", "claude-code") == 0
    assert victim.read_text() == "export PATH"
    copy = project / ".mcp.json.before-antiphon-2"
    assert copy.read_text() == '{"x": "$(touch pwned)"}'
    assert "shop" in json.loads((project / ".mcp.json").read_text())["mcpServers"]


@pytest.mark.parametrize(
    ("client", "link", "leads_to"),
    [
        ("claude-code", ".mcp.json", "private.json"),
        ("cursor", ".cursor/mcp.json", "../private.json"),
        ("cursor", ".cursor", "elsewhere"),
        ("vscode", ".vscode", "elsewhere"),
        ("claude-code", ".mcp.json", "not-there.json"),
    ],
)
def test_a_client_file_that_leads_out_of_the_project_is_left_alone(
    project: Path, client: str, link: str, leads_to: str
) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    private = (project.parent / "private.json").read_bytes()
    (project / link).parent.mkdir(exist_ok=True)
    (project / link).symlink_to(project.parent / leads_to)
    assert install("--client", client) == 1
    assert (project.parent / "private.json").read_bytes() == private
    assert list(elsewhere.iterdir()) == []
    assert not (project.parent / "not-there.json").exists()
    assert not list(project.rglob("*before-antiphon*"))


def test_a_call_is_saved_over_no_other_file_and_through_no_link(project: Path) -> None:
    other = project.parent / "notes.json"
    other.write_text('{"mine": true}')
    (project / "link.json").symlink_to(other)
    (project / "other.json").write_text("[]")
    with ScriptedServer(lambda m: asks("token", k=form())) as server:
        for name in ("link.json", "other.json"):
            ran = antiphon("call", server.url, "t", "--save", name)
            assert ran.code == 2, ran.err
        assert server.calls == [], "the path is checked before the call begins"
        assert antiphon("call", server.url, "t", "--save", "new.json").code == 4
        assert antiphon("call", server.url, "t", "--save", "new.json").code == 4
    assert other.read_text() == '{"mine": true}'
    assert (project / "other.json").read_text() == "[]"
    assert (project / "new.json").stat().st_mode & 0o777 == 0o600


def test_a_gateway_is_saved_in_a_new_file_only(project: Path) -> None:
    other = project.parent / "notes.toml"
    (project / "gateway.toml").symlink_to(other)
    save = ["gateway", "http://127.0.0.1:9/mcp", "--store", "memory://", "--save"]
    assert antiphon(*save, "gateway.toml").code == 2
    assert not other.exists()
    assert antiphon(*save, "new.toml").code == 0
    before = (project / "new.toml").read_text()
    assert antiphon(*save, "new.toml").code == 2
    assert (project / "new.toml").read_text() == before


def test_the_file_of_ended_calls_is_appended_to_no_other_file(project: Path) -> None:
    other = project.parent / "bashrc"
    other.write_text("export PATH\n")
    (project / "calls.jsonl").symlink_to(other)
    (project / "notes.txt").write_text("mine\n")
    for name in ("calls.jsonl", "notes.txt"):
        gateway = ["gateway", "http://127.0.0.1:9/mcp", "--store", "memory://", "--audit", name]
        assert antiphon(*gateway).code == 2
    assert (other.read_text(), (project / "notes.txt").read_text()) == ("export PATH\n", "mine\n")


def test_a_folder_of_the_store_that_is_a_link_is_refused(project: Path) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (project / ".antiphon").symlink_to(elsewhere)
    ran = antiphon("gateway", "http://127.0.0.1:9/mcp", "--save", "gateway.toml")
    assert (ran.code, "is a link" in ran.err) == (2, True)
    assert list(elsewhere.iterdir()) == []


# --- the functions -----------------------------------------------------------------------------


def test_a_new_file_replaces_nothing(project: Path) -> None:
    path = Path("a", "b.txt")
    write_new(path, "one")
    with pytest.raises(NotWritten, match="exists already"):
        write_new(path, "two")
    Path("dangling").symlink_to("nowhere")
    with pytest.raises(NotWritten):
        write_new(Path("dangling"), "two")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one", 0o600)
    assert Path("a").stat().st_mode & 0o777 == 0o700
    assert not Path("nowhere").exists()


def test_only_the_commands_own_file_is_replaced(project: Path) -> None:
    path = Path("own.txt")
    write_own(path, "own 1", lambda _: False)
    write_own(path, "own 2", lambda now: now == b"own 1")
    with pytest.raises(NotWritten):
        write_own(path, "own 3", lambda now: now == b"own 1")
    assert path.read_text() == "own 2"
    os.mkfifo("pipe")
    for name in ("pipe", "."):
        with pytest.raises((NotWritten, OSError)):
            write_own(Path(name), "x", lambda _: True)
    assert sorted(os.listdir()) == ["own.txt", "pipe"], "no draft is left"


def test_each_copy_has_a_name_of_its_own(project: Path) -> None:
    path = Path("c.json")
    names = [keep_copy(path, text).name for text in (b"1", b"2", b"3")]
    assert names == [f"c.json.before-antiphon{end}" for end in ("", "-2", "-3")]
    assert [Path(name).read_bytes() for name in names] == [b"1", b"2", b"3"]


def test_links_are_neither_read_nor_appended_to(project: Path) -> None:
    Path("real").write_text("x")
    Path("link").symlink_to("real")
    with pytest.raises(NotWritten):
        read_plain(Path("link"))
    with pytest.raises(NotWritten):
        open_to_append(Path("link"), lambda _: True)
    with pytest.raises(NotWritten):
        make_folder(Path("link"))
    assert read_plain(Path("not-there")) is None
    assert read_plain(Path("not", "there")) is None
