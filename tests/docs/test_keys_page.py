"""docs/keys.md: the example of a key service runs against one that is a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon import Context, Seal, Server, StoreError
from antiphon.testing import Rounds
from docs_src.envelope import Envelope, HttpKeyService
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PROCESS = ROOT / "tests" / "seal" / "key_service.py"
FORM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}


class Service:
    """The key service, its master keys, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "masters"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.masters: list[str] = []

    def master(self, *, retire: bool = False) -> None:
        """Put a new master key first; those before it stay good unless they are retired."""
        new = os.urandom(32).hex()
        self.masters = [new] if retire else [new, *self.masters]
        self.file.write_text("\n".join(self.masters))

    @property
    def asked(self) -> list[str]:
        return httpx2.get(self.url).json()["asked"]

    @contextmanager
    def running(self) -> Iterator[None]:
        process = subprocess.Popen(
            [sys.executable, str(PROCESS), str(self.port), str(self.file)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    service = Service(tmp_path)
    service.master()
    return service


def make(codec: Any) -> Any:
    def server(store: Any, clock: Any, entropy: Any) -> Server:
        made = Server("vault", store=store, clock=clock, entropy=entropy, seal=Seal(codec=codec()))

        @made.tool
        async def provision(ctx: Context, name: str) -> str:
            """Ask where."""
            where = await ctx.elicit("Where?", FORM, key="where")
            return f"{name} in {where['region']}"

        return made

    return server


def envelopes(service: Service, **bounds: Any) -> Any:
    return make(lambda: Envelope(HttpKeyService(service.url), **bounds))


async def calls(rounds: Rounds, count: int) -> None:
    for number in range(count):
        done = await rounds.call("provision", {"name": "db"}, answers={"where": {"region": "eu"}})
        assert done.text == "db in eu", number


async def test_one_data_key_serves_many_calls(service: Service) -> None:
    with service.running():
        async with Rounds(envelopes(service), fresh=False) as rounds:
            await calls(rounds, 20)
        assert service.asked == ["/data-key"]


async def test_another_process_unwraps_the_data_key_once(service: Service) -> None:
    with service.running():
        async with Rounds(envelopes(service)) as rounds:  # a new server for every round
            await calls(rounds, 2)
        assert service.asked.count("/unwrap") == 2


async def test_a_data_key_is_used_for_so_many_messages_and_so_long(service: Service) -> None:
    with service.running():
        async with Rounds(envelopes(service, messages=5), fresh=False) as rounds:
            await calls(rounds, 10)
        assert service.asked.count("/data-key") == 2
        async with Rounds(envelopes(service, seconds=0.0), fresh=False) as rounds:
            await calls(rounds, 2)
        assert service.asked.count("/data-key") == 4


async def test_a_master_key_is_replaced_and_what_a_retired_one_wrapped_is_refused(
    service: Service,
) -> None:
    with service.running():
        async with Rounds(envelopes(service)) as rounds:
            asked = await rounds.begin("provision", {"name": "db"})
            service.master()
            assert (await rounds.answer(asked, {"where": {"region": "eu"}})).text == "db in eu"
            asked = await rounds.begin("provision", {"name": "db"})
            service.master(retire=True)
            assert (await rounds.answer(asked, {"where": {"region": "eu"}})).code == -32602


async def test_a_service_that_is_down_refuses_the_round_as_unavailable_and_loses_nothing(
    service: Service,
) -> None:
    async with Rounds(envelopes(service)) as rounds:
        with service.running():
            asked = await rounds.begin("provision", {"name": "db"})
        down = await rounds.answer(asked, {"where": {"region": "eu"}})
        assert down.code == -32603
        assert "try again" in down.text
        with service.running():
            done = await rounds.answer(asked, {"where": {"region": "eu"}})
            assert done.text == "db in eu"


async def test_what_was_sealed_for_one_thing_does_not_open_for_another(service: Service) -> None:
    codec = Envelope(HttpKeyService(service.url))
    with service.running():
        sealed = await codec.seal(b"data", b"token")
        assert await codec.open(sealed, b"token") == b"data"
        for touched in (sealed[:-1] + bytes([sealed[-1] ^ 1]), b"\0\0" + sealed[2:], b""):
            with pytest.raises(Exception, match=r".*"):
                await codec.open(touched, b"token")
        with pytest.raises(Exception, match=r".*"):
            await codec.open(sealed, b"at-rest")


async def test_data_keys_in_memory_are_bounded(service: Service) -> None:
    codec = Envelope(HttpKeyService(service.url), messages=1, kept=4)
    with service.running():
        for _ in range(10):
            await codec.seal(b"data", b"")
    assert len(codec._ciphers) == 4  # pyright: ignore[reportPrivateUsage]


def test_the_page_names_what_the_code_reads() -> None:
    page = (ROOT / "docs" / "keys.md").read_text()
    for word in ("ANTIPHON_KEYS_FILE", "keys_file=", "chmod 600"):
        assert word in page
    assert issubclass(StoreError, Exception)
    assert re.search(r"`old,new`.*`new,old`", page, re.DOTALL)
