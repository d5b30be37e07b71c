"""The log has the text of an unexpected exception, and nothing that a caller sent or answered."""

import ast
import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from antiphon import Context, Limits, NotDone, Principal, Server, ToolError
from antiphon.protocol.failures import failure_text
from antiphon.protocol.private_values import PrivateValues
from antiphon.testing import Rounds
from antiphon.transports.processes.event_loop import run_loop
from tests.legacy.wire import old, serving
from tests.requirements.demo_server import Peer
from tests.tasks.task_client import accept, running

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


async def sliced(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    raise LookupError(f"no {word[3:14]!r}")


async def shouted(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    raise LookupError(f"no {word.upper()}")


async def quoted(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    raise LookupError(json.dumps({"said": word}))


async def noted(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    error = LookupError("no such thing")
    error.add_note(f"looked for {word}")
    raise error


class Strict(BaseModel):
    word: int


async def validated(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    Strict.model_validate({"word": word})


async def remembered(ctx: Context) -> None:
    word = (await ctx.elicit("The word?", Word)).word
    kept = await ctx.memo("kept", lambda: f"was {word}")
    raise LookupError(kept)


HANDLERS = [
    sliced, shouted, quoted, noted, validated, remembered,
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
    assert_hidden(done.text)
    assert_hidden(written(caplog))
    assert __file__ in written(caplog)  # where to look


def assert_hidden(text: str) -> None:
    """Hold a text to show no piece of the answer, in whatever case."""
    text = text.replace("<answer word>", "").lower()
    assert not [SECRET[at : at + 6] for at in range(len(SECRET) - 5) if SECRET[at : at + 6] in text]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError("region eu-7"), "KeyError: 'region eu-7'"),
        (RuntimeError("the bank said 502"), "RuntimeError: the bank said 502"),
    ],
)
@pytest.mark.parametrize("in_effect", [False, True])
async def test_the_log_has_the_text_and_the_source_line_of_an_exception_the_client_has_not(
    error: Exception, shown: str, in_effect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error  # this is the line

    async def tool(ctx: Context) -> None:
        await ctx.once("fail", fail) if in_effect else fail()

    async with Rounds(with_tool(tool)) as rounds:
        done = await rounds.call("tool")
    assert shown in written(caplog)
    assert "    raise error  # this is the line" in written(caplog)
    assert str(error) not in done.text


async def test_a_value_is_named_where_the_log_leaves_it_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("desk")

    @server.tool
    async def parse(amount: str, options: dict[str, int]) -> int:
        raise ValueError(f"cannot read {amount} with {options} for caller 7")

    async with Rounds(server) as rounds:
        await rounds.call("parse", {"amount": "12,5 EUR", "options": {"anna@shop.example": 41}})
    log = written(caplog)
    assert "cannot read <argument amount> with {'<argument options>': <argument options>}" in log
    assert "for caller 7" in log
    assert not [value for value in ("12,5", "anna", "41}") if value in log]


async def test_a_failing_task_is_logged_with_its_text_and_without_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(ctx: Context, what: str) -> None:
        word = (await ctx.elicit("The word?", Word)).word
        raise LookupError(f"no {what} for {word} in stock")

    async with running(fail, limits=Limits(releases=1)) as peer:
        id = await peer.begin("fail", what="left-handed screws")
        await peer.asked(id, "word")
        await peer.answer(id, word=accept(word=SECRET))
        task = await peer.ended(id)
    assert task["result"]["isError"]
    assert "stock" not in str(task["result"])
    assert "LookupError: no <argument what> for <answer word> in stock" in written(caplog)
    assert_hidden(written(caplog))


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://shop:hunter2secret@db/shop",
        "401 for Authorization: Bearer hunter2secret",
        "bad request {'api_key': 'hunter2secret'}",
        "password=hunter2secret user=shop",
        "key hUnter2secretAbcdefgh1234567890ABCDEF was refused",
    ],
)
def test_what_looks_like_a_credential_is_not_logged(text: str) -> None:
    error = RuntimeError(text)
    assert "unter2secret" not in failure_text(error, PrivateValues(()))
    assert failure_text(error, PrivateValues(())).startswith("RuntimeError: ")


def test_a_call_with_more_values_than_can_be_searched_logs_no_text() -> None:
    private = PrivateValues([("argument a", "x" * 300_000), ("argument b", SECRET)])
    assert SECRET not in failure_text(RuntimeError(SECRET), private)
    assert "left out" in failure_text(RuntimeError(SECRET), private)


def test_an_exception_cannot_write_lines_that_look_like_others() -> None:
    text = failure_text(RuntimeError("one\nERROR antiphon: all is lost\x1b[0m"), PrivateValues(()))
    assert text == "RuntimeError: one\n  | ERROR antiphon: all is lost\\x1b[0m"


def test_an_exception_whose_text_fails_is_logged_all_the_same() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "cannot be read" in failure_text(Odd(), PrivateValues(()))


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
    assert "ValueError: invalid literal for int() with base 10: b'<header authoriz" in caplog.text


async def test_callers_that_principal_does_not_know_write_one_line_for_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def who(scope: Any) -> Principal:
        return Principal(
            subject={b"Bearer of-ada": "ada"}[dict(scope["headers"])[b"authorization"]]
        )

    app = Server("desk", principal=who).asgi()
    for number in range(5):
        peer = Peer(app, {"authorization": f"Bearer {SECRET}{number}"})
        assert (await peer.ask("tools/list")).status == 401
    lines = [record for record in caplog.records if "principal=" in record.message]
    assert [record.levelname for record in lines] == ["WARNING"]
    assert "does not know the caller" in lines[0].message
    assert "File" not in written(caplog)


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
        "protocol/failures.py",
        "transports/http/app.py",  # the start of the server: no caller is there yet
        "server/lifetime.py",  # likewise
        "transports/processes/lifespan.py",  # likewise
        "transports/processes/worker_link.py",  # where a connection of our own broke off
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
