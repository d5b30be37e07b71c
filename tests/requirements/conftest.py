"""A server and a raw peer for each test."""

from collections.abc import AsyncIterator

import pytest

from antiphon import Server
from tests.requirements.demo_server import Peer, make_server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = make_server()
    async with made.running():
        yield made


@pytest.fixture
async def peer(server: Server) -> Peer:
    return Peer(server.asgi())
