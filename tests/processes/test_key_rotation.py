"""A key is replaced while several processes serve calls: the three steps of docs/keys.md."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.seal.keyring import Keyring, generate_key
from tests.child_processes import PATIENCE
from tests.processes.running import Several, fresh, ready
from tests.transports.wire import mirrored, request

MODULE = '''
from antiphon import Context, Server

server = Server("till")
FORM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def pay(book: str, number: int) -> int:
    with open(book, "a") as file:
        file.write(f"{number}\\n")
    return number


@server.tool
async def buy(ctx: Context, book: str, number: int) -> str:
    """Ask twice, with an effect between the questions."""
    first = await ctx.elicit("How much?", FORM, key="first")
    paid = await ctx.once("pay", pay, book, number)
    second = await ctx.elicit("How much more?", FORM, key="second")
    return f"{paid} {first['sum']} {second['sum']}"
'''
CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
PROCESSES = 4
AT_A_TIME = 2
CUSTOMERS = 8
THINK = 0.1
"""Seconds that a customer takes to answer: most calls wait while processes are replaced."""


class Fleet:
    """Processes that share a store and are replaced one by one, as a rolling deployment does."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._running: list[tuple[AsyncExitStack, Several]] = []
        self.rounds = 0
        self.sent_again = 0

    @property
    def urls(self) -> list[str]:
        return [process.url for _, process in self._running]

    async def roll_out(self, keys: str) -> list[str]:
        """Replace every process by one with these keys; return the logs of the new ones."""
        self._write(keys)
        old, logs = list(self._running), list[str]()
        for first in range(0, self._size, AT_A_TIME):
            together = range(first, min(first + AT_A_TIME, self._size))
            logs += await asyncio.gather(*(self._add() for _ in together))
            leaving = [old[number] for number in together if number < len(old)]
            self._running = [one for one in self._running if one not in leaving]
            await asyncio.gather(*(stack.aclose() for stack, _ in leaving))
        return logs

    def _write(self, keys: str) -> None:
        """Put the file of keys in place, whole, for its owner only."""
        draft = self._folder / "keys.new"
        draft.touch(mode=0o600)
        draft.write_text(keys.replace(",", "\n"))
        draft.replace(self._folder / "keys")

    async def _add(self) -> str:
        stack = AsyncExitStack()
        env = {
            "ANTIPHON_KEYS_FILE": str(self._folder / "keys"),
            "ANTIPHON_STORE": f"sqlite:///{self._folder / 'till.db'}",
            "PYTHONPATH": str(self._folder),
        }
        process = await stack.enter_async_context(
            ready(1, folder=self._folder, target="till:server", env=env)
        )
        self._running.append((stack, process))
        return process.log

    async def close(self) -> None:
        for stack, _ in self._running:
            await stack.aclose()


@asynccontextmanager
async def fleet(folder: Path, size: int = PROCESSES) -> AsyncIterator[Fleet]:
    (folder / "till.py").write_text(MODULE)
    running = Fleet(folder, size)
    try:
        yield running
    finally:
        await running.close()


async def send(http: httpx2.AsyncClient, fleet: Fleet, **params: Any) -> dict[str, Any]:
    """Send a round to any process; if that one has ended, to another, with the same token."""
    message = request(name="buy", meta=CAN, **params)
    headers = {name.decode(): value.decode() for name, value in mirrored(message)}
    del headers["host"]
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                answer = await http.post(random.choice(fleet.urls), json=message, headers=headers)
                fleet.rounds += 1
                return answer.json()["result"]
            except httpx2.TransportError:
                fleet.sent_again += 1


async def buy(http: httpx2.AsyncClient, fleet: Fleet, book: Path, number: int) -> str:
    arguments = {"book": str(book), "number": number}
    reply = await send(http, fleet, arguments=arguments)
    for key in ("first", "second"):
        await asyncio.sleep(THINK)
        answers = {key: {"action": "accept", "content": {"sum": number}}}
        reply = await send(
            http,
            fleet,
            arguments=arguments,
            requestState=reply["requestState"],
            inputResponses=answers,
        )
    return reply["content"][0]["text"]


@pytest.mark.timeout(240)  # sixteen processes are started one after the other
async def test_a_key_is_replaced_under_load_without_losing_a_call(tmp_path: Path) -> None:
    old, new = generate_key(), generate_key()
    book, ended = tmp_path / "book", asyncio.Event()
    completed: dict[int, list[int]] = {first: [] for first in range(CUSTOMERS)}

    async def customer(first: int) -> None:
        number = first
        while not ended.is_set():
            text = await buy(http, shop, book, number)
            assert text == f"{number} {number} {number}"
            completed[first].append(number)
            number += CUSTOMERS

    async def everybody_has_begun_anew() -> None:
        """Wait until no call is left that had begun before: the old key's tokens are used up."""
        before = {first: len(done) for first, done in completed.items()}
        while any(len(completed[first]) < count + 2 for first, count in before.items()):  # noqa: ASYNC110 - real calls pass meanwhile
            await asyncio.sleep(0.05)

    async with fleet(tmp_path) as shop, fresh() as http:
        await shop.roll_out(old)
        async with asyncio.TaskGroup() as customers:
            for first in range(CUSTOMERS):
                customers.create_task(customer(first))
            for keys in (f"{old},{new}", f"{new},{old}", new):
                logs = await shop.roll_out(keys)
                await everybody_has_begun_anew()
            ended.set()
    calls = sorted(number for done in completed.values() for number in done)
    paid = sorted(int(line) for line in book.read_text().splitlines())
    print(
        f"{PROCESSES} processes, each replaced three times under load: {len(calls)} calls, "
        f"{shop.rounds} rounds, {shop.sent_again} sent again, {len(paid)} effects, 0 lost"
    )
    assert paid == calls
    (new_id,) = [key.id.hex() for key in Keyring([new])]
    for log in logs:
        assert f"key {new_id} seals tokens; keys that open them: {new_id}" in log
        assert new not in log


async def test_the_log_names_the_keys_by_id_in_the_order_of_their_use(tmp_path: Path) -> None:
    keys = [generate_key(), generate_key()]
    first, second = (key.id.hex() for key in Keyring(keys))
    async with fleet(tmp_path, 1) as shop:
        log = (await shop.roll_out(",".join(keys)))[0]
    assert f"key {first} seals tokens; keys that open them: {first}, {second}" in log
    assert not any(key in log for key in keys)
