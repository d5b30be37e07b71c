"""Keys that are kept beside a store: whole, for their owner only, never replaced."""

import os
from pathlib import Path

import pytest

from antiphon import Context, Server
from antiphon.errors import ConfigError
from antiphon.protocol.capabilities import TASKS
from antiphon.seal.key_file import keep_keys, key_file, read_key_file
from antiphon.seal.keyring import generate_key
from antiphon.stores.memory import MemoryStore
from tests.requirements.demo_server import Peer, Room


def test_a_file_of_keys_is_for_its_owner_only_and_is_read_back(tmp_path: Path) -> None:
    path, keys = tmp_path / "store.db.keys", [generate_key()]
    assert read_key_file(path) == []
    keep_keys(path, keys)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path) == keys
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    keep_keys(path, keys)


def test_keys_that_another_process_has_made_are_not_replaced(tmp_path: Path) -> None:
    path, first = tmp_path / "store.db.keys", [generate_key()]
    keep_keys(path, first)
    with pytest.raises(ConfigError, match="start this one again"):
        keep_keys(path, [generate_key()])
    assert read_key_file(path) == first


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_of_keys_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "store.db.keys"
    keep_keys(path, [generate_key()])
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key_file(path)


def test_a_file_of_keys_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db.keys"
    keep_keys(path, [generate_key()])
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ConfigError, match="another user"):
        read_key_file(path)


def test_what_are_no_keys_is_refused_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "store.db.keys"
    path.write_text("correct-horse-battery-staple")
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        read_key_file(path)
    assert "horse" not in str(refused.value)


# --- a server with a file for a store -----------------------------------------------------------


def desk(file: Path, **environ: str) -> Server:
    server = Server("desk", store=f"sqlite:///{file}", environ=environ)

    @server.tool(task="allowed")
    async def book(ctx: Context) -> str:
        return (await ctx.elicit("Which room?", Room)).room

    return server


CAPABLE = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}


async def task_of(server: Server) -> str:
    made = await Peer(server.asgi()).call("book", capabilities=CAPABLE)
    return made.result["taskId"]


async def shown(server: Server, id: str) -> str:
    async with server.running():
        peer = Peer(server.asgi(), {"mcp_name": id})
        answer = await peer.ask("tasks/get", taskId=id, capabilities=CAPABLE)
    return answer.result["taskId"]


@pytest.mark.parametrize("later", [{}, {"ANTIPHON_KEYS": generate_key()}], ids=["none", "set"])
async def test_a_task_outlives_the_process_that_made_its_own_keys(
    tmp_path: Path, later: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ledger.db"
    first = desk(file)
    async with first.running():
        id = await task_of(first)
    assert f"kept in {key_file(file)}" in caplog.text
    assert await shown(desk(file, **later), id) == id


async def test_a_store_in_a_folder_that_does_not_exist_begins_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"misspelt of the store and its keys does not exist"):
        async with desk(tmp_path / "misspelt" / "ledger.db").running():
            pass
    assert os.listdir(tmp_path) == []


def test_nothing_is_written_before_a_server_runs(tmp_path: Path) -> None:
    desk(tmp_path / "ledger.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_is_no_file_needs_keys() -> None:
    class Database(MemoryStore):
        durable = True

    server = Server("desk", store=Database(), environ={})
    with pytest.raises(ConfigError, match="ANTIPHON_KEYS") as refused:
        async with server.running():
            pass
    assert "antiphon keygen" in str(refused.value)
