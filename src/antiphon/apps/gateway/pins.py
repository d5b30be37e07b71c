"""Digests of tools that an operator has seen: a new or changed tool needs their word first."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from antiphon.errors import ConfigError
from antiphon.protocol.text import safe

_LARGEST = 16 * 1024 * 1024

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ToolPins:
    """The digests of a lock file, by mount and name of the tool at its server."""

    def __init__(self, known: Mapping[str, Mapping[str, str]], *, accepts: bool = False) -> None:
        """Take digests; `accepts` takes every tool as it is now."""
        self._known = known
        self._accepts = accepts
        self.seen: dict[str, dict[str, str]] = {}
        """The digests of what is listed now."""

    @classmethod
    def read(cls, file: Path) -> "ToolPins":
        """Read a lock file.

        Raises:
            ConfigError: It cannot be read, or it is not a lock file.
        """
        try:
            with file.open("rb") as stream:
                return cls(_decode(stream.read(_LARGEST)))
        except FileNotFoundError:
            raise ConfigError(
                f"there is no lock file {file}. Look at what the servers offer, then write it with "
                "--accept"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{file} is not a lock file of a gateway: {error}") from None

    def differs(self, mount: str, entry: Mapping[str, Any]) -> str:
        """Return why a tool is not the one that the operator has seen; empty if it is."""
        name, digest = str(entry["name"]), tool_digest(entry)
        self.seen.setdefault(mount, {})[name] = digest
        if self._accepts:
            return ""
        known = self._known.get(mount, {}).get(name)
        if known is None:
            return "it is new: not in the lock file"
        return "" if known == digest else "it has changed since the lock file was written"

    def compared(self, now: "ToolPins") -> list[str]:
        """Return a line for each tool that is new, has changed or is gone, beside what is seen."""
        before = {
            (mount, tool): one
            for mount, tools in self._known.items()
            for tool, one in tools.items()
        }
        after = {
            (mount, tool): one for mount, tools in now.seen.items() for tool, one in tools.items()
        }
        words = {
            key: "new" if key not in before else "gone" if key not in after else "changed"
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        }
        return [
            f"{word}: {safe(mount, 100)} {safe(tool, 100)}" for (mount, tool), word in words.items()
        ]

    def dump(self) -> str:
        """Return the text of a lock file for what is listed now."""
        ordered = {mount: dict(sorted(tools.items())) for mount, tools in sorted(self.seen.items())}
        return msgspec.json.format(msgspec.json.encode(ordered), indent=2).decode() + "\n"


def is_lock(content: bytes) -> bool:
    """Return whether a file is a lock file."""
    try:
        _decode(content)
    except msgspec.DecodeError:
        return False
    return True


def _decode(content: bytes) -> dict[str, dict[str, Digest]]:
    return msgspec.json.decode(content, type=dict[str, dict[str, Digest]])


def tool_digest(entry: Mapping[str, Any]) -> str:
    """Return the digest of all that a server says of a tool."""
    return sha256(msgspec.json.encode(entry, order="deterministic")).hexdigest()
