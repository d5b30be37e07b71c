"""A server with a form for every type of field that people write, and the answers to them."""

import enum
import ipaddress
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ByteSize,
    EmailStr,
    Field,
    FutureDate,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    NonNegativeFloat,
    PositiveInt,
    PostgresDsn,
    StrictBool,
    StringConstraints,
    create_model,
)

from antiphon import Choices, Context, Server


class Level(enum.IntEnum):
    LOW = 1
    VERY_HIGH = 2


class Mixed(enum.Enum):
    NAME = "a"
    NUMBER = 2.5


class Region(enum.StrEnum):
    EU = "eu"
    US = "us"


ID = "6f1d3c5e-0b8a-4c1f-9a53-2f7f8f0e4d21"

FIELDS: dict[str, tuple[Any, Any, Any]] = {
    # the type, an answer as a client sends it, and the value
    "str": (str, "x", "x"),
    "str-length": (Annotated[str, Field(min_length=2, max_length=3)], "ab", "ab"),
    "str-pattern": (Annotated[str, Field(pattern=r"^[A-Z]{3}$")], "EUR", "EUR"),
    "str-stripped": (Annotated[str, StringConstraints(strip_whitespace=True)], " x ", "x"),
    "int": (int, 3, 3),
    "int-bounds": (Annotated[int, Field(gt=0, lt=10)], 9, 9),
    "int-multiple": (Annotated[int, Field(multiple_of=5)], 15, 15),
    "positive-int": (PositiveInt, 1, 1),
    "float": (float, 0.5, 0.5),
    "float-exclusive": (Annotated[float, Field(gt=0, lt=1)], 0.25, 0.25),
    "float-not-negative": (NonNegativeFloat, 0, 0.0),
    "bool": (bool, True, True),
    "bool-strict": (StrictBool, False, False),
    "decimal": (Decimal, 12.5, Decimal("12.5")),
    "decimal-money": (
        Annotated[Decimal, Field(gt=0, max_digits=8, decimal_places=2)], 119.99, Decimal("119.99"),
    ),
    "uuid": (uuid.UUID, ID, uuid.UUID(ID)),
    "date": (date, "2026-07-28", date(2026, 7, 28)),
    "future-date": (FutureDate, "2999-01-01", date(2999, 1, 1)),
    "time": (time, "14:30", time(14, 30)),
    "datetime": (AwareDatetime, "2026-07-28T09:30:00+00:00", "2026-07-28T09:30:00+00:00"),
    "datetime-naive": (NaiveDatetime, "2026-07-28T09:30", datetime(2026, 7, 28, 9, 30)),  # noqa: DTZ001
    "timedelta": (timedelta, "1:30:00", timedelta(hours=1, minutes=30)),
    "literal": (Literal["a", "b"], "b", "b"),
    "literal-int": (Literal[1, 2], "2", 2),
    "literal-mixed": (Literal[1, "a", 2.5], "1", 1),
    "literal-true": (Literal[True], True, True),
    "literal-or-none": (Literal["a", None], "a", "a"),
    "enum": (Region, "us", Region.US),
    "enum-int": (Level, "2", Level.VERY_HIGH),
    "enum-mixed": (Mixed, "2.5", Mixed.NUMBER),
    "titled": (Annotated[int, Choices({1: "One", 2: "Two"})], "1", 1),
    "optional": (int | None, 5, 5),
    "optional-enum": (Level | None, "1", Level.LOW),
    "optional-decimal": (Decimal | None, 1, Decimal("1")),
    "int-or-float": (int | float, 1.5, 1.5),
    "several": (list[Literal["a", "b"]], ["b", "a"], ["b", "a"]),
    "several-int": (list[Literal[1, 2]], ["2"], [2]),
    "several-enum": (set[Level], ["1", "2"], {Level.LOW, Level.VERY_HIGH}),
    "email": (EmailStr, "ann@example.org", "ann@example.org"),
    "http-url": (HttpUrl, "https://example.org/a", "https://example.org/a"),
    "any-url": (AnyUrl, "ftp://example.org/a", "ftp://example.org/a"),
    "dsn": (PostgresDsn, "postgresql://db/x", "postgresql://db/x"),
    "path": (Path, "/srv/x", Path("/srv/x")),
    "ip": (ipaddress.IPv4Address, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1")),
    "ip-any": (IPvAnyAddress, "::1", ipaddress.IPv6Address("::1")),
    "byte-size": (ByteSize, "2 KB", 2000),
    "json": (Json[list[int]], "[1, 2]", [1, 2]),
}  # fmt: skip


def form_of(name: str) -> type[BaseModel]:
    """Return a form with one field of a type."""
    return create_model("One", value=(FIELDS[name][0], ...))


def shown(value: Any) -> str:
    """Write a value down: URLs and times with an offset as their text."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return repr(value.isoformat())
    if type(value).__module__ == "pydantic.networks":
        return repr(str(value))
    return repr(sorted(value) if isinstance(value, set) else value)


server = Server("fields")


@server.tool
async def fill(ctx: Context, name: str) -> str:
    """Ask for a field of this type and return the value."""
    answer: Any = await ctx.elicit("Fill in", form_of(name))
    return shown(answer.value)
