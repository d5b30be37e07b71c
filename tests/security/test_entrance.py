"""What is refused before anything of it is used: heads, credentials, names, doubled members."""

from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, Elicit, InputRequired, Principal, Server
from tests.legacy.wire import old, serving
from tests.requirements.demo_server import Peer
from tests.transports.wire import mirrored, post, request


def named(name: str) -> Server:
    """Make a server whose callers all have this name."""
    return Server("desk", principal=lambda _: Principal(subject=name))


async def status_of(pairs: list[tuple[bytes, bytes]]) -> int:
    """Send a head to the application as another ASGI server would; returns the status."""
    message = request("server/discover")
    return (await post(Server("desk").asgi(), message, [*mirrored(message), *pairs])).status


@pytest.mark.parametrize(
    "pairs",
    [
        [(b"x-one", b"y" * 1_000)] * 100,
        [(b"x" * 70_000, b"")],
        [(b"x-%d" % number, b"") for number in range(300)],
        [(b"x-one", b"")] * 300,
    ],
    ids=["one name often", "a long name", "many names", "one empty header often"],
)
async def test_a_head_is_measured_with_its_names_and_as_often_as_they_stand(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    assert await status_of(pairs) == 431


async def test_two_credentials_are_refused() -> None:
    one = [(b"authorization", b"Bearer one")]
    assert await status_of([*one, (b"authorization", b"Bearer two")]) == 400
    assert await status_of(one) == 200


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 3_000], ids=["NUL", "half", "long"])
async def test_a_caller_whose_name_no_store_can_keep_is_refused(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await Peer(named(name).asgi()).ask("server/discover")).status == 401
    assert "the name of a caller" in caplog.text


async def test_a_caller_with_an_unusual_name_is_served() -> None:
    assert (await Peer(named("Zoë / 雨 %20 ").asgi()).ask("server/discover")).status == 200


class Confirm(BaseModel):
    sure: bool


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "accept"},
        {"roots": [{"uri": "file:///etc"}]},
        {"role": "user", "model": "m", "content": {"type": "text", "text": "x"}},
        {"action": "accept", "content": {"sure": "maybe"}},
    ],
    ids=["a visit", "roots", "a completion", "another form"],
)
async def test_an_answer_that_nobody_asked_for_is_read_as_the_form_it_is_taken_for(
    answer: Any,
) -> None:
    server = Server("desk")
    taken: list[Any] = []

    @server.tool(unasked="accept")
    async def buy(ctx: Context) -> Any:
        given = ctx.answers.get("confirm", Confirm)
        if given is None:
            return InputRequired({"confirm": Elicit("Sure?", Confirm)})
        taken.append(given)
        return "bought"

    await Peer(server.asgi()).call("buy", inputResponses={"confirm": answer})
    assert [one for one in taken if not isinstance(one, Confirm)] == []
    assert taken == []


# --- the earlier era ------------------------------------------------------------------------------


class Approval(BaseModel):
    approve: bool


DOUBLED = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"tool","name":"tool"}}'


@pytest.mark.parametrize(
    "body",
    [
        DOUBLED,
        b'{"jsonrpc":"2.0","id":9,"method":"ping","params":{"x":' + b"[" * 99 + b"]" * 99 + b"}}",
        b'{"jsonrpc":"2.0","id":9,"result":{"action":"decline","action":"accept"}}',
    ],
    ids=["a name twice", "deep", "an answer with a name twice"],
)
async def test_a_session_takes_no_message_that_two_readers_could_read_in_two_ways(
    body: bytes,
) -> None:
    async with serving(Server("desk")) as url, old(url) as client:
        answer = await client.http.post(url, content=body, headers=client.headers())
        assert answer.status_code == 400
        assert "Invalid Request" in answer.text


async def test_a_request_that_claims_the_modern_revision_is_modern_inside_a_session() -> None:
    server = Server("desk")

    @server.tool
    async def tool(ctx: Context) -> str:
        return ctx.era

    message = request("tools/call", name="tool", requestState="AAAA")
    async with serving(server) as url, old(url) as client, httpx2.AsyncClient(timeout=20) as http:
        headers = {"mcp-session-id": client.session or "", "accept": "application/json"}
        answer = await http.post(url, json=message, headers=headers)
    assert answer.status_code == 400
