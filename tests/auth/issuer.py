"""The authorization server as tests use it: people who sign in, an agent, and odd tokens."""

import base64
import hashlib
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

ROOT = Path(__file__).resolve().parents[2]
AUDIENCE = "https://mcp.example.com/mcp"
REDIRECT = "http://127.0.0.1:1/callback"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass(frozen=True)
class Tokens:
    """What a person or an agent holds."""

    access: str
    refresh: str = ""

    @property
    def header(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.access}"}


class Issuer:
    """A running authorization server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx2.Client(base_url=url, timeout=20, follow_redirects=False)

    def sign_in(self, person: str, scope: str = "mcp", resource: str = AUDIENCE) -> Tokens:
        """Get a token for a person as a client does: code with PKCE."""
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": "laptop",
            "redirect_uri": REDIRECT,
            "scope": scope,
            "resource": resource,
            "state": "s",
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "as": person,
        }
        answer = self.http.get("/authorize", params=asked)
        code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
        return self._token(
            grant_type="authorization_code",
            client_id="laptop",
            redirect_uri=REDIRECT,
            code=code,
            code_verifier=verifier,
        )

    def decide(self, user_code: str, person: str, *, agree: bool = True) -> int:
        """Let a person decide on the page for devices; return the status."""
        told = {"user_code": user_code, "as": person, "agree": "yes" if agree else "no"}
        return self.http.get("/device", params=told).status_code

    def refresh(self, tokens: Tokens) -> Tokens:
        return self._token(
            grant_type="refresh_token", client_id="laptop", refresh_token=tokens.refresh
        )

    def act_for(self, tokens: Tokens, **more: str) -> Tokens:
        """Let the agent swap a person's token for one of its own."""
        return self._token(
            auth=("agent", "agent-secret"),
            grant_type=EXCHANGE,
            subject_token=tokens.access,
            subject_token_type="urn:ietf:params:oauth:token-type:access_token",
            **more,
        )

    def revoke(self, tokens: Tokens) -> None:
        form = {"token": tokens.access, "client_id": "laptop"}
        self.http.post("/revoke", data=form).raise_for_status()

    def _token(self, auth: tuple[str, str] | None = None, **form: str) -> Tokens:
        signed_in: dict[str, Any] = {} if auth is None else {"auth": auth}
        answer = self.http.post("/token", data=form, **signed_in)
        answer.raise_for_status()
        found = answer.json()
        return Tokens(found["access_token"], found.get("refresh_token", ""))

    # --- what no real server has an address for ---------------------------------------------------

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Claims of a good token of Carl; one given as `...` is left out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": "carl",
            "aud": AUDIENCE,
            "client_id": "laptop",
            "scope": "mcp",
            "iat": now,
            "exp": now + 600,
        }
        return {name: value for name, value in (good | changes).items() if value is not ...}

    def signed(
        self, header: dict[str, Any] | None = None, key: str = "own", **changes: Any
    ) -> Tokens:
        """A token that says anything, signed with the server's own key unless another is named."""
        asked = {"claims": self.claims(**changes), "header": header or {}, "key": key}
        return Tokens(self.http.post("/control/sign", json=asked).json()["token"])

    def rotate(self, *, keep: bool = False) -> None:
        self.http.post("/control/rotate", params={"keep": "yes" if keep else "no"})

    def lifetime(self, seconds: int) -> None:
        self.http.post("/control/lifetime", params={"seconds": seconds})

    def away(self, *, away: bool = True) -> None:
        self.http.post("/control/away", params={"is": "yes" if away else "no"})

    def devices(self, **answer: Any) -> None:
        """Answer this to devices that want to sign somebody in; the truth without anything."""
        self.http.post("/control/devices", json=answer)

    def counts(self) -> dict[str, int]:
        return self.http.post("/control/counts").json()

    def public_key(self) -> dict[str, Any]:
        return self.http.get("/jwks").json()["keys"][0]


@contextmanager
def running() -> Iterator[Issuer]:
    """Start an authorization server in a process of its own; ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.auth.authorization_server"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url, "the authorization server did not start"
        issuer = Issuer(url)
        yield issuer
        issuer.http.close()
    finally:
        process.terminate()
        process.communicate(timeout=20)
