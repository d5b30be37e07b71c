"""Programs that once got round a promise: each did, or hung, before it was mended."""

import asyncio
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from antiphon import Context, Elicit, Resolve, Server
from antiphon.errors import StoreError, Unavailable
from antiphon.stores.memory import MemoryStore
from antiphon.testing import Rounds
from tests.linear.one_tool_server import serving


class Yes(BaseModel):
    ok: bool


async def test_an_answer_about_a_value_does_not_count_for_another_value() -> None:
    prices = [100, 200]

    def price() -> int:
        return prices.pop(0)

    def confirm(price: Annotated[int, Resolve(price)]) -> Elicit:
        return Elicit(f"Buy at {price}?", Yes)

    async def buy(
        price: Annotated[int, Resolve(price)], yes: Annotated[Yes, Resolve(confirm)]
    ) -> str:
        return f"bought at {price}"

    async with Rounds(serving(buy)) as rounds:
        done = await rounds.call("buy", answers={"yes": {"ok": True}})
    assert done.is_error
    assert "Buy at 100?" in done.text
    assert "Buy at 200?" in done.text


async def test_an_answer_about_a_value_without_a_digest_is_held_against_the_question() -> None:
    class Quote:
        def __init__(self, amount: int) -> None:
            self.amount = amount

    quotes = [Quote(100), Quote(200)]

    def quote() -> Quote:
        return quotes.pop(0)

    def confirm(quote: Annotated[Quote, Resolve(quote)]) -> Elicit:
        return Elicit(f"Buy at {quote.amount}?", Yes)

    async def buy(
        quote: Annotated[Quote, Resolve(quote)], yes: Annotated[Yes, Resolve(confirm)]
    ) -> str:
        return f"bought at {quote.amount}"

    async with Rounds(serving(buy)) as rounds:
        done = await rounds.call("buy", answers={"yes": {"ok": True}})
    assert done.is_error
    assert "diverged" in done.text


async def test_a_parked_and_anchored_call_commits_instead_of_waiting_for_ever() -> None:
    paid: list[int] = []

    async def pay(ctx: Context) -> str:
        ctx.on_commit("pay", paid.append, 5)
        return "done"

    async with Rounds(serving(pay, anchor=True, park=60)) as rounds, asyncio.timeout(20):
        done = await rounds.call("pay")
    assert done.text == "done"
    assert done.rounds == 2
    assert paid == [5]


async def test_a_branch_that_acts_on_another_path_is_found_before_the_call_completes() -> None:
    release = ["first"]

    async def work(ctx: Context) -> str:
        async def ask() -> None:
            if release[0] == "first":
                await ctx.elicit("Go on?", Yes, key="go")

        async def act() -> None:
            if release[0] != "first":
                await ctx.once("act", lambda: None)

        await asyncio.gather(ask(), act())
        return "done"

    async with Rounds(serving(work)) as rounds:
        step = await rounds.begin("work")
        release[0] = "second"
        done = await rounds.answer(step, {"go": {"ok": True}})
    assert done.is_error
    assert "ask 'go'" in done.text
    assert "effect 'act'" in done.text


class Stalling(MemoryStore):
    """A store that never ends keeping a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.keeping = asyncio.Event()

    async def keep(self, *args: Any, **how: Any) -> bool:
        self.keeping.set()
        return await asyncio.get_running_loop().create_future()


async def test_a_client_that_leaves_while_its_token_is_made_leaves_no_frame_behind() -> None:
    left: list[str] = []

    async def work(ctx: Context) -> None:
        try:
            await ctx.memo("word", lambda: "hidden", secret=True)
            await ctx.elicit("Go on?", Yes)
        finally:
            left.append("unwound")

    store = Stalling()
    async with Rounds(serving(work, park=60), store=store, fresh=False) as rounds:
        request = asyncio.ensure_future(rounds.begin("work"))
        await store.keeping.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert left == ["unwound"]


class Word(BaseModel):
    word: str


async def test_the_answer_to_a_secret_step_stays_out_of_the_token() -> None:
    def make(**world: Any) -> Server:
        server = Server("cloud", **world)
        flow = server.flow("enter")

        @flow.step(secret=True)
        def word() -> Elicit:
            return Elicit("The word?", Word)

        @flow.step
        def sure(word: Word) -> Elicit:
            return Elicit("Sure?", Yes)

        @flow.finish
        async def enter(word: Word, sure: Yes) -> str:
            return word.word

        return server

    async with Rounds(make) as rounds:
        step = await rounds.begin("enter")
        step = await rounds.answer(step, {"word": {"word": "sentinel" * 200}})
        assert len(step.token) < 1_000  # encrypted, so what can be seen is its length
        done = await rounds.answer(step, {"yes": {"ok": True}})
    assert done.text == "sentinel" * 200


@pytest.mark.parametrize("held", ["bare", "in a model", "in a dataclass"])
async def test_effects_of_other_secrets_are_not_taken_for_one_another(held: str) -> None:
    charged: list[str] = []

    class Card(BaseModel):
        number: SecretStr

    @dataclass
    class Wallet:
        card: Card

    def wrap(number: str) -> Any:
        secret = SecretStr(number)
        if held == "bare":
            return secret
        return Card(number=secret) if held == "in a model" else Wallet(Card(number=secret))

    async def pay(ctx: Context) -> str:
        number = (await ctx.elicit("Which card?", Word)).word
        await ctx.once(
            "charge", lambda _: charged.append(number), wrap(number), scope="arguments", window=60
        )
        return "reused" if ctx.reused("charge") else "charged"

    async with Rounds(serving(pay)) as rounds:
        texts = [
            (await rounds.call("pay", answers={"word": {"word": number}})).text
            for number in ("one", "two", "one")
        ]
    assert texts == ["charged", "charged", "reused"]
    assert charged == ["one", "two"]


class Unguarded(MemoryStore):
    """A store that cannot guard effects."""

    async def begin(self, *args: Any, **how: Any) -> Any:
        raise StoreError("out of reach")


async def test_a_parked_handler_does_not_go_on_after_an_effect_that_nobody_guards() -> None:
    async def work(ctx: Context) -> None:
        with suppress(Exception):
            await ctx.once("act", lambda: None)
        await ctx.elicit("Go on?", Yes)

    async with Rounds(serving(work, park=60), store=Unguarded(), fresh=False) as rounds:
        step = await rounds.begin("work")
    assert step.code == Unavailable("").code


async def test_another_version_does_not_restart_after_what_a_failed_attempt_did() -> None:
    done: list[str] = []

    def release(version: str, key: str, *, fails: bool) -> Any:
        async def pay(ctx: Context) -> str:
            await ctx.elicit("Go on?", Yes)
            await ctx.once(key, done.append, key)
            if fails:
                raise RuntimeError
            return "paid"

        return serving(pay, version=version, on_version_change="restart")

    async with Rounds(release("1", "charge", fails=True)) as rounds:
        step = await rounds.begin("pay")
        failed = await rounds.answer(step, {"yes": {"ok": True}})
        await rounds.deploy(release("2", "charge-card", fails=False))
        again = await rounds.answer(step, {"yes": {"ok": True}})
    assert failed.is_error
    assert "diverged" in again.text
    assert done == ["charge"]


async def test_the_ledger_does_not_tell_who_guesses_an_answer_that_the_guess_is_right(
    tmp_path: Path,
) -> None:
    async def enter(ctx: Context) -> str:
        given = await ctx.elicit("The word?", Word, secret=True)
        await ctx.once("use", lambda word: None, given.word)
        return "in"

    file = tmp_path / "ledger.db"
    async with Rounds(serving(enter), store=f"sqlite:///{file}") as rounds:
        for _ in range(2):
            done = await rounds.call("enter", answers={"word": {"word": "4711"}})
            assert done.text == "in"
    with closing(sqlite3.connect(file)) as ledger:
        answers = ledger.execute("SELECT answers FROM antiphon_rounds").fetchall()
        arguments = ledger.execute("SELECT arguments FROM antiphon_effects").fetchall()
    # A digest that could be tried out would be the same for the same answer.
    assert len(answers) == len(set(answers)) == 2
    assert len(arguments) == len(set(arguments)) == 2


async def test_no_warning_shows_a_result_that_is_of_another_type_than_declared(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def tell(ctx: Context) -> Yes:
        given = await ctx.elicit("The word?", Word)
        return {"ok": given.word}  # pyright: ignore[reportReturnType]

    async with Rounds(serving(tell)) as rounds:
        await rounds.call("tell", answers={"word": {"word": "sentinel"}})
    assert not [warning for warning in recwarn if "sentinel" in str(warning.message)]
