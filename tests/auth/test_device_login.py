"""`antiphon call --device`: a person signs in on another device, with a code."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon import Client
from antiphon.cli.login.saved import SavedLogin
from antiphon.client.login import device
from tests.auth.desk import Desk, desk
from tests.auth.issuer import Issuer
from tests.cli.running import ANTIPHON, Ran, environment

CODE = re.compile(r"type this code there: ([A-Z]{4}-[A-Z]{4})\n")


@pytest.fixture(autouse=True)
def _truth(issuer: Issuer) -> Iterator[None]:
    yield
    issuer.devices()


async def one_more(issuer: Issuer, what: str) -> None:
    """Wait until the authorization server has said something once more."""
    before = issuer.counts().get(what, 0)
    async with asyncio.timeout(50):
        while True:
            if issuer.counts().get(what, 0) > before:
                return
            await asyncio.sleep(0.1)


class Waiting:
    """A command that has shown its code and waits for a person."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said = ""

    async def code(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(50):
            while (found := CODE.search(self.said)) is None:
                line = await self._process.stderr.readline()
                assert line, f"the command ended: {self.said}"
                self.said += line.decode()
        return found[1]

    async def ended(self) -> Ran:
        async with asyncio.timeout(50):
            out, err = await self._process.communicate()
        assert self._process.returncode is not None
        return Ran(self._process.returncode, out.decode(), self.said + err.decode())


@asynccontextmanager
async def waiting(here: Desk, tool: str = "whoami") -> AsyncIterator[Waiting]:
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON,
        *("call", here.url, tool, "--device"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**{**here.env, "BROWSER": "false"}),
    )
    try:
        yield Waiting(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_person_signs_in_on_another_device_and_later_commands_go_on_with_that(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        async with waiting(here) as command:
            code = await command.code()
            assert issuer.decide("AAAA-AAAA", "dora") == 404, "nobody else's code is known"
            await one_more(issuer, "pending")
            assert issuer.decide(code, "carl") == 200
            done = await command.ended()
        assert done.code == 0, done.err
        assert done.out.startswith("carl/")
        assert f"Open this page on any device: {issuer.url}/device" in done.err
        assert f"{issuer.url}/device?user_code={code}" in done.err
        tokens = here.login["tokens"]
        for secret in (tokens["access_token"], tokens["refresh_token"]):
            assert secret not in done.out + done.err
        again = await here.call("whoami")
        assert (again.code, again.out) == (0, done.out), again.err
        assert "revoked" in (await here.run("logout", here.url)).err


async def test_a_login_of_a_device_is_refreshed(issuer: Issuer, tmp_path: Path) -> None:
    async with desk(issuer, tmp_path) as here:
        issuer.lifetime(20)
        try:
            async with waiting(here) as command:
                issuer.decide(await command.code(), "carl")
                assert (await command.ended()).code == 0
            before = here.login["tokens"]
        finally:
            issuer.lifetime(3_600)
        assert (await here.call("whoami")).code == 0
        assert here.login["tokens"]["access_token"] != before["access_token"]


async def test_each_way_to_sign_in_has_a_registration_that_fits(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        assert (await here.call("whoami", "--login")).code == 0
        by_browser = here.login["client"]
        # More scopes are needed, so that somebody has to sign in again.
        async with waiting(here, "refund") as command:
            issuer.decide(await command.code(), "carl")
            done = await command.ended()
        assert (done.code, "refunded" in done.out) == (0, True), done.err
        by_device = here.login["client"]
        assert by_device["client_id"] != by_browser["client_id"]
        assert device.GRANT in by_device["grant_types"]
        assert "authorization_code" not in by_device["grant_types"]


async def test_a_person_who_says_no_on_the_device_ends_the_command(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here, waiting(here) as command:
        issuer.decide(await command.code(), "carl", agree=False)
        done = await command.ended()
    assert done.code == 1
    assert "not signed in: access_denied" in done.err
    assert "carl/" not in done.out


async def test_a_code_that_nobody_types_ends_the_command_in_time(
    issuer: Issuer, tmp_path: Path
) -> None:
    issuer.devices(expires_in=3)
    async with desk(issuer, tmp_path) as here, waiting(here) as command:
        await command.code()
        done = await command.ended()
    assert done.code == 1
    assert "nobody signed in while the code was good" in done.err


async def test_whoever_asks_too_often_asks_less_often(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_INTERVAL", 1.0)  # five seconds more would be a long test
    issuer.devices(interval=1)  # and it expects us less often
    before = issuer.counts().get("slow_down", 0)
    people: list[asyncio.Task[None]] = []

    async def decide(code: str) -> None:
        await one_more(issuer, "slow_down")
        issuer.decide(code, "carl")

    async def show(prompt: device.DevicePrompt) -> None:
        people.append(asyncio.create_task(decide(prompt.code)))

    async with desk(issuer, tmp_path) as here, asyncio.timeout(50):
        login = device.DeviceSignIn(here.url, SavedLogin(here.url, tmp_path), show)
        async with Client(here.url, auth=login) as client:
            done: Any = await client.call_tool("whoami", {})
        await asyncio.gather(*people)
    assert done.content[0].text.startswith("carl/")
    assert issuer.counts()["slow_down"] == before + 1, "once was enough"


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no endpoint": ({"are": False}, "has no sign-in on another device"),
    "a page that is not https": ({"verification_uri": "http://id.example/device"}, "https"),
    "a page that is no page": ({"verification_uri": "file:///etc/passwd"}, "https"),
    "a link that is not https": ({"verification_uri_complete": "http://id.example/x"}, "https"),
    "a page that moves the cursor": (
        {"verification_uri": "https://id.example/\x1b[2J"},
        "https",
    ),
    "no code": ({"device_code": None}, "gives no code"),
    "text for a number": ({"expires_in": "soon"}, "gives no code"),
}


async def test_an_authorization_server_that_answers_oddly_shows_nobody_a_page(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with desk(issuer, tmp_path) as here:
        for name, (answer, reason) in HOSTILE.items():
            issuer.devices(**answer)
            done = await here.call("whoami", "--device")
            assert done.code == 1, name
            assert reason in done.err, (name, done.err)
            assert "Open this page" not in done.err, name


async def test_a_code_with_control_characters_is_shown_without_them(
    issuer: Issuer, tmp_path: Path
) -> None:
    issuer.devices(user_code="AB\x1b[31m\nrun this", expires_in=1)
    async with desk(issuer, tmp_path) as here:
        done = await here.call("whoami", "--device")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "\nrun this" not in done.err
