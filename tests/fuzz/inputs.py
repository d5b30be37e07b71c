"""What is sent: good requests, live tokens, and every kind of mutation of both. Seeded; no I/O."""

import base64
import json
import random
import re
from collections import deque
from typing import Any, NamedTuple

import msgspec

from tests.fuzz.fuzzed_server import UNWANTED

_YES = re.compile(rb'"approve"\s*:\s*true')

P = "io.modelcontextprotocol/"
CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
    "extensions": {P + "tasks": {}},
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**53 + 1, 2**64, -(2**70), 1e300, "", "a", "\x00", "\u2028",
    "é\U0001f600", "\ud800", "=?base64?x?=", "tools/call", "2026-07-28", "../../etc", "\x1b[2J",
    "x" * 3000, [], {}, [[]], {"a": {"b": []}}, [1] * 50, {"action": "accept"},
]  # fmt: skip
PLACES = [
    "fuzz://rooms", "fuzz://rooms/a-1/x", "fuzz://rooms/a-1/../x", "fuzz://rooms/" + "-" * 900,
    "fuzz://rooms/a-1//etc/passwd", "fuzz://rooms/a-1/%2e%2e%2fx", "fuzz://rooms/a-1/c:%5cx",
    "file:///etc/passwd", "",
]  # fmt: skip


class Live(NamedTuple):
    """A call that waits for answers."""

    method: str
    params: dict[str, Any]
    token: str | None
    asked: dict[str, str]
    caller: str


class Inputs:
    """A source of messages; what the server answers makes the next ones."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.live: deque[Live] = deque(maxlen=400)
        self.tokens: deque[str] = deque(maxlen=100)
        self.tasks: deque[tuple[str, str]] = deque(maxlen=300)
        self._number = 0

    # --- good messages --------------------------------------------------------------------------

    def message(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        meta = {P + "protocolVersion": "2026-07-28", P + "clientCapabilities": CAPABILITIES}
        params = {"_meta": meta, **params}
        return {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}

    def caller(self) -> str:
        return self.dice.choice(("", "", "u1", "u2"))

    def fresh(self) -> tuple[str, dict[str, Any]]:
        """Return method and params of a new request."""
        dice = self.dice
        text = dice.choice(("ada", "x" * dice.randrange(200), "é", UNWANTED))
        kind = dice.randrange(24)
        if kind >= 20:
            return self._other(kind)
        tools: list[tuple[str, dict[str, Any]]] = [
            ("pay", {"name": text, "amount": dice.random()}),
            ("wizard", {"name": text}),
            ("wizard", {"name": text, "options": {"deep": [1, {"a": text}]}}),
            ("everything", {}),
            ("unasked", {}),
            ("parked", {"name": text}),
            ("paused", {}),
            ("gathered", {}),
            ("tell", {"text": text}),
            ("mirror", {"region": "eu", "size": 3}),
            ("job", {"number": dice.randrange(9)}),
            ("numbers", {"a": dice.randrange(99), "c": [1, 2, 3]}),
            ("numbers", {"a": text, "b": [], "c": ["x"] * dice.randrange(200)}),
            ("resolved", {"note": text}),
            ("order", {"item": text}),
            ("missing", {}),
        ]
        name, arguments = tools[kind % len(tools)]
        return "tools/call", {"name": name, "arguments": arguments}

    def _other(self, kind: int) -> tuple[str, dict[str, Any]]:
        dice = self.dice
        if kind == 20:
            return "prompts/get", {"name": "greet", "arguments": {"name": "ada"}}
        if kind == 21:
            return "resources/read", {"uri": dice.choice(PLACES)}
        if kind == 22 and self.tasks:
            id, _ = dice.choice(self.tasks)
            method = dice.choice(("tasks/get", "tasks/update", "tasks/cancel"))
            answers = {"room": self.answer("elicitation/create")}
            return method, {"taskId": id, "inputResponses": answers}
        reference = {"type": "ref/prompt", "name": "greet"}
        return dice.choice(
            [
                ("tools/list", {}),
                ("prompts/list", {}),
                ("resources/list", {}),
                ("resources/templates/list", {}),
                ("server/discover", {}),
                ("completion/complete", {
                    "ref": reference, "argument": {"name": "name", "value": "a"},
                }),
            ]
        )  # fmt: skip

    def answer(self, method: str, *, approve: bool = True) -> Any:
        """Return an answer that fits, as far as anybody can know."""
        if method == "sampling/createMessage":
            content = {"type": "text", "text": "leaves fall"}
            return {"role": "assistant", "model": "m", "content": content}
        if method == "roots/list":
            return {"roots": [{"uri": "file:///home"}]}
        content = {"room": "elm", "seats": 3, "sure": True, "approve": approve}
        return {"action": "accept", "content": content}

    def next_round(self, live: Live) -> dict[str, Any]:
        """Return the message that answers everything a call waits for."""
        wanted = not str(live.params.get("arguments", {}).get("name", "")).startswith(UNWANTED)
        answers = {key: self.answer(method, approve=wanted) for key, method in live.asked.items()}
        params = {**live.params, "inputResponses": answers}
        if live.token is not None:
            params["requestState"] = live.token
        return self.message(live.method, params)

    def learn(self, sent: dict[str, Any], caller: str, result: Any) -> None:
        """Keep what a result allows to be sent next."""
        if not isinstance(result, dict):
            return
        if result.get("resultType") == "input_required":
            params = {k: v for k, v in sent["params"].items() if k in ("name", "arguments", "uri")}
            requests = result.get("inputRequests") or {}
            asked = {key: ask["method"] for key, ask in requests.items()}
            token = result.get("requestState")
            self.live.append(Live(sent["method"], params, token, asked, caller))
            if token is not None:
                self.tokens.append(token)
        elif "taskId" in result:
            self.tasks.append((result["taskId"], caller))

    # --- mutations ------------------------------------------------------------------------------

    def hostile(self) -> tuple[dict[str, Any] | None, bytes, str]:
        """Return a message, its body as it is sent, and who sends it.

        Without a message the body is not one that an answer could be told for.
        """
        dice, what = self.dice, self.dice.random()
        caller = self.caller()
        if what < 0.35 or not self.live:
            message = self.message(*self.fresh())
        else:
            live = self.live.popleft() if what < 0.6 else dice.choice(self.live)
            message, caller = self.next_round(live), live.caller
            if what > 0.7:
                self._bend_round(message, live)
        if dice.random() < 0.15:
            caller = self.caller()
        bend = dice.random()
        if bend < 0.7:
            body = encode(message)
            # Half of a surrogate pair is no text, and nobody can know whose message it was in.
            return None if b"\\ud800" in body else message, body, caller
        body = encode(self.bent(message)) if bend < 0.93 else self.bend_bytes(encode(message))
        # Chance may turn a no into a yes, which is a person's right: nobody approves these.
        approved = UNWANTED.encode() in body and _YES.search(body) is not None
        return None, encode(message) if approved else body, caller

    def _bend_round(self, message: dict[str, Any], live: Live) -> None:
        """Change answers, token or arguments of a round."""
        dice, params = self.dice, message["params"]
        unwanted = str(live.params.get("arguments", {}).get("name", "")).startswith(UNWANTED)
        what = dice.randrange(8)
        if what == 0 and params["inputResponses"]:
            key = dice.choice(list(params["inputResponses"]))
            params["inputResponses"][key] = dice.choice(
                [*ODD, {"action": "decline"}, {"action": "cancel"}, {"action": "accept"},
                 {"action": "accept", "content": {"approve": not unwanted and "true"}},
                 {"action": "accept", "content": {"room": 7, "seats": "x"}},
                 {"roots": [{"uri": "http://x"}]}, {"role": "x"}]
            )  # fmt: skip
        elif what == 1:
            params["inputResponses"] = dice.choice([*ODD, {"other": {"action": "accept"}}])
        elif what == 2 and live.token:
            params["requestState"] = self.bend_token(live.token)
        elif what == 3 and self.tokens:
            params["requestState"] = dice.choice(self.tokens)
        elif what == 4:
            params["requestState"] = dice.choice(ODD)
        elif what == 5:
            params["arguments"] = {**(params.get("arguments") or {}), "more": dice.choice(ODD)}
        elif what == 6:
            params["_meta"][P + "clientCapabilities"] = dice.choice(
                [{}, {"elicitation": {}}, {"elicitation": {"url": {}}}, {"sampling": 1}, []]
            )
        else:
            params.pop("inputResponses", None)

    def bend_token(self, token: str) -> str:
        dice = self.dice
        at = dice.randrange(len(token))
        return dice.choice(
            [
                token[:at],
                token + token,
                token[:at] + dice.choice("AB-_=+/ \x00é") + token[at + 1 :],
                token[::-1],
                base64.urlsafe_b64encode(dice.randbytes(60)).decode(),
                "A" * dice.randrange(1, 3000),
            ]
        )

    def bent(self, message: dict[str, Any]) -> Any:
        """Return a message with one place changed."""
        copy: Any = json.loads(encode(message))
        self._bend(copy)
        return copy

    def _bend(self, value: Any) -> None:
        dice = self.dice
        while isinstance(value, dict | list) and value:
            key: Any = dice.choice(list(value)) if isinstance(value, dict) else 0
            if not isinstance(value[key], dict | list) or dice.random() < 0.3:
                what = dice.random()
                if what < 0.6:
                    value[key] = dice.choice(ODD)
                elif what < 0.8 or isinstance(value, list):
                    del value[key]
                else:
                    value[str(dice.choice(ODD))] = value.pop(key)
                return
            value = value[key]

    def bend_bytes(self, body: bytes) -> bytes:
        dice = self.dice
        at = dice.randrange(len(body) + 1)
        what = dice.randrange(9)
        if what == 0:
            return body[:at]
        if what == 1:
            return body[:at] + dice.randbytes(dice.randrange(1, 9)) + body[at:]
        if what == 2:
            return body[:at] + bytes([dice.randrange(256)]) + body[at + 1 :]
        if what == 3:
            return dice.randbytes(dice.randrange(300))
        if what == 4:
            return b"[" * dice.randrange(1, 3000) + body
        if what == 5:
            return body.replace(b'"params"', b'"params":{},"params"', 1)
        if what == 6:
            return b"[" + body + b"," + body + b"]"
        if what == 7:
            return body.replace(b'"', b'\\u0022"', 1)
        return body.replace(b"1", b"1" * dice.randrange(2, 5000), 1)


def encode(message: Any) -> bytes:
    """Write a message as JSON, lone surrogates included."""
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        return json.dumps(message).encode()
