"""The list of refusals: what a token is not worth, end to end over HTTP.

Each row makes one request that must not be believed. Every one of them gets the same bytes, and
nothing of what it carried is in any log record, whoever wrote it.
"""

import base64
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from antiphon import Context, Limits, Principal, Seal, Server
from antiphon.errors import TokenRefused
from tests.requirements.demo_server import KEY, OTHER_KEY, Peer, Room, Sure, accept
from tests.transports.wire import Answer

SENTINEL = "sentinel-9f2c-answer"
START = 1_800_000_000.0
ARGUMENTS = {"day": "Monday"}
REFUSED = (
    b'{"jsonrpc":"2.0","id":"retry","error":{"code":-32602,"message":"'
    + TokenRefused.MESSAGE.encode()
    + b'"}}'
)


def who(scope: Any) -> Principal:
    """Read the caller from a header, as a middleware would have left it."""
    headers = dict(scope["headers"])
    return Principal(subject=headers.get(b"x-user", b"").decode())


@dataclass
class World:
    """A server whose clock can be moved, and callers of it."""

    now: float = START

    def serve(self, **seal: Any) -> Peer:
        options = {"keys": [KEY], "ttl": timedelta(minutes=10), **seal}
        server = Server(
            "house",
            seal=Seal(**options),
            clock=lambda: self.now,
            principal=who,
            limits=Limits(call=timedelta(hours=1)),
        )
        for name in ("book", "other"):
            server.tool(name=name)(_book)
        server.prompt(name="book")(_book)
        return Peer(server.asgi(), {"x_user": "ada"})

    async def token(self, peer: Peer, **more: Any) -> str:
        return (await peer.call("book", ARGUMENTS, **more)).result["requestState"]


async def _book(ctx: Context, day: str) -> str:
    room = await ctx.elicit("Which room?", Room)
    sure = await ctx.elicit("Sure?", Sure)
    return f"{room.room} {sure.sure} on {day}"


ANSWERS = {"room": accept(room=SENTINEL)}


async def retry(
    peer: Peer,
    token: Any,
    *,
    tool: str = "book",
    arguments: Any = ARGUMENTS,
    answers: Any = ANSWERS,
    **more: Any,
) -> Answer:
    return await peer.call(
        tool, arguments, requestState=token, inputResponses=answers, id="retry", **more
    )


Row = Callable[[World, Peer], Awaitable[Answer]]
ROWS: dict[str, Row] = {}


def row(fn: Row) -> Row:
    ROWS[fn.__name__] = fn
    return fn


@row
async def cut(world: World, peer: Peer) -> Answer:
    return await retry(peer, (await world.token(peer))[:-1])


@row
async def cut_to_nothing(world: World, peer: Peer) -> Answer:
    return await retry(peer, "")


@row
async def extended(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer) + "AAAA")


@row
async def extended_by_what_is_not_base64(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer) + " tampered")


@row
async def far_too_long(world: World, peer: Peer) -> Answer:
    return await retry(peer, "A" * 200_000)


@row
async def no_text(world: World, peer: Peer) -> Answer:
    return await retry(peer, {"token": await world.token(peer)})


@row
async def expired(world: World, peer: Peer) -> Answer:
    token = await world.token(peer)
    world.now += 600
    return await retry(peer, token)


@row
async def from_the_future(world: World, peer: Peer) -> Answer:
    world.now += 3600
    token = await world.token(peer)
    world.now = START
    return await retry(peer, token)


@row
async def past_the_deadline_of_its_call(world: World, peer: Peer) -> Answer:
    patient = world.serve(ttl=timedelta(days=2))
    token = await world.token(patient)
    world.now += 3601
    return await retry(patient, token)


@row
async def another_tool(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer), tool="other")


@row
async def another_method(world: World, peer: Peer) -> Answer:
    token = await world.token(peer)
    return await peer.ask(
        "prompts/get", id="retry", name="book", arguments=ARGUMENTS, requestState=token,
        inputResponses=ANSWERS,
    )  # fmt: skip


@row
async def other_arguments(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer), arguments={"day": "Tuesday"})


@row
async def more_arguments(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer), arguments={**ARGUMENTS, "admin": True})


@row
async def another_principal(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer), headers={"x_user": "eve"})


@row
async def a_lost_principal(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer), headers={"x_user": None})


@row
async def a_gained_principal(world: World, peer: Peer) -> Answer:
    return await retry(peer, await world.token(peer, headers={"x_user": None}))


@row
async def another_audience(world: World, peer: Peer) -> Answer:
    return await retry(world.serve(audience="elsewhere"), await world.token(peer))


@row
async def another_key(world: World, peer: Peer) -> Answer:
    return await retry(world.serve(keys=[OTHER_KEY]), await world.token(peer))


@row
async def padded(world: World, peer: Peer) -> Answer:
    token = await world.token(peer)
    return await retry(peer, token + "=" * (-len(token) % 4 or 4))


@row
async def in_the_other_alphabet(world: World, peer: Peer) -> Answer:
    token = await world.token(peer)
    while not {"-", "_"} & set(token):
        token = await world.token(peer)
    return await retry(peer, token.replace("-", "+").replace("_", "/"))


@row
async def with_unused_bits_set(world: World, peer: Peer) -> Answer:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # Names of growing length, until the last character of the token has bits that carry nothing.
    token, pad = "", ""
    while not pad:
        peer.headers = {"x_user": f"{(peer.headers or {})['x_user']}x"}
        token = await world.token(peer)
        pad = "=" * (-len(token) % 4)
    other = token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]
    assert base64.urlsafe_b64decode(other + pad) == base64.urlsafe_b64decode(token + pad)
    return await retry(peer, other)


@row
async def spent_with_other_answers(world: World, peer: Peer) -> Answer:
    token = await world.token(peer)
    assert "result" in (await retry(peer, token)).json
    return await retry(peer, token, answers={"room": accept(room=SENTINEL + " again")})


@row
async def a_cursor_in_place_of_a_token(world: World, peer: Peer) -> Answer:
    server = Server("house", seal=Seal(keys=[KEY]), limits=Limits(page=1), principal=who)
    for name in ("book", "other"):
        server.tool(name=name)(_book)
    lists = Peer(server.asgi(), {"x_user": "ada"})
    cursor = (await lists.ask("tools/list")).result["nextCursor"]
    return await retry(lists, cursor)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement(
    "MRTR-S-31", "MRTR-S-32", "MRTR-S-33", "MRTR-S-34", "MRTR-S-35", "ELICIT-06"
)
@pytest.mark.parametrize("name", list(ROWS))
async def test_it_is_refused_with_the_same_bytes(world: World, name: str) -> None:
    answer = await ROWS[name](world, world.serve())
    assert (answer.status, answer.body) == (400, REFUSED)


@pytest.mark.requirement("MRTR-S-32")
async def test_a_token_changed_in_any_byte_is_refused_with_the_same_bytes(world: World) -> None:
    peer = world.serve()
    token = await world.token(peer)
    for at, letter in enumerate(token):
        changed = token[:at] + ("A" if letter != "A" else "B") + token[at + 1 :]
        answer = await retry(peer, changed)
        assert (answer.status, answer.body) == (400, REFUSED), at
    assert "result" in (await retry(peer, token)).json


async def test_the_same_requests_with_the_right_token_go_through(world: World) -> None:
    """What is refused above is refused for the token and for nothing else."""
    peer = world.serve()
    assert "result" in (await retry(peer, await world.token(peer))).json
    nobody: dict[str, Any] = {"headers": {"x_user": None}}
    assert "result" in (await retry(peer, await world.token(peer, **nobody), **nobody)).json
    elsewhere = world.serve(audience="elsewhere")
    assert "result" in (await retry(elsewhere, await world.token(elsewhere))).json
    rotated = world.serve(keys=[OTHER_KEY, KEY])
    assert "result" in (await retry(rotated, await world.token(peer))).json


@pytest.mark.requirement("LOG-03", "MRTR-S-35")
async def test_no_log_holds_a_token_or_an_answer(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tokens: list[str] = []

    class Spied(World):
        async def token(self, peer: Peer, **more: Any) -> str:
            tokens.append(await super().token(peer, **more))
            return tokens[-1]

    spied = Spied()
    for made in ROWS.values():
        spied.now = START
        await made(spied, spied.serve())
    peer = spied.serve()
    spied.now = START
    token = await spied.token(peer)
    for answers in (
        {"room": SENTINEL},
        {"room": {"action": SENTINEL}},
        {"room": accept(seats=SENTINEL)},
        {SENTINEL: SENTINEL},
        SENTINEL,
    ):
        await retry(peer, token, answers=answers)
    logged = "\n".join(_whole(record) for record in caplog.records)
    assert "token refused" in logged
    assert SENTINEL not in logged
    assert [token for token in tokens if token in logged or token[:24] in logged] == []


def _whole(record: logging.LogRecord) -> str:
    return f"{logging.Formatter().format(record)} {record.__dict__}"


async def test_the_log_says_why_a_token_was_refused(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    peer = world.serve()
    for made in (expired, other_arguments, another_principal, another_key, cut):
        world.now = START
        await made(world, peer)
    told = [line for line in caplog.messages if line.startswith("token refused")]
    *reasons, of_cut = [
        line.removeprefix("token refused (tool:book): ").partition(" (")[0] for line in told
    ]
    assert reasons == [
        "expired 0 s ago",
        "the arguments differ from those of the first round",
        "it was issued to another caller",
        "this process does not have the key that sealed it",
    ]
    # By chance the bits that are left over are those of a whole text.
    assert of_cut in ("it is not a token", "it was changed after it was sealed")


# --- what a crash shows --------------------------------------------------------------------------


async def test_an_answer_is_in_no_log_when_the_handler_breaks_a_rule_or_crashes_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server("crash", seal=Seal(keys=[KEY]))

    @server.tool
    async def crash(ctx: Context) -> str:
        await ctx.elicit("Which room?", Room)
        raise LookupError("gone")

    @server.tool
    async def diverge(ctx: Context) -> str:
        await ctx.elicit(f"Which room, in round {ctx.round}?", Room)
        return "never"

    @server.tool
    async def unwritable(ctx: Context) -> Any:
        return {(await ctx.elicit("Which room?", Room)).room: object()}

    peer = Peer(server.asgi())
    for tool in ("crash", "diverge", "unwritable"):
        first = await peer.call(tool)
        last = await peer.again(first, tool, None, ANSWERS)
        assert last.result["isError"] is True
        assert SENTINEL not in last.body.decode()
        assert first.result["requestState"] not in last.body.decode()
    logged = "\n".join(map(_whole, caplog.records))
    assert SENTINEL not in logged
