"""The login of each server, in the keyring of the system or in a private file.

For each server there is a file in the user's folder that only they can read. It holds the login, or
says that the keyring of the system holds it.
"""

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import typer

from antiphon.cli.written_files import write_own

_SERVICE = "antiphon"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class _KeptFile(msgspec.Struct):
    url: str
    login: dict[str, Any] | None = None
    """None when the keyring holds it."""


class KeyringClosed(Exception):
    """The keyring of the system does not open: it is locked, or gone."""


class SavedLogin:
    """Where the login of one server is kept."""

    def __init__(self, url: str, place: Path | None = None) -> None:
        self.url = _one_spelling(url)
        name = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self._file = (place or folder()) / f"{name}.json"

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return self._file.exists()

    def load(self) -> bytes | None:
        """Return what was kept; None when there is nothing, or it cannot be read."""
        kept = self._in_file()
        if kept is None:
            return None
        if kept.login is not None:
            return msgspec.json.encode(kept.login)
        try:
            text = self._in_keyring()
        except KeyringClosed:
            return None
        return None if text is None else text.encode()

    def save(self, login: bytes) -> None:
        """Keep a login, in the keyring where there is one that takes it."""
        kept = _KeptFile(self.url, None if self._to_keyring(login) else msgspec.json.decode(login))
        text = msgspec.json.encode(kept).decode()
        write_own(self._file, text, lambda _: True)  # the folder is the user's

    def forget(self) -> None:
        """Keep nothing any more. Idempotent.

        Raises:
            KeyringClosed: The keyring holds it, and does not give it up; it is still kept.
        """
        kept = self._in_file()
        try:
            if self._in_keyring() is not None:
                self._remove_from_keyring()
        except KeyringClosed:
            if kept is not None and kept.login is None:
                raise
        self._file.unlink(missing_ok=True)

    def _in_file(self) -> _KeptFile | None:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=_KeptFile)
        except (OSError, msgspec.DecodeError):
            return None
        return kept if kept.url == self.url else None

    def _in_keyring(self) -> str | None:
        """Return what the keyring holds.

        Raises:
            KeyringClosed: It does not tell.
        """
        keyring = _keyring()
        if keyring is None:
            raise KeyringClosed
        try:
            return keyring.get_password(_SERVICE, self.url)
        except Exception as error:  # whatever its backend raises: locked, or gone
            raise KeyringClosed from error

    def _remove_from_keyring(self) -> None:
        try:
            _keyring().delete_password(_SERVICE, self.url)
        except Exception as error:
            raise KeyringClosed from error

    def _to_keyring(self, login: bytes) -> bool:
        keyring = _keyring()
        if keyring is None:
            return False
        try:
            keyring.set_password(_SERVICE, self.url, login.decode())
        except Exception:  # noqa: BLE001 - locked, too long for it, or gone: then a private file
            return False
        return True


def _one_spelling(url: str) -> str:
    """Return a URL as all spellings of it are kept: of host, default port, empty path."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return url
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{port}"
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme, host, path, parts.query, ""))


def folder() -> Path:
    """Return the folder of the files."""
    return Path(typer.get_app_dir("antiphon")) / "logins"


def _keyring() -> Any:
    """Return the keyring of the system; None where there is none that can be used."""
    try:
        import keyring
        from keyring.backends import fail as missing
    except ImportError:
        return None
    backend: Any = keyring.get_keyring()
    return None if isinstance(backend, missing.Keyring) else backend


def all_logins() -> list[str]:
    """Return the URLs of all servers that have a login."""
    found: list[str] = []
    for file in sorted(folder().glob("*.json")):
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=_KeptFile).url)
        except (OSError, msgspec.DecodeError):
            continue
    return found


def forget_unreadable() -> None:
    """Remove what is left in the folder when every login has been forgotten: damaged, half written.

    It may hold tokens all the same.
    """
    for file in folder().glob("*"):
        file.unlink(missing_ok=True)
