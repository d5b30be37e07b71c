"""A keyring in a file, so that what goes through the `keyring` package can be seen."""

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend


class FileKeyring(KeyringBackend):
    priority = 1  # pyright: ignore[reportAssignmentType]

    def _all(self) -> dict[str, str]:
        if os.environ.get("TEST_KEYRING_LOCKED"):
            raise RuntimeError("locked")
        place = Path(os.environ["TEST_KEYRING"])
        return json.loads(place.read_text()) if place.exists() else {}

    def _write(self, found: dict[str, str]) -> None:
        Path(os.environ["TEST_KEYRING"]).write_text(json.dumps(found))

    def get_password(self, service: str, username: str) -> str | None:
        return self._all().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._write({**self._all(), f"{service} {username}": password})

    def delete_password(self, service: str, username: str) -> None:
        found = self._all()
        del found[f"{service} {username}"]
        self._write(found)
