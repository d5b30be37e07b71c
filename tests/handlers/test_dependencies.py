"""Parameters that the server provides: made for a round, ended with it, never part of the call."""

import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from antiphon import ConfigError, Context, Depends, Elicit, Resolve, Server
from antiphon.protocol.request import Era, Principal
from antiphon.testing import Rounds


class Size(BaseModel):
    gb: int


class Pool:
    """Something that JSON cannot carry."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def log() -> list[str]:
    return []


ERAS: list[Era] = ["modern", "legacy"]


def pool() -> Pool:
    return Pool("main")


async def async_pool() -> Pool:
    return Pool("main")


async def generated() -> AsyncGenerator[Pool]:
    yield Pool("main")


def generated_in_thread() -> Iterator[Pool]:
    assert threading.current_thread() is not threading.main_thread()
    yield Pool("main")


@asynccontextmanager
async def managed() -> AsyncGenerator[Pool]:
    yield Pool("main")


@contextmanager
def managed_in_thread() -> Generator[Pool]:
    yield Pool("main")


class Main(Pool):
    def __init__(self, name: str = "main") -> None:
        super().__init__(name)


WAYS = [pool, async_pool, generated, generated_in_thread, managed, managed_in_thread, Main]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("fn", WAYS, ids=lambda fn: fn.__name__)
async def test_a_dependency_is_provided_and_is_no_argument(fn: Any, era: Era) -> None:
    server = Server("shop")

    @server.tool
    async def name(db: Annotated[Pool, Depends(fn)], item: str) -> str:
        return f"{db.name} {item}"

    @server.tool
    def in_thread(db: Annotated[Pool, Depends(fn)], ctx: Context) -> str:
        return f"{db.name} {ctx.round}"

    @server.prompt
    async def greet(db: Annotated[Pool, Depends(fn)]) -> str:
        return db.name

    @server.resource("shop://{item}")
    async def read(item: str, db: Annotated[Pool, Depends(fn)]) -> str:
        return f"{db.name} {item}"

    async with Rounds(server, era=era) as rounds:
        assert (await rounds.call("name", {"item": "tea"})).text == "main tea"
        assert (await rounds.call("in_thread")).text == "main 1"
        greeting: Any = (await rounds.prompt("greet")).result
        assert greeting["messages"][0]["content"]["text"] == "main"
        found: Any = (await rounds.read("shop://tea")).result
        assert found["contents"][0]["text"] == "main tea"
    async with Rounds(server) as rounds:
        listed: Any = (await rounds.send("tools/list", {})).result
        tools = listed["tools"]
        listed = (await rounds.send("prompts/list", {})).result
        prompts = listed["prompts"]
    assert list(tools[0]["inputSchema"]["properties"]) == ["item"]
    assert "arguments" not in prompts[0]


async def test_it_is_made_for_every_round_and_ended_with_it(log: list[str]) -> None:
    async def session(ctx: Context) -> AsyncGenerator[Pool]:
        log.append(f"begin {ctx.round}")
        try:
            yield Pool("main")
        except BaseException as error:
            log.append(f"roll back {ctx.round}: {type(error).__name__}")
            raise
        else:
            log.append(f"commit {ctx.round}")

    server = Server("shop")

    @server.tool
    async def buy(ctx: Context, db: Annotated[Pool, Depends(session)]) -> str:
        size = await ctx.elicit("How large?", Size)
        log.append("handled")
        return f"{db.name} {size.gb}"

    async with Rounds(server) as rounds:
        done = await rounds.call("buy", answers={"size": {"gb": 4}})
    assert done.text == "main 4"
    assert log == ["begin 1", "roll back 1: Suspended", "begin 2", "handled", "commit 2"]


async def test_dependencies_of_dependencies_are_made_once_and_ended_in_reverse(
    log: list[str],
) -> None:
    async def pool() -> AsyncGenerator[str]:
        log.append("pool")
        yield "pool"
        log.append("end pool")

    async def session(db: Annotated[str, Depends(pool)]) -> AsyncGenerator[str]:
        log.append("session")
        yield f"session of {db}"
        log.append("end session")

    def orders(one: Annotated[str, Depends(session)], two: Annotated[str, Depends(pool)]) -> str:
        return f"{one} and {two}"

    server = Server("shop")

    @server.tool
    async def show(a: Annotated[str, Depends(orders)], b: Annotated[str, Depends(session)]) -> str:
        return f"{a}; {b}"

    async with Rounds(server) as rounds:
        assert (await rounds.call("show")).text == "session of pool and pool; session of pool"
    assert log == ["pool", "session", "end session", "end pool"]


async def test_it_may_see_who_calls(log: list[str]) -> None:
    def tenant(ctx: Context) -> str:
        return ctx.principal.subject or "nobody"

    server = Server("shop")

    @server.tool
    async def mine(who: Annotated[str, Depends(tenant)]) -> str:
        return who

    ada = Principal(transport="process", subject="ada")
    async with Rounds(server, principal=ada) as rounds:
        assert (await rounds.call("mine")).text == "ada"


@pytest.mark.parametrize("era", ERAS)
async def test_steps_and_resolvers_have_dependencies_too(log: list[str], era: Era) -> None:
    async def pool() -> AsyncGenerator[Pool]:
        log.append("open")
        yield Pool("main")
        log.append("close")

    server = Server("shop")
    flow = server.flow("order")

    @flow.step
    async def stock(db: Annotated[Pool, Depends(pool)], item: str) -> str:
        return f"{item} of {db.name}"

    @flow.step
    def size(stock: str) -> Elicit:
        return Elicit(f"How much {stock}?", Size)

    @flow.finish
    async def order(item: str, stock: str, size: Size, db: Annotated[Pool, Depends(pool)]) -> str:
        return f"{size.gb} {stock}, {db.name}"

    async def ask_size(db: Annotated[Pool, Depends(pool)]) -> Elicit:
        return Elicit(f"How much of {db.name}?", Size)

    @server.tool
    async def resolved(size: Annotated[Size, Resolve(ask_size)]) -> str:
        return f"{size.gb}"

    async with Rounds(server, era=era) as rounds:
        done = await rounds.call("order", {"item": "tea"}, answers={"size": {"gb": 4}})
        assert done.text == "4 tea of main, main"
        assert log == ["open", "close"] * 2  # one for the step, which is not run again
        assert (await rounds.call("resolved", answers={"size": {"gb": 4}})).text == "4"


@pytest.mark.parametrize("era", ERAS)
async def test_a_dependency_that_raises_fails_the_call_and_ends_the_others(
    log: list[str], era: Era
) -> None:
    async def first() -> AsyncGenerator[str]:
        yield "first"
        log.append("never: the error passes through the yield")

    async def second() -> AsyncGenerator[str]:
        try:
            yield "second"
        finally:
            log.append("ended")

    def broken() -> str:
        raise OSError("secret host is down")

    server = Server("shop")

    @server.tool
    async def use(
        a: Annotated[str, Depends(first)],
        b: Annotated[str, Depends(second)],
        c: Annotated[str, Depends(broken)],
    ) -> str:
        log.append("never")
        return a + b + c

    async with Rounds(server, era=era) as rounds:
        done = await rounds.call("use")
    assert done.is_error
    assert "unexpected error" in done.text
    assert "secret host" not in done.text
    assert log == ["ended"]


async def test_a_dependency_cannot_make_a_success_of_an_error_nor_of_a_question(
    log: list[str],
) -> None:
    async def swallowing() -> AsyncGenerator[str]:
        try:
            yield "db"
        except BaseException as error:
            log.append(type(error).__name__)

    server = Server("shop")

    @server.tool
    async def fails(db: Annotated[str, Depends(swallowing)]) -> str:
        raise OSError(db)

    @server.tool
    async def asks(ctx: Context, db: Annotated[str, Depends(swallowing)]) -> str:
        return f"{(await ctx.elicit('How large?', Size)).gb}"

    async with Rounds(server) as rounds:
        assert (await rounds.call("fails")).is_error
        assert (await rounds.call("asks", answers={"size": {"gb": 4}})).text == "4"
    assert log == ["OSError", "Suspended"]


async def test_a_clean_up_that_fails_fails_the_call() -> None:
    async def session() -> AsyncGenerator[str]:
        yield "db"
        raise OSError("cannot commit")

    server = Server("shop")

    @server.tool
    async def save(db: Annotated[str, Depends(session)]) -> str:
        return "saved"

    async with Rounds(server) as rounds:
        assert (await rounds.call("save")).is_error


async def test_a_test_puts_another_function_in_its_place() -> None:
    def never() -> str:
        raise AssertionError("the real one was made")

    def real(base: Annotated[str, Depends(never)]) -> Pool:
        return Pool(base)

    def settings() -> str:
        return "fake"

    async def fake(base: Annotated[str, Depends(settings)]) -> AsyncGenerator[Pool]:
        yield Pool(base)

    server = Server("shop")

    @server.tool
    async def name(db: Annotated[Pool, Depends(real)]) -> str:
        return db.name

    async with Rounds(server) as rounds:
        with server.override(real, fake):
            assert (await rounds.call("name")).text == "fake"
            with server.override(real, lambda: Pool("inner")):
                assert (await rounds.call("name")).text == "inner"
            with server.override(settings, lambda: "other"):
                assert (await rounds.call("name")).text == "other"
        assert (await rounds.call("name")).is_error


def test_what_nobody_can_provide_is_refused_at_registration() -> None:
    server = Server("shop")

    def needs(item: str) -> Pool:
        return Pool(item)

    async def use(db: Annotated[Pool, Depends(needs)], item: str) -> str:
        return item

    with pytest.raises(ConfigError, match=r"the dependency .*needs takes 'item'"):
        server.tool(use)
    with pytest.raises(ConfigError, match="takes the function itself"):
        Depends(Pool("main"))  # type: ignore[arg-type]


def first_of_two(two: "Annotated[str, Depends(second_of_two)]") -> str:  # pyright: ignore[reportUndefinedVariable]
    return two


def second_of_two(one: Annotated[str, Depends(first_of_two)]) -> str:
    return one


def test_dependencies_that_need_each_other_are_named() -> None:
    async def use(one: Annotated[str, Depends(first_of_two)]) -> str:
        return one

    with pytest.raises(ConfigError, match=r"first_of_two → second_of_two → first_of_two"):
        Server("shop").tool(use)


async def test_a_dependency_that_asks_is_told_to_be_a_resolver() -> None:
    def ask() -> Elicit:
        return Elicit("How large?", Size)

    server = Server("shop")

    @server.tool
    async def use(size: Annotated[Size, Depends(ask)]) -> str:
        return f"{size.gb}"

    async with Rounds(server) as rounds:
        assert "use Resolve instead of Depends" in (await rounds.call("use")).text
