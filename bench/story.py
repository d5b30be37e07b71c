"""The three calls that every server is measured with, and how a client goes through them.

*plain* asks nothing: one request. *mrtr* asks one form: two requests. *wizard* asks five, one
after another: six requests. Needs nothing but the standard library, because peers in other
environments import it.
"""

import itertools
import json
from typing import Any

NAME = "shop-7"
ANSWER = {"region": "eu-west", "size": 2}
QUESTIONS = 5

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "enum": ["eu-west", "us-east"]},
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
    },
    "required": ["region", "size"],
}

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}

EXPECTED = {
    "plain": f"hello {NAME}",
    "mrtr": f"{NAME} in eu-west, size 2",
    "wizard": f"{NAME} in 5 parts, size 10",
}
REQUESTS = {"plain": 1, "mrtr": 2, "wizard": 1 + QUESTIONS}


_names = itertools.count(100_000)
"""No two calls of one process share a name."""


class Wrong(Exception):
    """A server answered something else than the story says."""


def question(part: int) -> str:
    return f"Where should part {part} of {NAME} run?"


class Caller:
    """One client that makes the same call again and again, and checks every answer."""

    def __init__(self, workload: str, *, vary: bool = False) -> None:
        """Go through a workload; with `vary`, under another name in every call."""
        self.workload = workload
        self._vary = vary
        self._name = NAME
        self._rounds = REQUESTS[workload]
        self._round = 0
        self._id = 0
        meta = json.dumps(META, separators=(",", ":"))
        self._head = (
            f'","method":"tools/call","params":{{"name":"{workload}","arguments":{{"name":"'
        )
        self._tail = f'"}},"_meta":{meta}'
        self._answer = json.dumps({"action": "accept", "content": ANSWER}, separators=(",", ":"))

    def request(self, before: Any = None) -> bytes:
        """Write the next request; `before` is the result that the last one gave."""
        answers = self._answers(before) if before is not None else ""
        self._id += 1
        if self._vary and before is None:
            self._name = f"shop-{next(_names)}"
        call = f"{self._head}{self._name}{self._tail}"
        return f'{{"jsonrpc":"2.0","id":"{self._id}{call}{answers}}}}}'.encode()

    def check(self, message: Any) -> Any:
        """Check a response; gives the result to go on with, or None when the call is over."""
        result = message.get("result")
        if result is None or message["id"] != str(self._id):
            raise Wrong(f"{self.workload}: {message}")
        self._round += 1
        if result["resultType"] == "input_required":
            if self._round >= self._rounds:
                raise Wrong(f"{self.workload} asks too often")
            return result
        text = result["content"][0]["text"]
        expected = EXPECTED[self.workload].replace(NAME, self._name)
        if text != expected or self._round != self._rounds or result.get("isError"):
            raise Wrong(f"{self.workload} ended after {self._round} rounds with {text!r}")
        self._round = 0
        return None

    def _answers(self, result: Any) -> str:
        given = ",".join(f'"{key}":{self._answer}' for key in result["inputRequests"])
        # A token is base64url or dotted base64url: nothing in it needs escaping.
        return f',"inputResponses":{{{given}}},"requestState":"{result["requestState"]}"'
