"""Nothing that a caller sent or answered reaches a log through an exception's text."""

import ast
import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, NotDone, Principal, Server, ToolError
from antiphon.core.failures import failure_text
from antiphon.processes.event_loop import run_loop
from antiphon.testing import Rounds
from tests.legacy.wire import old, serving
from tests.requirements.demo_server import Peer

SECRET = "sentinel-4711-answer"
SOURCE = Path(__file__).parents[2] / "src" / "antiphon"


class Word(BaseModel):
    word: str


Handler = Callable[[Context], Awaitable[Any]]


async def parsed(ctx: Context) -> int:
    return int((await ctx.elicit("The word?", Word)).word)


async def chained(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    try:
        int(word)
    except ValueError as error:
        raise RuntimeError(f"cannot read {word}") from error


async def while_handling(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    try:
        int(word)
    except ValueError:
        raise LookupError(word)  # noqa: B904 - the context of the error is what is looked at


async def grouped(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    raise ExceptionGroup(word, [ValueError(word), KeyError(word)])


def read_number(word: str) -> int:
    return int(word)


async def in_an_effect(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    await ctx.once("read", read_number, word)


async def in_a_memo(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    await ctx.memo("read", lambda: int(word))


async def called_like_ours(ctx: Context) -> None:
    class ToolError(Exception):
        """Not the one whose text is meant for the model."""

    def act(word: str) -> None:
        raise ToolError(word)

    word = (await ctx.elicit("The word?", Word)).word
    await ctx.once("act", act, word)


HANDLERS = [
    parsed, chained, while_handling, grouped, in_an_effect, in_a_memo, called_like_ours,
]  # fmt: skip


def written(caplog: pytest.LogCaptureFixture) -> str:
    """Return the log as a plain formatter writes it, tracebacks included."""
    formatter = logging.Formatter("%(name)s %(message)s")
    return "\n".join(formatter.format(record) for record in caplog.records)


def with_tool(handler: Handler, **options: Any) -> Callable[..., Server]:
    def make(**world: Any) -> Server:
        server = Server("desk", **world, **options)
        server.tool(name="tool")(handler)
        return server

    return make


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda one: one.__name__)
async def test_an_answer_in_the_text_of_an_exception_reaches_neither_log_nor_client(
    handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with Rounds(with_tool(handler)) as rounds:
        done = await rounds.call("tool", answers={"word": {"word": SECRET}})
    assert done.is_error
    assert SECRET not in done.text
    assert SECRET not in written(caplog)
    assert __file__ in written(caplog)  # where to look


@pytest.mark.parametrize("handler", [parsed, in_an_effect], ids=lambda one: one.__name__)
async def test_exposed_errors_are_logged_whole(
    handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rounds(with_tool(handler, expose_errors=True)) as rounds:
        done = await rounds.call("tool", answers={"word": {"word": SECRET}})
    assert SECRET in done.text
    assert SECRET in written(caplog)


async def test_an_answer_over_a_session_reaches_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "antiphon")
    server = Server("desk")
    for handler in HANDLERS:
        server.tool(handler)
    async with serving(server) as url, old(url) as client:
        client.answer = lambda _: {"result": {"action": "accept", "content": {"word": SECRET}}}
        for handler in HANDLERS:
            assert (await client.tool(handler.__name__))["isError"]
    assert SECRET not in written(caplog)


async def test_a_result_that_a_session_cannot_carry_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Server("desk")) as url, old(url) as client:
        await client.call("ping")
        try:
            int(SECRET)
        except ValueError:
            logging.getLogger("mcp.server.runner").exception("handler returned an invalid result")
    assert "handler returned an invalid result: ValueError" in caplog.text
    assert SECRET not in written(caplog)


async def test_credentials_that_an_author_cannot_read_reach_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def who(scope: Any) -> Principal:
        return Principal(subject=str(int(dict(scope["headers"])[b"authorization"])))

    peer = Peer(Server("desk", principal=who).asgi(), {"authorization": SECRET})
    assert (await peer.ask("tools/list")).status == 401
    assert SECRET not in written(caplog)
    assert "ValueError" in caplog.text


async def test_what_an_author_says_on_purpose_reaches_the_model() -> None:
    def act() -> None:
        raise ToolError("The shop is closed.")

    async def buy(ctx: Context) -> None:
        await ctx.once("act", act)

    async def wait(ctx: Context) -> None:
        raise NotDone("Nothing was bought.")

    for handler, text in ((buy, "The shop is closed."), (wait, "Nothing was bought.")):
        async with Rounds(with_tool(handler)) as rounds:
            assert text in (await rounds.call("tool")).text


def test_a_long_chain_of_exceptions_is_cut() -> None:
    error: BaseException = ValueError(SECRET)
    for _ in range(50):
        outer = RuntimeError(SECRET)
        outer.__cause__ = error
        error = outer
    text = failure_text(error)
    assert text.count("caused by") == 7
    assert "43 more exceptions" in text
    assert SECRET not in text


def test_exceptions_are_logged_by_one_function() -> None:
    allowed = {
        "core/failures.py",
        "transports/http/app.py",  # the start of the server: no caller is there yet
        "lifetime.py",  # likewise
        "processes/lifespan.py",  # likewise
        "processes/worker_link.py",  # where a connection of our own broke off
        "engine/reply.py",  # with `expose_errors` only
    }
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if "client" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) in ("log", "_log", "logging", "logger")
        and (node.func.attr == "exception" or any(k.arg == "exc_info" for k in node.keywords))
    }
    assert found <= allowed


async def test_requests_that_meet_the_end_of_their_session_write_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("desk")
    async with serving(server) as url, httpx2.AsyncClient(timeout=20) as http, old(url) as client:
        for _ in range(20):
            bodies = [client.request("tools/list") for _ in range(3)]
            headers = client.headers()
            answers = await asyncio.gather(
                *(http.post(url, json=body, headers=headers) for body in bodies),
                http.delete(url, headers=headers),
            )
            assert {answer.status_code for answer in answers} <= {200, 404}
            client.session = None
            await client.open()
    assert "Traceback" not in written(caplog)
    assert "ClosedResourceError" not in written(caplog)
    assert "without a complete response" not in written(caplog)


async def leave_a_task(word: str) -> None:
    async def fails() -> None:
        raise ValueError(word)

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task


async def leave_a_callback(word: str) -> None:
    asyncio.get_running_loop().call_soon(int, word)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize("leave", [leave_a_task, leave_a_callback])
def test_what_nobody_handles_in_a_process_of_ours_is_logged_without_its_text(
    leave: Callable[[str], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("desk")

    @server.tool
    async def tell(ctx: Context) -> str:
        await leave((await ctx.elicit("The word?", Word)).word)
        return "told"

    async def main() -> str:
        async with Rounds(server) as rounds:
            return (await rounds.call("tell", answers={"word": {"word": SECRET}})).text

    assert run_loop(main()) == "told"
    gc.collect()
    assert SECRET not in caplog.text
    assert "nobody has handled an exception of a" in caplog.text
    assert "ValueError" in caplog.text
