"""Clients that call, answer, repeat and go away.

A client repeats a round with the same token and answers until it is told something definite. Some
rounds are sent twice at once, some replies are not waited for, and earlier rounds are sent again,
with the same answers and with others. Where an effect is of unknown end, an operator settles it,
and the client goes on.
"""

import asyncio
import random
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from antiphon.errors import EffectUncertain
from tests.chaos.judgement import KEYS, Heard
from tests.chaos.operator import ENDED, Case, Operator
from tests.transports.wire import mirrored, request

CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
ENOUGH = 240.0
"""Seconds in which a round must have an outcome, whatever goes wrong meanwhile. A client that waits
for its turn with the operator waits as long as the operator needs for those before it."""
_UNCERTAIN = re.compile(
    r"effect '(?P<key>[^']+)' of call (?P<call>\w+) was started and its end is not known"
)
_AGAIN = ("store cannot be reached", "too many requests wait", "try again")


class Broken(Exception):
    """No reply, or one that says nothing about the round."""


class Unheard(Exception):
    """A round had no outcome in any reasonable time."""


class Client:
    """One client that makes one call after another."""

    def __init__(
        self, port: int, heard: Heard, operator: Operator, *, twice: float, drop: float
    ) -> None:
        self._port = port
        self._operator = operator
        self._heard = heard
        self._twice = twice
        self._drop = drop
        self._dice = random.Random(secrets.randbits(64))

    async def call(self, label: str) -> None:
        """Make one call to its end."""
        heard = self._heard
        words = heard.words[label] = [secrets.token_hex(3) for _ in KEYS]
        params: dict[str, Any] = {"arguments": {"label": label}}
        past: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for number in range(1, 5):
            result = await self._settled_round(label, number, params)
            if number > 1:
                past.append((params, result))
            if result.get("resultType") != "input_required":
                break
            await self._repeat(label, past)
            (key,) = result["inputRequests"]
            if key != KEYS[number - 1]:
                return heard.lost.append(f"{label}: round {number} asked for {key}")
            params = {
                "arguments": {"label": label},
                "requestState": result["requestState"],
                "inputResponses": {key: _accept(words[number - 1])},
            }
        self._note(label, number, result)
        await self._repeat(label, past)
        return None

    def _note(self, label: str, number: int, result: dict[str, Any]) -> None:
        heard = self._heard
        if result.get("resultType") != "complete":
            return heard.lost.append(f"{label}: {result}")
        text = result["content"][0]["text"]
        if result["isError"] or number != 4:
            return heard.lost.append(f"{label}: {text}")
        heard.done[label] = text
        return None

    async def _repeat(self, label: str, past: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Send a round again that has an outcome: with its answers, and with others."""
        if not past or self._dice.random() > 0.5:
            return
        params, result = self._dice.choice(past)
        if result["isError"]:
            return
        counts = self._heard.counts
        try:
            async with asyncio.timeout(ENOUGH):
                again = await self._send(params)
                counts["rounds replayed"] += 1
                if {"isError": False, **again} != result:
                    self._heard.differing.append(f"{label}: a replay was told differently: {again}")
                others = {key: _accept("other") for key in params["inputResponses"]}
                other = await self._send({**params, "inputResponses": others})
                counts["other answers sent"] += 1
                if other.get("resultType") != "refused":
                    self._heard.taken.append(f"{label}: {other}")
        except TimeoutError:
            raise Unheard(f"a round that was sent again heard nothing in {ENOUGH:.0f} s") from None
        except Broken as broken:
            counts[f"replies broken: {broken}"] += 1

    async def _settled_round(
        self, label: str, number: int, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Send a round; while an effect in it is of unknown end, have it settled and go on."""
        ended = 0
        while True:
            try:
                async with asyncio.timeout(ENOUGH):
                    result = await self._round(label, number, params)
            except TimeoutError:
                raise Unheard(f"round {number} had no outcome in {ENOUGH:.0f} s") from None
            found = _UNCERTAIN.search(_text(result)) if result["isError"] else None
            if found is None:
                return result
            case = Case(
                label,
                found["call"],
                found["key"],
                EffectUncertain(found["call"], found["key"]).command,
            )
            self._heard.uncertain.append(f"{case.call}/{case.key}")
            failure = await self._operator.settle(case)
            if ENDED in failure and ended < 2:
                # The process that ran it had only been stopped, and has settled it meanwhile.
                ended += 1
                self._heard.counts["ended while the operator looked"] += 1
                continue
            if failure:
                self._heard.unsettled.append(f"{label}: {case.key}: {failure}")
                return result
            self._heard.settled.add(label)

    async def _round(self, label: str, number: int, params: dict[str, Any]) -> dict[str, Any]:
        """Send a round until something definite comes back; every copy must be told the same."""
        counts = self._heard.counts
        while True:
            counts["rounds sent"] += 1
            if self._dice.random() < self._drop:
                counts["replies dropped"] += 1
                with suppress(Broken):
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
                self._heard.differing.append(f"{label}: copies of round {number} differ")
            if results:
                return {"isError": False, **(recorded or results)[0]}
            # What a client that is told to come again does; a spinning one would say less.
            await asyncio.sleep(self._dice.uniform(0.02, 0.1))

    async def _send(self, params: dict[str, Any], *, stay: bool = True) -> dict[str, Any]:
        message = request(name="story", meta=CAN, **params)
        body = msgspec.json.encode(message)
        head = b"".join(b"%s: %s\r\n" % pair for pair in mirrored(message) if pair[0] != b"host")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as error:
            raise Broken(type(error).__name__) from error
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


def _text(result: dict[str, Any]) -> str:
    content = result.get("content", "")
    return content[0]["text"] if isinstance(content, list) else str(content)


def _accept(word: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"word": word}}


async def play(
    port: int,
    operator: Operator,
    more: Callable[[], bool],
    *,
    clients: int,
    twice: float = 0.5,
    drop: float = 0.1,
) -> Heard:
    """Let clients call at the same time, each at least once, for as long as more is wanted."""
    heard = Heard()

    async def lane(number: int) -> None:
        client = Client(port, heard, operator, twice=twice, drop=drop)
        turn = 0
        while turn == 0 or (more() and not heard.lost):
            turn += 1
            label = f"c{number}-{turn}"
            try:
                await client.call(label)
            except Unheard as unheard:
                heard.lost.append(f"{label}: {unheard}")

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(lane(number))
    return heard
