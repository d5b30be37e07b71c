"""The example of docs/keys.md: tokens sealed under keys of a key service (KMS).

Envelope encryption: the service makes a data key and returns it twice, in the clear and wrapped by
a master key that never leaves it. Messages are sealed here with the data key, and carry it wrapped.
One request to the service serves many messages in both directions.
"""

import asyncio
import os
import time
from collections import OrderedDict
from typing import Protocol

import httpx2
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon import Seal, Server, StoreError

NONCE = 12


class KeyService(Protocol):
    """What a key service can do."""

    async def new_data_key(self) -> tuple[bytes, bytes]:
        """Return a new data key: in the clear, and wrapped."""
        ...

    async def unwrap(self, wrapped: bytes) -> bytes:
        """Return a data key in the clear; raises ValueError if the service did not wrap it."""
        ...


class Envelope:
    """A codec for `Seal(codec=...)`: data keys of a service, kept for a while and bounded."""

    def __init__(
        self,
        service: KeyService,
        *,
        seconds: float = 300.0,
        messages: int = 1_000_000,
        kept: int = 256,
    ) -> None:
        """Bound how long and for how much a data key is used.

        Args:
            service: Makes and unwraps data keys.
            seconds: A data key is used for so long, in both directions: a master key that was
                revoked is noticed after it.
            messages: Sealed with one data key at most. Random nonces of 96 bits stay apart.
            kept: Data keys in memory for opening; the oldest gives way.
        """
        self._service = service
        self._seconds = seconds
        self._messages = messages
        self._most = kept
        self._ciphers: OrderedDict[bytes, tuple[AESGCM, float]] = OrderedDict()
        self._sealing = b""
        self._left = 0
        self._asking = asyncio.Lock()

    async def seal(self, data: bytes, aad: bytes) -> bytes:
        """Encrypt under the data key of the moment, and put it in front, wrapped."""
        wrapped, cipher = await self._current()
        nonce = os.urandom(NONCE)
        head = len(wrapped).to_bytes(2, "big") + wrapped
        return head + nonce + cipher.encrypt(nonce, data, head + aad)

    async def open(self, data: bytes, aad: bytes) -> bytes:
        """Decrypt with the data key that the message carries."""
        length = 2 + int.from_bytes(data[:2], "big")
        head, nonce = data[:length], data[length : length + NONCE]
        cipher = self._kept(head[2:]) or await self._unwrapped(head[2:])
        return cipher.decrypt(nonce, data[length + NONCE :], head + aad)

    async def _current(self) -> tuple[bytes, AESGCM]:
        cipher = self._kept(self._sealing)
        if cipher is None or self._left <= 0:
            async with self._asking:  # one request, however many rounds wait for it
                cipher = self._kept(self._sealing)
                if cipher is None or self._left <= 0:
                    plain, self._sealing = await self._service.new_data_key()
                    self._left = self._messages
                    cipher = self._keep(self._sealing, plain)
        self._left -= 1
        return self._sealing, cipher

    async def _unwrapped(self, wrapped: bytes) -> AESGCM:
        async with self._asking:
            kept = self._kept(wrapped)
            return kept or self._keep(wrapped, await self._service.unwrap(wrapped))

    def _kept(self, wrapped: bytes) -> AESGCM | None:
        cipher, until = self._ciphers.get(wrapped, (None, 0.0))
        return cipher if time.monotonic() < until else None

    def _keep(self, wrapped: bytes, plain: bytes) -> AESGCM:
        cipher = AESGCM(plain)
        self._ciphers[wrapped] = (cipher, time.monotonic() + self._seconds)
        self._ciphers.move_to_end(wrapped)
        if len(self._ciphers) > self._most:
            self._ciphers.popitem(last=False)
        return cipher


class HttpKeyService:
    """A key service over HTTP; put the client of yours in its place."""

    def __init__(self, url: str) -> None:
        """Name the service."""
        self._url = url

    async def new_data_key(self) -> tuple[bytes, bytes]:
        """Return a new data key: in the clear, and wrapped."""
        answer = await self._post("/data-key", b"")
        return bytes.fromhex(answer["plain"]), bytes.fromhex(answer["wrapped"])

    async def unwrap(self, wrapped: bytes) -> bytes:
        """Return a data key in the clear; raises ValueError if the service did not wrap it."""
        return bytes.fromhex((await self._post("/unwrap", wrapped))["plain"])

    async def _post(self, path: str, body: bytes) -> dict[str, str]:
        try:
            async with httpx2.AsyncClient(base_url=self._url, timeout=5.0) as http:
                answer = await http.post(path, content=body)
        except httpx2.TransportError as error:
            # The round is refused as unavailable, and its token stays good.
            raise StoreError(f"the key service cannot be reached: {type(error).__name__}") from None
        if answer.status_code >= 500:
            raise StoreError(f"the key service failed: {answer.status_code}")
        if answer.status_code != 200:
            raise ValueError("the key service refused the data key")
        return answer.json()


def make_server(url: str, store: str) -> Server:
    """Return a server that keeps no key of its own."""
    return Server("vault", store=store, seal=Seal(codec=Envelope(HttpKeyService(url))))
