"""One session of the earlier era: a handshake, calls that ask, answers, and messages bent."""

from tests.fuzz.fuzzed_server import UNWANTED
from tests.fuzz.inputs import Inputs, encode
from tests.fuzz.verdict import Verdict
from tests.fuzz.wire import Connection

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
ASK_SECONDS = 0.1
"""How long a request is waited for that may wait for an answer itself."""


class LegacyClient:
    """A client that opens one session, misuses it and leaves it, with or without a word."""

    def __init__(self, port: int, inputs: Inputs, verdict: Verdict) -> None:
        self._port = port
        self._inputs = inputs
        self._dice = inputs.dice
        self._verdict = verdict
        self._session = b""
        self._revision = self._dice.choice(REVISIONS)
        self._sent = 0
        self._unwanted = False
        """Whether a payment may wait that nobody is to approve. The answers here name an ask by
        chance, so from then on none of them approves."""

    def converse(self) -> int:
        """Hold one conversation; returns how many inputs it took."""
        self._open()
        for _ in range(self._dice.randrange(3, 12)):
            self._post(self._hostile())
        ping = {"jsonrpc": "2.0", "id": "last", "method": "ping"}
        got = self._post(encode(ping), patience=20.0)
        if self._session and b'"last"' not in got and not got.startswith(b"HTTP/1.1 404"):
            self._verdict.blame("a session that answers no more", encode(ping), got)
        if self._dice.random() < 0.7:
            self._post(b"", method=b"DELETE")
        self._verdict.inputs += self._sent
        return self._sent

    def _open(self) -> None:
        params = {
            "protocolVersion": self._revision,
            "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
            "clientInfo": {"name": "fuzz", "version": "1"},
        }
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        got = self._post(encode(hello), patience=20.0)
        for line in got.split(b"\r\n"):
            if line.lower().startswith(b"mcp-session-id:"):
                self._session = line.partition(b":")[2].strip()
        if not self._session:
            self._verdict.blame("no session", encode(hello), got)
        self._post(encode({"jsonrpc": "2.0", "method": "notifications/initialized"}))

    def _hostile(self) -> bytes:
        inputs, dice = self._inputs, self._dice
        method, params = inputs.fresh()
        message = inputs.message(method, params)
        del message["params"]["_meta"]
        what = dice.random()
        if what < 0.5:
            return encode(message)
        if what < 0.7:
            content = {"room": "elm", "approve": not self._unwanted}
            result = {"action": "accept", "content": content}
            return encode({"jsonrpc": "2.0", "id": dice.randrange(9), "result": result})
        if what < 0.9:
            return encode(inputs.bent(message))
        return inputs.bend_bytes(encode(message))

    def _post(
        self, body: bytes, *, method: bytes = b"POST", patience: float = ASK_SECONDS
    ) -> bytes:
        self._sent += 1
        self._unwanted = self._unwanted or UNWANTED.encode() in body
        head = (
            b"%s /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\nConnection: close\r\n" % method
        )
        if self._session:
            head += b"Mcp-Session-Id: %s\r\n" % self._session
            if self._revision >= "2025-06-18":
                head += b"MCP-Protocol-Version: %s\r\n" % self._revision.encode()
        connection = Connection(self._port)
        try:
            connection.send(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
            got, closed = connection.everything(patience)
        finally:
            connection.close()
        if not closed:
            self._verdict.left_waiting += 1
        if got:
            self._verdict.judge_status(int(got[9:12]), body, got)
        if b"Traceback" in got or b'"Internal error"' in got:
            self._verdict.blame("an unexpected failure", body, got)
        return got
