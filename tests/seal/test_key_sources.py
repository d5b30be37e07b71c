"""Keys in files and directories: one format, in an order that is told, and for few eyes only."""

import os
from pathlib import Path

import pytest

from antiphon import ConfigError, Seal, Server
from antiphon.seal.key_sources import keys_from, read_keys
from antiphon.seal.keyring import Keyring, generate_key

KEYS = [generate_key() for _ in range(3)]
IDS = [key.id for key in Keyring(KEYS)]


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def ids(path: Path) -> list[bytes]:
    return [key.id for key in read_keys(path)]


@pytest.mark.parametrize(
    "text",
    [
        "{0}\n{1}\n{2}\n",
        "{0},{1},{2}",
        "# newest first\n{0}  # since Monday\n\n{1}, {2}\r\n",
    ],
)
def test_a_file_holds_keys_in_their_order(text: str, tmp_path: Path) -> None:
    assert ids(written(tmp_path / "keys", text.format(*KEYS))) == IDS


def test_a_directory_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    data = tmp_path / "..2026"
    data.mkdir()
    for name, key in zip(("30", "10", "20"), (KEYS[2], KEYS[0], KEYS[1]), strict=True):
        written(data / name, key + "\n", 0o440)
    (tmp_path / "..data").symlink_to(data)
    for name in ("10", "20", "30"):
        (tmp_path / name).symlink_to(tmp_path / "..data" / name)
    tmp_path.chmod(0o1777)
    assert ids(tmp_path) == IDS, "as Kubernetes mounts a secret"


def test_a_link_that_leads_nowhere_is_a_key_that_is_missing(tmp_path: Path) -> None:
    written(tmp_path / "10", KEYS[0])
    (tmp_path / "20").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_can_use_is_refused(mode: int, tmp_path: Path) -> None:
    path = written(tmp_path / "keys", KEYS[0], mode)
    with pytest.raises(ConfigError, match="chmod 600") as refused:
        read_keys(path)
    assert KEYS[0] not in str(refused.value)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "keys", KEYS[0])
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:  # only root can give files away
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="another user"):
        read_keys(path)


def test_a_directory_in_which_others_can_replace_files_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "10", KEYS[0])
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="others can replace"):
        read_keys(tmp_path)
    tmp_path.chmod(0o755)
    assert ids(tmp_path) == IDS[:1]


@pytest.mark.parametrize("text", ["", "# none\n", "short", "{0} {0}"])
def test_what_holds_no_keys_is_refused_without_showing_it(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "keys", text.format(*KEYS))
    with pytest.raises(ConfigError) as refused:
        read_keys(path)
    assert KEYS[0] not in str(refused.value)
    assert str(path) in str(refused.value)


def test_what_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")
    with pytest.raises(ConfigError, match="larger than"):
        read_keys(written(tmp_path / "large", "x" * 70_000))
    for number in range(65):
        written(tmp_path / f"{number:02}", KEYS[0])
    with pytest.raises(ConfigError, match="more than 64"):
        read_keys(tmp_path)


def test_a_server_takes_keys_from_a_file_by_setting_or_environment(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", "\n".join(KEYS[:2]))
    by_setting = Server("shop", seal=Seal(keys_file=path), environ={})
    by_environment = Server("shop", environ={"ANTIPHON_KEYS_FILE": str(path)})
    for server in (by_setting, by_environment):
        assert server.parts.keys.ids == [id.hex() for id in IDS[:2]]
        assert not server.parts.keys.made


def test_two_sources_at_once_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "keys", KEYS[0])
    with pytest.raises(ConfigError, match="both set"):
        keys_from({"ANTIPHON_KEYS": KEYS[1], "ANTIPHON_KEYS_FILE": str(path)})
    with pytest.raises(ConfigError, match="not both"):
        Seal(keys=[KEYS[1]], keys_file=path)
