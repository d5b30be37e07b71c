"""Middleware sees every round of a call, what came of it, and can break no promise."""

import asyncio
import time
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import (
    CallInfo,
    ConfigError,
    Console,
    Context,
    Elicit,
    InputRequired,
    MemoryStore,
    Middleware,
    Next,
    Server,
    ToolError,
)
from antiphon.protocol.request import Era, Principal
from antiphon.testing import Rounds

ERAS: list[Era] = ["modern", "legacy"]
ADA = Principal(transport="process", subject="ada")


class Size(BaseModel):
    gb: int


class Seen:
    """Middleware that writes down what it sees."""

    def __init__(self) -> None:
        self.calls: list[CallInfo] = []
        self.lines: list[str] = []

    async def __call__(self, call: CallInfo, next: Next) -> Any:
        self.calls.append(call)
        try:
            return await next()
        finally:
            self.lines.append(f"{call.kind}:{call.name} {call.round} {call.outcome}")


def make(*middleware: Middleware, **settings: Any) -> Server:
    server = Server("shop", middleware=middleware, **settings)
    server.made = []  # type: ignore[attr-defined]

    @server.tool
    async def buy(ctx: Context, item: str) -> str:
        size = await ctx.elicit("How large?", Size)
        await ctx.once("pay", server.made.append, item)  # type: ignore[attr-defined]
        again = await ctx.elicit("How often?", Size)
        return f"{item} {size.gb} {again.gb}"

    @server.tool
    def fails(what: str) -> str:
        raise ToolError(what) if what else OSError("secret")

    @server.tool
    async def native(ctx: Context) -> str | InputRequired:
        if ctx.answers.get("size", Size) is None:
            return InputRequired({"size": Elicit("How large?", Size)})
        return "done"

    @server.prompt
    async def greet(who: str) -> str:
        return f"Hello {who}"

    @server.resource("shop://{item}")
    async def read(item: str) -> str:
        return item

    return server


ANSWERS = {"size": {"gb": 4}, "size-2": {"gb": 2}}


async def test_every_round_of_a_call_is_seen_as_one_call() -> None:
    seen = Seen()
    async with Rounds(make(seen), principal=ADA) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
    assert done.text == "tea 4 2"
    assert len({call.id for call in seen.calls}) == 1
    assert {call.principal for call in seen.calls} == {ADA}
    assert seen.calls[0].arguments == {"item": "tea"}
    assert seen.lines == [
        "tool:buy 1 input_required",
        "tool:buy 2 input_required",
        "tool:buy 3 complete",
    ]


async def test_it_waits_with_a_parked_handler() -> None:
    seen = Seen()
    server = make(seen)

    @server.tool(park=30)
    async def parked(ctx: Context) -> str:
        return f"{(await ctx.elicit('How large?', Size)).gb}"

    async with Rounds(server, fresh=False) as rounds:
        waiting = await rounds.begin("parked")
        assert seen.lines == []
        assert (await rounds.answer(waiting, {"size": {"gb": 4}})).text == "4"
    assert seen.lines == ["tool:parked 2 complete"]


async def test_a_call_of_a_legacy_session_is_one_round() -> None:
    seen = Seen()
    async with Rounds(make(seen), era="legacy") as rounds:
        assert (await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)).text == "tea 4 2"
    assert seen.lines == ["tool:buy 1 complete"]
    assert seen.calls[0].era == "legacy"


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_resources_errors_and_native_handlers_pass_through_it(era: Era) -> None:
    seen = Seen()
    async with Rounds(make(seen), era=era) as rounds:
        await rounds.prompt("greet", {"who": "Ada"})
        await rounds.read("shop://tea")
        assert (await rounds.call("fails", {"what": "sold out"})).text == "sold out"
        assert "secret" not in (await rounds.call("fails", {"what": ""})).text
        assert (await rounds.call("native", answers={"size": {"gb": 1}})).text == "done"
    assert seen.lines == [
        "prompt:greet 1 complete",
        "resource:shop://{item} 1 complete",
        "tool:fails 1 error",
        "tool:fails 1 error",
        "tool:native 1 input_required",
        "tool:native 2 complete",
    ]


async def test_the_first_one_is_outermost_and_may_change_results_and_errors() -> None:
    order: list[str] = []

    async def outer(call: CallInfo, next: Next) -> Any:
        order.append("outer")
        try:
            return f"[{await next()}]"
        except OSError as error:
            raise ToolError("try again later") from error

    async def inner(call: CallInfo, next: Next) -> Any:
        order.append("inner")
        return f"({await next()})"

    async with Rounds(make(outer, inner)) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
        assert done.text == "[(tea 4 2)]"
        assert (await rounds.call("fails", {"what": ""})).text == "try again later"
    assert order[:2] == ["outer", "inner"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_can_be_refused_before_its_first_line(era: Era) -> None:
    async def refusing(call: CallInfo, next: Next) -> Any:
        if call.principal.subject != "ada":
            raise ToolError("Only Ada may do this.")
        return await next()

    server = make(refusing)
    async with Rounds(server, era=era) as rounds:
        refused = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
        assert refused.text == "Only Ada may do this."
        bought = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS, principal=ADA)
        assert bought.text == "tea 4 2"
    assert server.made == ["tea"]  # type: ignore[attr-defined]


async def test_leaving_the_handler_out_in_the_middle_of_a_call_is_refused() -> None:
    async def cached(call: CallInfo, next: Next) -> Any:
        return await next() if call.round < 3 else "from the cache"

    async with Rounds(make(cached)) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
    assert done.is_error
    assert "diverged" in done.text


async def test_swallowing_the_end_of_a_round_is_refused() -> None:
    async def swallowing(call: CallInfo, next: Next) -> Any:
        try:
            return await next()
        except BaseException:
            return "swallowed"

    async with Rounds(make(swallowing)) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
    assert done.is_error
    assert "swallowed the end of the round" in done.text


@pytest.mark.parametrize("era", ERAS)
async def test_the_handler_runs_once_in_a_round(era: Era) -> None:
    async def retrying(call: CallInfo, next: Next) -> Any:
        await next()
        try:
            return await next()
        except Exception:
            return "no harm done"

    async with Rounds(make(retrying), era=era) as rounds:
        done = await rounds.prompt("greet", {"who": "Ada"})
    assert "called next() twice" in done.text


async def test_a_result_that_is_forgotten_is_not_lost_in_silence() -> None:
    async def forgetful(call: CallInfo, next: Next) -> Any:
        await next()

    async with Rounds(make(forgetful)) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
    assert done.is_error
    assert "`return await next()`" in done.text


async def test_the_handler_stays_in_its_own_task() -> None:
    async def elsewhere(call: CallInfo, next: Next) -> Any:
        return await asyncio.ensure_future(next())

    async with Rounds(make(elsewhere)) as rounds:
        done = await rounds.call("buy", {"item": "tea"}, answers=ANSWERS)
    assert "ran next() in another task" in done.text


async def test_middleware_that_raises_fails_the_round_and_says_nothing_to_the_client() -> None:
    async def broken(call: CallInfo, next: Next) -> Any:
        await next()
        raise OSError("secret path")

    async with Rounds(make(broken)) as rounds:
        done = await rounds.call("native")
        assert done.is_error
        assert "secret" not in done.text


def test_what_is_no_async_function_is_refused_at_the_start() -> None:
    def blocking(call: CallInfo, next: Next) -> Any:
        return time.sleep(0)

    with pytest.raises(ConfigError, match="is no async function of"):
        Server("shop", middleware=[blocking])


@pytest.mark.parametrize("era", ERAS)
async def test_a_round_that_others_decide_about_is_held(era: Era) -> None:
    seen = Seen()
    server = Server(
        "shop",
        middleware=[seen],
        store=MemoryStore(),
        console=Console("http://127.0.0.1:8401/console"),
    )

    @server.tool(holds=True)
    async def refund(ctx: Context) -> str:
        return (await ctx.approve("Refund?", by="finance", grace=0)).outcome

    async with Rounds(server, era=era, principal=ADA) as rounds:
        assert "Not done yet" in (await rounds.call("refund")).text
    assert seen.lines == ["tool:refund 1 held"]
