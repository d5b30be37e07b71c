"""Results of effects and memos keep their types and are checked before they count."""

import enum
import gc
import subprocess
import sys
import uuid
import weakref
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretBytes,
    SecretStr,
    StringConstraints,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from antiphon import Context, Server
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, serving


class Colour(enum.Enum):
    RED = "red"


class Aliased(BaseModel):
    both: int = Field(alias="theBoth")
    written: int = Field(serialization_alias="theWritten")
    read: int = Field(validation_alias=AliasChoices("r", "theRead"))


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    id: uuid.UUID
    day: date
    colour: Colour
    tags: set[str]


ALIASED = Aliased(theBoth=1, written=2, r=3)  # pyright: ignore[reportCallIssue]
STRICT = Strict(id=uuid.UUID(int=7), day=date(2026, 1, 2), colour=Colour.RED, tags={"a"})


@pytest.mark.parametrize("value", [ALIASED, STRICT], ids=["aliased", "strict"])
@pytest.mark.parametrize("what", ["once", "memo"])
async def test_models_come_back_whatever_their_aliases_and_strictness(
    rounds: Any, tally: Any, what: str, value: BaseModel
) -> None:
    def make() -> BaseModel:
        tally.mark("made")
        return value

    async def order(ctx: Context) -> str:
        found = await getattr(ctx, what)("value", make, returns=type(value))
        await ctx.elicit("Where?", Place)
        return str(found == value)

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "True"
    assert tally["made"] == 1


class Excluding(BaseModel):
    user: str
    password: str = Field(default="", exclude=True)


class Sometimes(BaseModel):
    price: int = Field(default=0, exclude_if=lambda price: price == 5)


@dataclass
class ExcludingData:
    password: Annotated[str, Field(exclude=True)]


@pydantic_dataclass
class ExcludingPydantic:
    password: str = Field(exclude=True)


EXCLUDING = [
    (Excluding(user="ada", password="x"), Excluding, "'password' of Excluding"),
    ([Excluding(user="ada", password="x")], list[Excluding], "'password' of Excluding"),
    (Sometimes(price=5), Sometimes, "'price' of Sometimes"),
    (ExcludingData("x"), ExcludingData, "'password' of ExcludingData"),
    (ExcludingPydantic("x"), ExcludingPydantic, "'password' of ExcludingPydantic"),
]


@pytest.mark.parametrize("what", ["once", "memo"])
@pytest.mark.parametrize(("value", "returns", "told"), EXCLUDING)
async def test_a_type_with_fields_that_are_left_out_is_refused_before_anything_happens(
    rounds: Any, tally: Any, what: str, value: Any, returns: Any, told: str
) -> None:
    def make() -> Any:
        tally.mark("made")
        return value

    async def order(ctx: Context) -> str:
        return str(await getattr(ctx, what)("login", make, returns=returns))

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert told in done.text
    assert tally["made"] == 0


@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_field_that_is_left_out_is_not_lost_silently_where_no_type_is_declared(
    rounds: Any, what: str
) -> None:
    async def order(ctx: Context) -> str:
        made = {"in": [Excluding(user="ada", password="x")]}
        return str(await getattr(ctx, what)("login", lambda: made))

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert "'password' of Excluding" in done.text


class Reading(BaseModel):
    degrees: list[float | None]


@pytest.mark.parametrize("what", ["once", "memo"])
@pytest.mark.parametrize(
    ("value", "returns", "place"),
    [
        ({"degrees": [1.0, float("nan")]}, None, "degrees.1"),
        (Reading(degrees=[float("inf")]), Reading, "degrees.0"),
    ],
)
async def test_a_number_that_is_not_finite_is_refused_by_name(
    rounds: Any, what: str, value: Any, returns: Any, place: str
) -> None:
    async def order(ctx: Context) -> str:
        return str(await getattr(ctx, what)("reading", lambda: value, returns=returns))

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert f"not finite at {place}" in done.text


class Login(BaseModel):
    user: str
    password: SecretStr = Field(alias="passWord")
    keys: list[SecretBytes] = []


@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_secret_is_kept_as_what_it_hides_and_not_as_stars(rounds: Any, what: str) -> None:
    def login() -> Login:
        return Login(user="ada", passWord=SecretStr("hunter2"), keys=[SecretBytes(b"k")])

    async def order(ctx: Context) -> str:
        kept = await getattr(ctx, what)("login", login)
        bare = await getattr(ctx, what)("bare", lambda: {"in": [SecretStr("x")]})
        await ctx.elicit("Where?", Place)
        return f"{kept.password.get_secret_value()} {kept.keys[0].get_secret_value()} {bare}"

    done = await rounds(serving(order)).call("order", answers={"place": EU})
    assert done.text == "hunter2 b'k' {'in': ['x']}"


async def test_a_result_that_cannot_be_read_back_is_a_failure_and_not_settled_as_done(
    rounds: Any,
) -> None:
    def wrong() -> Annotated[int, Field(gt=5)]:
        return 3

    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        return str(await ctx.once("wrong", wrong))

    world = rounds(serving(order))
    done = await world.call("order", answers={"place": EU})
    assert "does not fit its declared type" in done.text
    (call,) = await world.store.calls()
    (row,) = await world.store.effects(call.call)
    assert row.state == "failed"


@pytest.mark.parametrize("make", [lambda: {"password": object()}, lambda: "hunter2 \ud800"])
async def test_a_memo_that_is_no_json_is_named_and_not_shown(rounds: Any, make: Any) -> None:
    async def order(ctx: Context) -> str:
        await ctx.memo("price", make)
        return "never"

    done = await rounds(serving(order)).begin("order")
    assert "memo 'price'" in done.text
    assert "hunter2" not in done.text


class Taxed(BaseModel):
    price: float

    @field_validator("price")
    @classmethod
    def with_tax(cls, price: float) -> float:
        return price * 2


@dataclass
class Counted:
    number: int

    def __post_init__(self) -> None:
        self.number += 1


class Trimmed(BaseModel):
    text: Annotated[str, StringConstraints(strip_whitespace=True)]
    tags: set[str]


def taxed() -> Taxed:
    return Taxed(price=100)


def counted() -> list[Counted]:
    return [Counted(1)]


def trimmed() -> Trimmed:
    return Trimmed.model_construct(text=" eu ", tags={"a", "b", "c"})


@pytest.mark.parametrize("make", [taxed, counted])
@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_type_that_changes_its_values_at_every_reading_is_refused(
    rounds: Any, what: str, make: Any
) -> None:
    async def order(ctx: Context) -> str:
        return repr(await getattr(ctx, what)("price", make))

    done = await rounds(serving(order)).begin("order")
    assert done.is_error
    assert "changes whenever it is read" in done.text


@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_type_that_brings_values_into_one_form_is_kept(rounds: Any, what: str) -> None:
    async def order(ctx: Context) -> str:
        found = await getattr(ctx, what)("place", trimmed)
        return f"{found.text} {sorted(found.tags)}"

    assert (await rounds(serving(order)).begin("order")).text == "eu ['a', 'b', 'c']"


@dataclass
class Invoice:
    total: int
    kind: str = field(init=False, default="invoice")
    paid: bool = field(init=False, default=False)


@dataclass
class Area:
    side: int
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.side**2


def paid_invoice() -> Invoice:
    invoice = Invoice(7)
    invoice.paid = True
    return invoice


def paid_invoices() -> dict[str, list[Invoice]]:
    return {"all": [paid_invoice()]}


def area() -> Area:
    return Area(3)


@pytest.mark.parametrize("make", [paid_invoice, paid_invoices, area])
@pytest.mark.parametrize("what", ["once", "memo"])
async def test_fields_that_init_does_not_take_are_kept(rounds: Any, what: str, make: Any) -> None:
    async def order(ctx: Context) -> str:
        made = await getattr(ctx, what)("made", make)
        await ctx.elicit("Where?", Place)
        return str(made == make())

    assert (await rounds(serving(order)).call("order", answers={"place": EU})).text == "True"


def changed_area() -> Area:
    made = Area(3)
    made.size = 10
    return made


@pydantic_dataclass
class Bill:
    total: int
    paid: bool = field(init=False, default=False)


def paid_bill() -> Bill:
    bill = Bill(7)
    bill.paid = True
    return bill


@pytest.mark.parametrize("make", [changed_area, paid_bill])
@pytest.mark.parametrize("what", ["once", "memo"])
async def test_a_field_is_kept_or_refused_and_never_lost(rounds: Any, what: str, make: Any) -> None:
    async def order(ctx: Context) -> str:
        return str(await getattr(ctx, what)("made", make) == make())

    done = await rounds(serving(order)).begin("order")
    assert done.text == "True" or "the change would be lost" in done.text


async def test_a_step_whose_type_changes_its_values_at_every_reading_is_refused() -> None:
    server = Server("shop")
    flow = server.flow("order")

    @flow.step
    def price() -> Taxed:
        return Taxed(price=100)

    @flow.finish
    def finish(price: Taxed) -> str:
        return str(price.price)

    async with Rounds(server) as world:
        assert "step 'price' changes whenever it is read" in (await world.begin("order")).text


def opened(folder: Path) -> Any:
    path = folder / "invoice.txt"
    path.write_text("line 1\nline 2\n")
    return path.open()


@dataclass
class Upload:
    name: str
    lines: Any


@pytest.mark.parametrize("where", ["argument", "in a dataclass", "in a list"])
@pytest.mark.parametrize("kind", ["file", "generator", "iterator"])
async def test_an_effect_gets_what_can_be_read_only_once_unread(
    rounds: Any, tmp_path: Path, kind: str, where: str
) -> None:
    with opened(tmp_path) as file:
        lines = {
            "file": file,
            "generator": (f"line {n}\n" for n in (1, 2)),
            "iterator": iter(["line 1\n", "line 2\n"]),
        }[kind]
        given = {"in a dataclass": Upload("invoice", lines), "in a list": [lines]}.get(where, lines)

        def send(upload: Any) -> str:
            if isinstance(upload, Upload):
                upload = upload.lines
            return "".join(upload[0] if isinstance(upload, list) else upload)

        async def order(ctx: Context) -> str:
            return await ctx.once("send", send, given)

        assert (await rounds(serving(order)).begin("order")).text == "line 1\nline 2\n"


async def test_binary_arguments_of_an_effect_are_compared_by_their_bytes(rounds: Any) -> None:
    scan = [b"\xff\x00first"]

    def send(image: bytes, parts: list[memoryview]) -> int:
        return len(image) + len(parts)

    async def order(ctx: Context) -> str:
        sent = await ctx.once("send", send, scan[0], [memoryview(scan[0])])
        await ctx.elicit("Where?", Place)
        return str(sent)

    world = rounds(serving(order))
    assert (await world.call("order", answers={"place": EU})).text == "8"
    step = await world.begin("order")
    scan[0] = b"\xff\x00other"
    assert "this re-run diverged" in (await world.answer(step, {"place": EU})).text


async def test_an_error_comes_back_where_nobody_has_imported_its_module_yet(
    rounds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "price_service.py").write_text("class Down(ConnectionError):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)

    def look_up() -> int:
        from price_service import Down  # pyright: ignore[reportMissingImports]

        raise Down("for an hour")

    async def order(ctx: Context) -> str:
        try:
            await ctx.memo("price", look_up)
        except ConnectionError as error:
            place = await ctx.elicit("Where else?", Place)
            return f"{error}: {place.region}"
        return "never"

    world = rounds(serving(order))
    step = await world.begin("order")
    monkeypatch.delitem(sys.modules, "price_service")  # as in another process
    assert (await world.answer(step, {"place": EU})).text == "for an hour: eu"


async def test_functions_of_ended_calls_are_not_kept() -> None:
    class Large:
        pass

    kept: list[weakref.ref[Large]] = []

    async def order(ctx: Context) -> str:
        large = Large()
        kept.append(weakref.ref(large))
        await ctx.memo("m", lambda: bool(large))
        await ctx.once("e", lambda: bool(large))
        return "done"

    async with Rounds(serving(order)) as world:
        for _ in range(5):
            assert (await world.begin("order")).text == "done"
    gc.collect()
    assert [one() for one in kept] == [None] * 5


DIGEST = """
import collections
import dataclasses
import enum
from pydantic import BaseModel, computed_field
from antiphon.engine.serialization.arguments import arguments_digest

class Model(BaseModel):
    tags: set[str]

@dataclasses.dataclass
class Data:
    inner: list[Model]

names = {f"name{n}" for n in range(20)}

class Computed(BaseModel):
    tags: list[str]

    @computed_field
    @property
    def unique(self) -> set[str]:
        return set(self.tags)

class Groups(enum.Enum):
    ALL = frozenset(names)

arguments = (
    Data([Model(tags=names)]),
    {"plain": names},
    collections.deque([names]),
    Computed(tags=sorted(names)),
    Groups.ALL,
)
print(arguments_digest(print, arguments).hex())
"""


def test_the_digest_of_arguments_does_not_depend_on_the_order_of_sets() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
