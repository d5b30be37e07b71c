"""`antiphon new` and `antiphon install`: what they write works, what they must not touch stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.cli.authoring.install import CLIENTS
from antiphon.client import Client, Deny
from tests.cli.running import ANTIPHON, antiphon, environment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=50
    )


def test_a_new_project_passes_its_own_test_in_its_folder(folder: Path) -> None:
    made = run_in(folder, *ANTIPHON, "new", "parcel-shop")
    assert made.returncode == 0, made.stderr
    project = folder / "parcel-shop"
    assert sorted(path.name for path in project.iterdir()) == [
        "README.md", "parcel_shop.py", "test_parcel_shop.py",
    ]  # fmt: skip
    tested = run_in(project, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "4 passed" in tested.stdout  # each test with new servers and with one


def test_a_folder_that_exists_is_not_written_into(folder: Path) -> None:
    (folder / "shop").mkdir()
    ran = antiphon("new", "shop")
    assert ran.code == 2
    assert list((folder / "shop").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("", "../x", "Shop", "1shop", "class", "a b", "-x", "é", "x;y", "_x", "<b>", "x" * 65),
        *("antiphon", "json", "asyncio", "pydantic", "mcp", "pytest", "token", "sys", "test"),
    ],
)
def test_a_name_that_cannot_be_a_module_or_hides_one_is_refused(folder: Path, name: str) -> None:
    assert antiphon("new", "--", name).code == 2
    assert list(folder.iterdir()) == []


def project(folder: Path) -> Path:
    assert antiphon("new", "shop").code == 0
    return folder / "shop" / "shop.py"


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_printed_command_starts_the_server_from_any_folder(
    folder: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(folder)
    monkeypatch.chdir(file.parent)
    for name in (str(file), "shop:server"):
        ran = antiphon("install", name, "--client", client)
        entry = json.loads(ran.out)[CLIENTS[client].member]["shop"]
        command = [entry["command"], *entry["args"]]
        env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        async with Client(command, answers=Deny(), env=env, cwd="/") as started:
            result = await started.call_tool("ship", {"order": "A1"})
        assert "declined" in str(result.content[0]).lower()


def written(folder: Path, *more: str) -> Path:
    path = folder / "client.json"
    ran = antiphon("install", str(folder / "shop" / "shop.py"), "--client", "cursor", "--write",
                   "--file", str(path), *more)  # fmt: skip
    assert ran.code == 0, ran.err
    return path


def test_what_else_is_in_the_file_stays_and_the_file_before_is_kept(folder: Path) -> None:
    project(folder)
    other = {"command": "other", "args": ["ä"]}
    before = {"theme": "dark", "zoom": 1.25, "mcpServers": {"other": other}}
    (folder / "client.json").write_text(json.dumps(before))
    path = written(folder)
    after = json.loads(path.read_text("utf-8"))
    assert after["mcpServers"].pop("shop")["args"][-1] == "--stdio"
    assert after == before
    assert json.loads((folder / "client.json.before-antiphon").read_text()) == before


def test_writing_twice_changes_nothing_and_a_moved_server_is_replaced(folder: Path) -> None:
    file = project(folder)
    path = written(folder)
    first = path.read_text()
    written(folder)
    assert path.read_text() == first
    assert not path.with_name("client.json.before-antiphon").exists()
    moved = file.with_name("moved.py")
    file.rename(moved)
    ran = antiphon("install", str(moved), "--client", "cursor", "--write", "--file", str(path))
    assert ran.code == 0
    assert "moved.py" in path.read_text()


def test_the_mode_of_the_file_and_odd_letters_stay(folder: Path) -> None:
    project(folder)
    path = folder / "client.json"
    path.write_text('{"half": "\\ud800", "whole": "ä"}')
    path.chmod(0o644)
    written(folder)
    after = json.loads(path.read_text("utf-8"))
    assert (after["half"], after["whole"]) == ("\ud800", "ä")
    assert "shop" in after["mcpServers"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.with_name("client.json.before-antiphon").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{\n  // mine\n  "mcpServers": {}\n}', "comments"),
        ('{"mcpServers": {},}', "not plain JSON"),
        ('{"mcpServers": {}, "mcpServers": {}}', "twice"),
        ("[]", "no JSON object"),
        ('{"mcpServers": []}', "is no object"),
        ('{"mcpServers": {"shop": {"command": "theirs"}}}', "another server called 'shop'"),
        (b"\xff\xfe", "cannot be read"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1e400}', "the number 1e400 cannot be kept"),
        ('{"a": 1.00000000000000000001}', "cannot be kept"),
        (b'\xef\xbb\xbf{"mcpServers": {}}', "not plain JSON"),
        ("[" * 100_000, "not plain JSON"),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone_and_the_reason_said(
    folder: Path, text: str | bytes, why: str
) -> None:
    file = project(folder)
    path = folder / "client.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = antiphon("install", str(file), "--client", "cursor", "--write", "--file", str(path))
    assert ran.code == 1
    assert why in " ".join(ran.err.split())
    assert path.read_bytes() == (text if isinstance(text, bytes) else text.encode())
    assert sorted(one.name for one in folder.iterdir()) == ["client.json", "shop"]


def test_an_unknown_client_is_refused_with_the_known_ones(folder: Path) -> None:
    project(folder)
    ran = antiphon("install", "shop/shop.py", "--client", "emacs")
    assert ran.code == 2
    assert "claude-code" in ran.err
