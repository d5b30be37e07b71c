"""Saved calls as files: which of them this user saved on this machine, and which came from others.

A saved call says which tool is called, with which arguments, at which server. In a file that
somebody else wrote, all of that is their choice. So a file carries a code made with a key that
stays in the user's folder: a file whose code is right may use the user's logins, headers and
proxies, any other file needs the user's word first.
"""

import hashlib
import hmac
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

import typer

from antiphon.cli.written_files import NotWritten, read_plain, write_new, write_own
from antiphon.client.errors import SavedCallInvalid
from antiphon.client.saved import SavedCall, load

_PURPOSE = b"antiphon saved call\0"
_SEALED = re.compile(r',"mac":"([0-9a-f]{64})"\}\s*\Z')
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class CallFile:
    """A saved call that was read from a file."""

    text: str
    saved: SavedCall
    is_own: bool
    """Whether this user saved it on this machine, or said so of what it came from."""


def key_file() -> Path:
    """Return where the key of this user is kept."""
    return Path(typer.get_app_dir("antiphon")) / "saved-calls.key"


def read_call(path: Path) -> CallFile:
    """Read a saved call.

    Raises:
        SavedCallInvalid: The file holds something else.
        OSError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SavedCallInvalid("not a saved call: the text is not UTF-8") from error
    saved = load(text)
    found, key = _SEALED.search(text), _read_key()
    if found is None or key is None:
        return CallFile(text, saved, is_own=False)
    is_own = hmac.compare_digest(_code(key, text[: found.start()] + "}"), found[1])
    return CallFile(text, saved, is_own)


def write_call(path: Path, text: str, *, is_own: bool) -> None:
    """Save a call; only one that the user stands for gets a code.

    Raises:
        NotWritten: There is something else at this path.
        OSError: It cannot be written.
    """
    if is_own:
        text = f'{text[:-1]},"mac":"{_code(_read_key() or _make_key(), text)}"}}'
    write_own(path, text, _is_call)


def check_place(path: Path) -> None:
    """Refuse a path where a call could not be saved, before there is one to save.

    Raises:
        NotWritten: There is something else at this path.
        OSError: It cannot be read.
    """
    found = read_plain(path)
    if found is not None and not _is_call(found[0]):
        raise NotWritten(f"{path} exists and is no saved call. Choose another name, or remove it")


def _is_call(content: bytes) -> bool:
    try:
        load(content.decode("utf-8"))
    except (UnicodeDecodeError, SavedCallInvalid):
        return False
    return True


def _code(key: bytes, text: str) -> str:
    return hmac.new(key, _PURPOSE + text.encode(), hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    """Return the user's key; None when there is none that only they can read."""
    try:
        found = read_plain(key_file())
    except (NotWritten, OSError):
        return None
    if found is None:
        return None
    content, mode = found
    text = content.decode("ascii", "replace").strip()
    if mode & (stat.S_IRWXG | stat.S_IRWXO) or not re.fullmatch(r"[0-9a-f]{64}", text):
        return None
    return bytes.fromhex(text)


def _make_key() -> bytes:
    """Make the user's key; another command may have made it in the meantime."""
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        write_new(key_file(), key.hex() + "\n")
    except NotWritten:
        kept = _read_key()
        if kept is None:
            raise NotWritten(
                f"{key_file()} is not a key that only you can read. Remove it, and try again"
            ) from None
        return kept
    except OSError as error:
        raise NotWritten(
            f"{key_file()}, the key that marks calls as yours, cannot be written: {error.strerror}"
        ) from None
    return key
