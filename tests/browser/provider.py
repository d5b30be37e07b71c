"""An OpenID provider on loopback with a sign-in page of its own, for browsers."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import uuid4

from joserfc import jwt
from joserfc.jwk import ECKey

LONG_AGO = 3_600
"""Seconds since its users signed in, unless they are asked to do it again."""


class Provider:
    """Signs Anna in, who is of finance."""

    def __init__(self) -> None:
        self._key = ECKey.generate_key("P-256", {"kid": "1"})
        self._asked: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/authorize":
                    query = {name: each[0] for name, each in parse_qs(parts.query).items()}
                    self._send("text/html", provider.page(query))
                elif parts.path == "/keys":
                    self._send_json({"keys": [provider._key.as_dict(private=False)]})
                else:
                    self._send_json(provider.about())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                sent = {name: each[0] for name, each in parse_qs(body).items()}
                self._send_json({"id_token": provider.token(sent), "access_token": "x"})

            def _send_json(self, value: Any) -> None:
                self._send("application/json", json.dumps(value))

            def _send(self, kind: str, text: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._http.server_port}"

    def about(self) -> dict[str, str]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def page(self, query: dict[str, str]) -> str:
        code = uuid4().hex
        self._asked[code] = query
        back = f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"
        link = f'<a href="{back.replace("&", "&amp;")}">Continue as Anna Berg</a>'
        icon = '<link rel="icon" href="data:,">'
        return f"<!doctype html><title>Provider</title>{icon}<h1>Who are you?</h1>{link}"

    def token(self, sent: dict[str, str]) -> str:
        asked = self._asked.pop(sent["code"])
        digest = hashlib.sha256(sent["code_verifier"].encode()).digest()
        assert asked["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
        now = int(time.time())
        again = asked.get("prompt") == "login"
        claims = {
            "iss": self.issuer, "sub": "anna", "name": "Anna Berg", "aud": "console",
            "groups": ["grp-finance"], "nonce": asked["nonce"], "iat": now, "exp": now + 600,
            "auth_time": now if again else now - LONG_AGO,
        }  # fmt: skip
        return jwt.encode({"alg": "ES256", "kid": "1"}, claims, self._key)

    @contextmanager
    def serving(self) -> Iterator["Provider"]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()
