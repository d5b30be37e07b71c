"""Replies that are lost, servers that go away, and what of a caller never leaves the gateway."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from antiphon import (
    Accept,
    Client,
    Context,
    Limits,
    Principal,
    Server,
    StartError,
)
from antiphon.cli.local_server import local_server
from tests.gateway import programs

pytestmark = pytest.mark.timeout(120)


def said(result: Any) -> str:
    return result.content[0].text


async def _until(upstreams: programs.Upstreams, line: str) -> None:
    async with asyncio.timeout(programs.PATIENCE):
        while line not in upstreams.happened():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)


async def test_a_reply_that_is_lost_in_mid_round_is_uncertain_and_never_asked_for_twice(
    tmp_path: Path,
):
    with programs.upstreams(["ours"], tmp_path) as (running, urls):
        server = Server("house", limits=Limits(lease=timedelta(seconds=1)))
        server.mount(urls["ours"])
        async with asyncio.timeout(60), Client(server) as client:
            step = await client.begin("ask_then_hold")
            (key,) = step.asks
            answer = {key: Accept({"sure": True})}
            resuming = asyncio.create_task(client.resume(step, answer))
            await _until(running, "rooms-by-antiphon holding after an answer")
            running.processes["ours"].kill()
            lost = await resuming
            assert lost.result.is_error
            assert "effect 'upstream.r2'" in said(lost.result)
            assert "its end is not known" in said(lost.result)
            again = await client.resume(step, answer)
            assert "its end is not known" in said(again.result)
    assert running.happened() == ["rooms-by-antiphon holding after an answer"]


async def test_a_server_that_is_away_is_told_as_such_and_the_call_can_be_tried_again(
    tmp_path: Path,
):
    with programs.upstreams(["ours"], tmp_path) as (running, urls):
        server = Server("house")
        server.mount(urls["ours"])
        async with asyncio.timeout(60), Client(server) as client:
            running.stop()
            result = await client.call_tool("drop", {"name": "x"})
            assert result.is_error
            assert "Nothing was sent" in said(result)
    assert running.happened() == []


async def test_what_a_caller_authenticates_with_is_never_sent_upstream():
    seen: list[Mapping[bytes, bytes]] = []

    async def note(scope: Mapping[str, Any]) -> Principal:
        seen.append(dict(scope["headers"]))
        return Principal(issuer="gateway", subject="gateway")

    upstream = Server("upstream", principal=note)

    @upstream.tool
    def who(ctx: Context) -> str:
        """Tell who calls."""
        return ctx.principal.subject

    async def anna(scope: Mapping[str, Any]) -> Principal:
        return Principal(issuer="house", subject="anna")

    with local_server(lambda _: upstream.asgi()) as behind:

        def house(_: str) -> Any:
            server = Server("house", principal=anna)
            server.mount(f"{behind.origin}/mcp", headers={"X-Gateway": "1"})
            return server.asgi()

        with local_server(house) as front:
            secret = {"Authorization": "Bearer of-the-caller", "Cookie": "session=1"}
            async with Client(f"{front.origin}/mcp", headers=secret) as client:
                assert said(await client.call_tool("who")) == "gateway"
    assert seen
    assert all(headers[b"x-gateway"] == b"1" for headers in seen)
    assert not any({b"authorization", b"cookie"} & headers.keys() for headers in seen)


async def test_two_callers_never_share_a_session_with_a_legacy_server(tmp_path: Path):
    """A session may keep things of its caller; each gets one of its own."""
    from antiphon.apps.gateway.upstream import OneCallSessions, UpstreamSettings

    with programs.upstreams(["session"], tmp_path) as (_, urls):
        settings = UpstreamSettings(target=urls["session"], name="x", options={})

        async def ignore(method: str, params: Mapping[str, Any]) -> None:
            return None

        sessions = OneCallSessions(settings, ignore)
        anna = await sessions.take("anna", frozenset())
        await sessions.give_back(anna, usable=True)
        ben = await sessions.take("ben", frozenset())
        assert ben is not anna
        assert await sessions.take("anna", frozenset()) is anna
        await sessions.close()


async def test_a_command_that_ends_at_once_stops_the_start():
    server = Server("house")
    server.mount(["false"])
    with pytest.raises(StartError, match="false cannot be reached"):
        async with server.running():
            pass
