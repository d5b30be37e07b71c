"""What cannot be done is refused before anything is claimed, with the words to write instead."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import Client, Context, Server

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def create(name: str) -> str:
    return f"{name} made"


async def text_of(body: Callable[[Context], Any]) -> tuple[bool, str]:
    server = Server("cloud")

    @server.tool
    async def make(ctx: Context) -> str:
        return str(await body(ctx))

    async with Client(server) as client:
        result = await client.call_tool("make", {})
    return bool(result.is_error), result.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["once", "memo", "on_commit"])
async def test_a_called_function_is_refused_with_the_words_to_write(what: str) -> None:
    # The coroutine is closed: a warning that it was never awaited would fail this test.
    failed, text = await text_of(lambda ctx: getattr(ctx, what)("create", create("orders")))
    assert failed
    assert f'ctx.{what}("create", create, name), not ctx.{what}(create(name))' in text


async def test_a_function_in_the_place_of_the_key_is_refused() -> None:
    failed, text = await text_of(lambda ctx: ctx.once(create, "orders"))  # type: ignore[arg-type]
    assert failed
    assert "ctx.once takes a key, a function and its arguments" in text


async def test_a_key_a_function_and_its_arguments_are_taken() -> None:
    assert await text_of(lambda ctx: ctx.once("create", create, "orders")) == (False, "orders made")


def line_of(marker: str) -> str:
    """Return file and line of a marked line of this file."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return f"{__file__}:{number}"


def error_in(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    return line


async def test_the_log_gives_the_cure_and_the_line_of_a_broken_rule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def twice(ctx: Context) -> str:
        await ctx.once("create", create, "orders")
        return await ctx.once("create", create, "orders")  # used again

    failed, text = await text_of(twice)
    assert failed
    assert error_in(caplog) == f"tool:make failed at {line_of('used again')}: KeyReused: {text}"
    assert "Give each effect a key of its own" in text


@pytest.mark.parametrize("exposed", [False, True])
async def test_the_log_of_a_diverged_call_shows_a_question_only_where_errors_are_exposed(
    caplog: pytest.LogCaptureFixture, exposed: bool
) -> None:
    server = Server("cloud", expose_errors=exposed)
    questions = iter(("Who is ill?", "Who is well?"))

    @server.tool
    async def make(ctx: Context) -> str:
        return str(await ctx.elicit(next(questions), NAME, key="who"))  # asked

    async with Client(server) as client:
        step = await client.begin("make", can={"form"})
        told = (await client.resume(step, {"who": {"name": "Ada"}})).result.content[0].text  # type: ignore[union-attr]
    assert "Who is ill?" in told
    line = error_in(caplog)
    assert line.startswith(
        f"tool:make failed at {line_of('asked')}: Diverged: this re-run diverged"
    )
    assert told.partition(". ")[2] in line  # the cure
    assert ("Who is" in line) == exposed
    if not exposed:
        assert "the call recorded ask 'who', the code now has another ask 'who'" in line


async def test_a_forgotten_await_is_logged_with_its_own_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def forgets(ctx: Context) -> str:
        unused: Any = ctx.once
        unused("create", create, "orders")  # the forgotten call
        return "made"

    await text_of(forgets)
    assert error_in(caplog).startswith(
        f"tool:make failed at {line_of('the forgotten call')}: HandlerError"
    )
