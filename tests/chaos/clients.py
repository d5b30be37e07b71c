"""Clients that call, answer, repeat and go away; and what came of it, held against what happened.

A client repeats a round with the same token and answers until it is told something definite. Some
rounds are sent twice at once, and some replies are not waited for. Where an effect is of unknown
end, an operator looks whether it happened, says so, and the client goes on.
"""

import asyncio
import random
import re
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from antiphon import Seal
from antiphon.engine.effects import effect_place
from antiphon.ports import Store
from antiphon.seal.sealer import Sealer
from tests.chaos.failpoints import POINTS, Points
from tests.transports.wire import mirrored, request

CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
KEYS = ("one", "two", "three")
_UNCERTAIN = re.compile(r"effect '([^']+)' of call (\w+) was started")
_AGAIN = ("store cannot be reached", "too many requests wait")


class Broken(Exception):
    """No reply, or one that says nothing about the round."""


@dataclass
class Told:
    """What all clients together were told."""

    done: dict[str, str] = field(default_factory=dict)
    """Final texts by label."""

    uncertain: list[str] = field(default_factory=list)
    """Effects of unknown end."""

    words: dict[str, list[str]] = field(default_factory=dict)
    """The answers that were given, by label."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Operator:
    """Settles effects of unknown end by what the book of effects says."""

    def __init__(self, store: Store, keys: str, folder: Path) -> None:
        seal = Seal(keys=[keys])
        keyring, _ = seal.keyring({}, secrets.token_bytes)
        self._sealer = Sealer(
            keyring, ttl=seal.ttl, audience="", clock=time.time, entropy=secrets.token_bytes
        )
        self._store = store
        self._folder = folder

    async def settle(self, label: str, call: str, key: str) -> bool:
        """Say how the effect ended; the process that had begun it is dead."""
        nonce = Truth(self._folder).nonces.get((label, key.removeprefix("act ")))
        result = None
        if nonce is not None:
            sealed = self._sealer.protect(msgspec.json.encode(nonce), effect_place(call, key))
            result = sealed if isinstance(sealed, bytes) else await sealed
        return await self._store.decide(call, key, result=result)


class Client:
    """One client that makes one call after another."""

    def __init__(
        self, port: int, told: Told, operator: Operator, *, twice: float, drop: float
    ) -> None:
        self._port = port
        self._operator = operator
        self._told = told
        self._twice = twice
        self._drop = drop
        self._dice = random.Random(secrets.randbits(64))

    async def call(self, label: str) -> None:
        """Make one call to its end."""
        told = self._told
        words = told.words[label] = [secrets.token_hex(3) for _ in KEYS]
        params: dict[str, Any] = {"arguments": {"label": label}}
        for number in range(1, 5):
            result = await self._settled_round(label, number, params)
            if result.get("resultType") != "input_required":
                break
            (key,) = result["inputRequests"]
            if key != KEYS[number - 1]:
                return told.wrong.append(f"{label}: round {number} asked for {key}")
            answer = {"action": "accept", "content": {"word": words[number - 1]}}
            params = {
                "arguments": {"label": label},
                "requestState": result["requestState"],
                "inputResponses": {key: answer},
            }
        self._note(label, number, result)
        return None

    def _note(self, label: str, number: int, result: dict[str, Any]) -> None:
        told = self._told
        if result.get("resultType") != "complete":
            return told.wrong.append(f"{label}: {result}")
        text = result["content"][0]["text"]
        if result["isError"] or number != 4:
            return told.wrong.append(f"{label}: {text}")
        told.done[label] = text
        return None

    async def _settled_round(
        self, label: str, number: int, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Send a round; while an effect in it is of unknown end, have it settled and go on."""
        while True:
            result = await self._round(label, number, params)
            found = _UNCERTAIN.search(str(result.get("content", ""))) if result["isError"] else None
            if found is None:
                return result
            key, call = found[1], found[2]
            self._told.uncertain.append(f"{call}/{key}")
            if not await self._operator.settle(label, call, key):
                self._told.wrong.append(f"{label}: {key} was not to be settled")
                return result

    async def _round(self, label: str, number: int, params: dict[str, Any]) -> dict[str, Any]:
        """Send a round until something definite comes back; every copy must be told the same."""
        counts = self._told.counts
        while True:
            counts["rounds sent"] += 1
            if self._dice.random() < self._drop:
                counts["replies dropped"] += 1
                await self._send(params, stay=False)
                continue
            copies = 2 if number > 1 and self._dice.random() < self._twice else 1
            counts["rounds sent twice"] += copies - 1
            sent = (self._send(params) for _ in range(copies))
            replies = await asyncio.gather(*sent, return_exceptions=True)
            results: list[dict[str, Any]] = []
            for reply in replies:
                if isinstance(reply, dict):
                    results.append(reply)
                elif isinstance(reply, Broken):
                    counts[f"replies broken: {reply}"] += 1
                elif isinstance(reply, BaseException):
                    raise reply
            recorded = [one for one in results if not one.get("isError")]
            counts["copies compared"] += max(len(recorded) - 1, 0)
            if any(one != recorded[0] for one in recorded[1:]):
                self._told.wrong.append(f"{label}: copies of round {number} were told differently")
            if results:
                return {"isError": False, **(recorded or results)[0]}
            # What a client that is told to come again does; a spinning one would say less.
            await asyncio.sleep(self._dice.uniform(0.02, 0.1))

    async def _send(self, params: dict[str, Any], *, stay: bool = True) -> dict[str, Any]:
        message = request(name="story", meta=CAN, **params)
        body = msgspec.json.encode(message)
        head = b"".join(b"%s: %s\r\n" % pair for pair in mirrored(message) if pair[0] != b"host")
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
                b"content-length: %d\r\n%s\r\n%s" % (len(body), head, body)
            )
            await writer.drain()
            if not stay:
                # Half go away at once, half when the reply begins to come.
                return {"first": await reader.read(1) if self._dice.random() < 0.5 else b""}
            return _read(await reader.read())
        except OSError as error:
            raise Broken(type(error).__name__) from error
        finally:
            writer.close()


def _read(reply: bytes) -> dict[str, Any]:
    head, _, body = reply.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    if status in {"502", "504"}:
        raise Broken(f"status {status}")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    if length is None or len(body) != int(length[1]):
        raise Broken("cut short")
    message = msgspec.json.decode(body)
    if "result" in message:
        return message["result"]
    text = message["error"]["message"]
    if any(words in text for words in _AGAIN):
        raise Broken(text)
    return {"resultType": "refused", "isError": True, "content": message["error"]}


async def play(
    port: int,
    operator: Operator,
    folder: Path,
    *,
    clients: int,
    twice: float = 0.5,
    drop: float = 0.1,
) -> Told:
    """Let clients call at the same time, each at least once, until every failpoint is used up."""
    told = Told()

    async def lane(number: int) -> None:
        client = Client(port, told, operator, twice=twice, drop=drop)
        turn = 0
        while turn == 0 or Points.armed(folder):
            turn += 1
            await client.call(f"c{number}-{turn}")

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(lane(number))
    return told


class Truth:
    """What happened, from the files that the servers wrote."""

    def __init__(self, folder: Path) -> None:
        self.effects: Counter[tuple[str, str]] = Counter()
        self.nonces: dict[tuple[str, str], str] = {}
        for line in (folder / "effects").read_text().splitlines():
            label, key, nonce, _ = line.split()
            self.effects[label, key] += 1
            self.nonces[label, key] = nonce
        begun = _lines(folder / "begun") - _lines(folder / "refused")
        self._open = {line.split(" ", 1)[1] for line in begun} - _lines(folder / "settled")
        self._killed = Points.killed(folder)
        self.hits = Points.hits(folder)

    def cut_by(self, effect: str) -> set[str]:
        """Where the processes were killed that had begun an effect and not settled it."""
        return {point for pid, point in self._killed.items() if f"{pid} {effect}" in self._open}


def _lines(path: Path) -> set[str]:
    return set(path.read_text().splitlines())


def check(told: Told, truth: Truth, *, kills: int) -> None:
    """Hold the promises: P1 and P4, with a process dying at every step."""
    assert told.wrong == []
    assert truth.hits == dict.fromkeys(POINTS, kills)
    twice = {effect: times for effect, times in truth.effects.items() if times > 1}
    assert twice == {}, "an effect ran twice"
    for label, text in told.done.items():
        expected = [
            part
            for word, key in zip(told.words[label], KEYS, strict=True)
            for part in (word, truth.nonces[label, key])
        ]
        assert text == " ".join(expected), "an answer or a result was lost"
    unexplained = [effect for effect in told.uncertain if not truth.cut_by(effect)]
    assert unexplained == [], "an effect is of unknown end although nobody died inside it"
    assert set(told.done) == set(told.words), "a call did not end"
    assert set(truth.effects) == {(label, key) for label in told.done for key in KEYS}


def figures(told: Told, truth: Truth, seconds: float) -> list[str]:
    """Say in numbers what was done and seen."""
    ran = sum(truth.effects.values())
    causes: Counter[str] = Counter()
    for effect in told.uncertain:
        causes.update(truth.cut_by(effect))
    lines = [
        f"{len(told.words)} calls in {seconds:.0f} s, {len(told.done)} done",
        f"{len(told.uncertain)} effects of unknown end, each settled by an operator",
        f"{ran} effects ran, none twice; {sum(truth.hits.values())} processes killed",
        "kills: " + ", ".join(f"{point} {truth.hits[point]}" for point in POINTS),
        "of unknown end because of: "
        + (", ".join(f"{p} {n}" for p, n in causes.items()) or "nothing"),
    ]
    return lines + [f"{name}: {count}" for name, count in sorted(told.counts.items())]
