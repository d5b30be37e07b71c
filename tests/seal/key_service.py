"""A key service as a process of its own: makes and unwraps data keys under a master key in a file.

Arguments: the port, and the file of master keys, the newest first; a retired one is taken out.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers the two questions, and how often they were put."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(200, {"asked": asked})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked.append(self.path)
        masters = [bytes.fromhex(line) for line in Path(sys.argv[2]).read_text().split()]
        if self.path == "/data-key":
            plain, nonce = os.urandom(32), os.urandom(12)
            wrapped = nonce + AESGCM(masters[0]).encrypt(nonce, plain, b"")
            self._reply(200, {"plain": plain.hex(), "wrapped": wrapped.hex()})
            return
        for master in masters:
            try:
                plain = AESGCM(master).decrypt(body[:12], body[12:], b"")
            except (InvalidTag, ValueError):
                continue
            self._reply(200, {"plain": plain.hex()})
            return
        self._reply(400, {})

    def _reply(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print("ready", flush=True)
    server.serve_forever()
