"""The keys of an operator's command that is given the URL of a store.

They open what the store keeps sealed, and prove what the command writes to it.
"""

import os
import secrets
from datetime import UTC, datetime, timedelta

import msgspec

from antiphon.ports import Settlement, Store
from antiphon.seal.keys_in_use import find_keys
from antiphon.seal.policy import Seal
from antiphon.seal.sealer import Sealer


class OperatorKeys:
    """Keys of the server whose rows a command reads."""

    def __init__(self, sealer: Sealer) -> None:
        """Take what seals for that server."""
        self._sealer = sealer

    async def protect(self, data: bytes, place: str) -> bytes:
        """Seal what the server will open."""
        sealed = self._sealer.protect(data, place)
        return sealed if isinstance(sealed, bytes) else await sealed

    async def reveal(self, data: bytes, place: str) -> bytes:
        """Open what the server has sealed.

        Raises:
            TokenRefused: The keys are others, or it is something else.
        """
        plain = self._sealer.reveal(data, place)
        return plain if isinstance(plain, bytes) else await plain

    async def sign(self, said: Settlement) -> Settlement:
        """Return what an operator says with a MAC, by which the server knows it."""
        mac = await self.protect(said.digest(self._sealer.audience), said.place)
        return msgspec.structs.replace(said, mac=mac)


def keys_for(store: Store) -> OperatorKeys | None:
    """Return the keys in the environment, or those beside the file of a store; None without.

    Raises:
        ConfigError: One of these places holds anything but keys.
    """
    found = find_keys(Seal(), os.environ, secrets.token_bytes, store)
    if found.made:
        return None
    # Nothing that lasts for a time is sealed here: no token, only what stays in a store.
    sealer = Sealer(
        found.keyring,
        ttl=timedelta(minutes=1),
        audience=store.server,
        clock=lambda: datetime.now(UTC).timestamp(),
        entropy=secrets.token_bytes,
    )
    return OperatorKeys(sealer)
