"""Forms and keys that cannot work are refused when a handler is registered."""

from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, SecretStr

from antiphon import ConfigError, Context, Elicit, InputRequired, Resolve, Server


class Address(BaseModel):
    street: str


class Order(BaseModel):
    address: Address


class Login(BaseModel):
    code: SecretStr


class Place(BaseModel):
    region: str


async def asks_nested(ctx: Context) -> str:
    return str(await ctx.elicit("Where?", Order))


async def asks_secret(ctx: Context) -> str:
    return str(await ctx.outcome(Elicit("Who?", form=Login)))


async def asks_bool(ctx: Context) -> str:
    return str(await ctx.elicit("Sure?", bool))


async def returns_nested(ctx: Context) -> str | InputRequired:
    return InputRequired({"order": Elicit("Where?", Order)})


@pytest.mark.parametrize(
    ("handler", "fix"),
    [
        (asks_nested, "'address' is nested"),
        (asks_secret, "elicit_url"),
        (asks_bool, "await ctx.approve(message)"),
        (returns_nested, "'address' is nested"),
    ],
)
def test_a_form_that_cannot_be_asked_is_refused_at_registration(handler: Any, fix: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Server("shop").tool(handler)
    assert f"tool '{handler.__name__}', line " in str(refusal.value)
    assert fix in str(refusal.value)


def test_a_form_of_an_enclosing_function_is_seen() -> None:
    class Inner(BaseModel):
        address: Address

    async def order(ctx: Context) -> str:
        return str(await ctx.elicit("Where?", Inner))

    with pytest.raises(ConfigError, match="'address' is nested"):
        Server("shop").tool(order)


def test_a_model_that_is_no_form_may_be_used_for_something_else() -> None:
    async def order(ctx: Context) -> str:
        place = await ctx.elicit("Where?", Place)
        return Order(address=Address(street=place.region)).model_dump_json()

    Server("shop").tool(order)


def test_a_resolver_that_asks_for_what_no_form_has_is_refused() -> None:
    def ask_order() -> Elicit:
        return Elicit("Where?", Order)

    async def buy(order: Annotated[Order, Resolve(ask_order)]) -> str:
        return str(order)

    with pytest.raises(ConfigError, match="'address' is nested"):
        Server("shop").tool(buy)


def test_a_step_that_asks_for_what_no_form_has_is_refused() -> None:
    flow = Server("shop").flow("buy")

    @flow.step
    def order() -> Elicit:
        return Elicit("Where?", Order)

    async def finish(order: Order) -> str:
        return str(order)

    with pytest.raises(ConfigError, match="'address' is nested"):
        flow.finish(finish)


async def numbered_question(ctx: Context) -> str:
    return (await ctx.elicit("Where?", Place, key="step-1")).region


async def numbered_effect(ctx: Context) -> str:
    return await ctx.once("pay-2", str, "x")


async def numbered_return(ctx: Context) -> str | InputRequired:
    return InputRequired({"step-1": Elicit("Where?", Place)})


@pytest.mark.parametrize("handler", [numbered_question, numbered_effect, numbered_return])
def test_a_key_with_a_number_at_its_end_is_refused_at_registration(handler: Any) -> None:
    with pytest.raises(ConfigError, match="ends in one after a dash"):
        Server("shop").tool(handler)


def test_a_key_of_something_else_than_the_context_is_left_alone() -> None:
    other = SimpleNamespace(once=lambda key: key)

    async def order(ctx: Context) -> str:
        other.once("step-1")
        return (await ctx.elicit("step-1", Place)).region

    Server("shop").tool(order)
