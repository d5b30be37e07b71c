"""`antiphon call --login` as a user runs it, with a real redirect and authorization server."""

import asyncio
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import keyring
import pytest
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import OAuthToken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from antiphon import Client
from antiphon.cli.login.saved import SavedLogin
from antiphon.client.login.browser import BrowserSignIn, RedirectListener
from antiphon.client.login.provider import LoginProvider
from tests.auth.desk import Desk, desk
from tests.auth.file_keyring import FileKeyring
from tests.auth.issuer import Issuer
from tests.auth.shop import serving_app


async def test_a_person_signs_in_once_and_later_commands_go_on_with_that(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        refused = await here.call("whoami")
        assert refused.code == 1
        assert here.files == []
        first = await here.spawned("call", here.url, "whoami", "--login")
        assert first.code == 0, first.err
        assert first.out.startswith("carl/")
        assert "You are signed in." in first.err
        (file,) = here.files
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        tokens = here.login["tokens"]
        for secret in (tokens["access_token"], tokens["refresh_token"]):
            assert secret not in first.out + first.err
        again = await here.call("whoami")
        assert (again.code, again.out) == (0, first.out), again.err
        listed = await here.run("tools", here.url)
        assert (listed.code, "whoami" in listed.out) == (0, True)
        # A tool that needs more: the same login asks for more scopes, and keeps them.
        stuck = await here.call("refund")
        assert stuck.code == 1
        assert "antiphon call --login" in stuck.err
        assert "refunded" in (await here.call("refund", "--login")).out
        assert "refunded" in (await here.call("refund")).out


async def test_an_expired_token_is_refreshed_by_a_later_command(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        issuer.lifetime(20)
        try:
            assert (await here.call("whoami", "--login")).code == 0
            before = here.login["tokens"]
        finally:
            issuer.lifetime(3_600)
        again = await here.call("whoami")
        assert again.code == 0, again.err
        after = here.login["tokens"]
        assert after["access_token"] != before["access_token"]
        assert after["refresh_token"] != before["refresh_token"]


async def test_commands_that_find_the_token_expired_at_once_do_not_take_it_from_each_other(
    issuer: Issuer, tmp_path: Path
) -> None:
    """A refresh token can be used once: whoever comes second goes on with what the first got."""
    async with desk(issuer, tmp_path) as here:
        issuer.lifetime(20)
        try:
            assert (await here.call("whoami", "--login")).code == 0
        finally:
            issuer.lifetime(3_600)
        login = here.login
        first = LoginProvider(here.url, SavedLogin(here.url, here.files[0].parent))
        second = LoginProvider(here.url, SavedLogin(here.url, here.files[0].parent))
        for provider in (first, second):  # both have read the same tokens
            async with Client(here.url, auth=provider) as client:
                done: Any = await client.call_tool("whoami", {})
            assert done.content[0].text.startswith("carl/")
        assert here.login["tokens"]["refresh_token"] != login["tokens"]["refresh_token"]
        assert (await here.call("whoami")).code == 0


async def test_one_server_has_one_login_however_its_url_is_spelled(tmp_path: Path) -> None:
    kept = SavedLogin("https://shop.example/mcp", tmp_path)
    kept.save(b'{"tokens": {"access_token": "a"}}')
    for same in ("https://SHOP.example/mcp", "https://shop.example:443/mcp#top"):
        assert SavedLogin(same, tmp_path).load() is not None, same
    for other in (
        "http://shop.example/mcp",
        "https://shop.example:8443/mcp",
        "https://shop.example/mcp/other",
        "https://shop.example/MCP",
        "https://shop.example/mcp?tenant=1",
        "https://shop.example.evil.example/mcp",
    ):
        assert SavedLogin(other, tmp_path).load() is None, other


async def test_logout_forgets_and_revokes(issuer: Issuer, tmp_path: Path) -> None:
    async with desk(issuer, tmp_path) as here:
        assert (await here.call("whoami", "--login")).code == 0
        login = here.login
        left = await here.run("logout", here.url)
        assert (left.code, here.files) == (0, [])
        assert "revoked" in left.err
        auth = ("mcp", "mcp-secret")
        for kind in ("access_token", "refresh_token"):
            form = {"token": login["tokens"][kind]}
            assert issuer.http.post("/introspect", data=form, auth=auth).json() == {"active": False}
        assert (await here.call("whoami")).code == 1
        assert (await here.run("logout", here.url)).code == 2


@pytest.fixture
def own_keyring() -> Iterator[None]:
    before = keyring.get_keyring()
    keyring.set_keyring(FileKeyring())
    yield
    keyring.set_keyring(before)


async def test_the_keyring_holds_the_login_where_there_is_one_that_takes_it(
    issuer: Issuer, tmp_path: Path, own_keyring: None
) -> None:
    place = tmp_path / "keyring.json"
    async with desk(issuer, tmp_path) as here:
        here.env["TEST_KEYRING"] = str(place)
        assert (await here.call("whoami", "--login")).code == 0
        (file,) = here.files
        assert "access_token" not in file.read_text()
        assert "access_token" in place.read_text()
        assert (await here.call("whoami")).code == 0
        closed = await here.run("logout", TEST_KEYRING_LOCKED="yes")
        assert (closed.code, "does not open" in closed.err) == (1, True), "it is still there"
        assert here.files == [file]
        assert "access_token" in place.read_text()
        assert (await here.run("logout")).code == 0
        assert (here.files, json.loads(place.read_text())) == ([], {})
        locked = await here.call("whoami", "--login", TEST_KEYRING_LOCKED="yes")
        assert locked.code == 0
        (file,) = here.files
        assert "access_token" in file.read_text(), "a locked keyring: the private file"


async def test_a_server_that_wants_the_token_of_another_gets_none(
    issuer: Issuer, tmp_path: Path
) -> None:
    """It names the issuer of the shop, and the shop as the resource that the token is for."""
    got: list[str] = []

    async def described(request: Request) -> Response:
        return JSONResponse({"resource": here.url, "authorization_servers": [issuer.url]})

    async def refused(request: Request) -> Response:
        got.append(request.headers.get("authorization", ""))
        there = f"{request.base_url}.well-known/oauth-protected-resource"
        challenge = f'Bearer resource_metadata="{there}"'
        return Response(status_code=401, headers={"www-authenticate": challenge})

    routes = [
        Route("/.well-known/oauth-protected-resource", described),
        Route("/mcp", refused, methods=["GET", "POST"]),
    ]
    async with desk(issuer, tmp_path) as here, serving_app(Starlette(routes=routes)) as evil:
        assert (await here.call("whoami", "--login")).code == 0
        before = issuer.counts()["token"]
        for way in ("--login", "--device", "--json"):
            ran = await here.run("call", evil, "whoami", way)
            assert ran.code == 1, way
            assert "does not match" in ran.err or way == "--json", ran.err
        assert issuer.counts()["token"] == before
        assert set(got) == {""}, "no token of anybody"
        assert len(here.files) == 1


async def test_a_person_who_says_no_ends_the_command(issuer: Issuer, tmp_path: Path) -> None:
    async with desk(issuer, tmp_path) as here:
        refused = await here.call("whoami", "--login", PERSON="")
    assert refused.code == 1
    assert "access_denied" in refused.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["call", "python server.py", "x", "--login"], "needs the URL"),
        (["call", "http://shop.example/mcp", "x", "--login"], "needs an https URL"),
        (["call", "https://carl:pw@shop.example/mcp", "x", "--login"], "without user name"),
        (["call", "http://127.0.0.1:1/mcp", "x", "--login", "-H", "Authorization: a"], "together"),
    ],
)
async def test_a_login_that_makes_no_sense_is_refused(
    words: list[str], reason: str, tmp_path: Path
) -> None:
    ran = await Desk("", tmp_path).run(*words)
    assert ran.code == 2
    assert reason in ran.err


async def test_the_page_on_this_machine_takes_the_expected_visit_only() -> None:
    listener = RedirectListener()
    await listener.expect("right")
    async with httpx2.AsyncClient(verify=False) as browser:
        for other in ("?code=a", "?code=a&state=wrong", "/../etc?state=right", ""):
            assert (await browser.get(listener.url + other)).status_code == 404
        sent = await browser.post(f"{listener.url}?code=a&state=right")
        assert sent.status_code == 404
        assert (await browser.get(f"{listener.url}?code=good&state=right")).status_code == 200
        late = await browser.get(f"{listener.url}?code=late&state=right")
        assert late.status_code == 404
    assert (await listener.wait()).code == "good"
    listener.close()


@pytest.mark.parametrize(
    "line", [b"GET http://[ HTTP/1.1", b"GET", b"", b"\xff \xff \xff", b"GET //[/callback HTTP/1.1"]
)
async def test_a_visit_that_cannot_be_read_is_turned_away_like_any_other(
    line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    listener = RedirectListener()
    await listener.expect("right")
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(line + b"\r\n\r\n")
    async with asyncio.timeout(20):
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
    writer.close()
    listener.close()
    assert caplog.text == ""


async def test_logout_of_all_leaves_no_damaged_or_half_written_login(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        assert (await here.call("whoami", "--login")).code == 0
        (file,) = here.files
        (file.parent / "damaged.json").write_text(file.read_text()[:-2])
        (file.parent / f".{file.name}.half").write_text(file.read_text())
        assert (await here.run("logout")).code == 0
        assert list(file.parent.iterdir()) == []


class Forgotten:
    """A keeper whose login is forgotten by another process after it was loaded."""

    def __init__(self) -> None:
        self.kept: bytes | None = b'{"tokens": {"access_token": "a"}}'

    def load(self) -> bytes | None:
        return self.kept

    def save(self, login: bytes) -> None:
        self.kept = login


async def test_a_refresh_does_not_bring_back_a_login_that_was_forgotten_meanwhile() -> None:
    keeper = Forgotten()
    provider = LoginProvider("https://shop.example/mcp", keeper)
    await provider.set_tokens(OAuthToken(access_token="b"))
    assert b'"b"' in (keeper.kept or b"")
    keeper.kept = None
    await provider.set_tokens(OAuthToken(access_token="c"))
    assert keeper.kept is None


class Nothing:
    def load(self) -> bytes | None:
        return None

    def save(self, login: bytes) -> None:
        raise AssertionError("nothing is to be kept")


async def test_nobody_is_sent_to_a_page_that_is_not_https() -> None:
    opened: list[str] = []

    async def open_page(url: str) -> None:
        opened.append(url)

    provider = BrowserSignIn("https://shop.example/mcp", Nothing(), open_page)
    with pytest.raises(OAuthFlowError, match="https"):
        await provider._send_person("http://id.example/authorize?state=s")  # pyright: ignore[reportPrivateUsage]
    assert opened == []
    provider.close()
