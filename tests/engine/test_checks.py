"""What cannot be done is refused before anything is claimed, with the words to write instead."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Client, Context, Server


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


async def test_the_log_names_the_handler_that_broke_a_rule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await text_of(lambda ctx: ctx.once("create", create("orders")))  # type: ignore[arg-type]
    assert "handler broke a rule: tool:make, HandlerError" in caplog.messages
