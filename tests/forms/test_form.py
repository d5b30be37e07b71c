"""Models, dataclasses and dicts become forms, and answers become values again."""

import enum
import gc
import subprocess
import sys
import weakref
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from mcp_types._v2026_07_28 import PrimitiveSchemaDefinition
from pydantic import (
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    NaiveDatetime,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from antiphon.errors import AnswerInvalid, UnsupportedForm
from antiphon.forms.choices import Choices
from antiphon.forms.form import REASON, Form
from antiphon.forms.schema import MAX_SCHEMA_BYTES, FlatSchema
from antiphon.forms.secrets import NOT_SECRET
from antiphon.protocol.secret_names import looks_secret

OFFICIAL: TypeAdapter[Any] = TypeAdapter(PrimitiveSchemaDefinition)


class Plan(enum.Enum):
    """How large."""

    SMALL = "s"
    LARGE = "l"


class Region(enum.StrEnum):
    EU = "eu"
    US = "us"

    @property
    def label(self) -> str:
        return {"eu": "Europe", "us": "America"}[self.value]


class Placement(BaseModel):
    """Where it lives."""

    region: str
    size: int = 2


def of_field(annotation: Any, default: Any = ...) -> Form[Any]:
    return Form.of(create_model("One", it=(annotation, default)))


def prop(annotation: Any, default: Any = ...) -> dict[str, Any]:
    found = dict(of_field(annotation, default).schema["properties"]["it"])
    OFFICIAL.validate_python(found)
    assert found.pop("title") == "It"
    return found


def reasons(form: Form[Any], content: Any) -> tuple[str, ...]:
    with pytest.raises(AnswerInvalid) as invalid:
        form.parse(content)
    return invalid.value.reasons


HINT_UUID = "A UUID such as 6f1d3c5e-0b8a-4c1f-9a53-2f7f8f0e4d21."
SHORT = {"type": "string", "maxLength": 1}

# --- annotations to keywords ------------------------------------------------------------------

TITLED = [{"const": "eu", "title": "Europe"}, {"const": "us", "title": "America"}]
EUROPE = Choices({"eu": "Europe", "us": "America"})


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (
            Annotated[str, Field(min_length=1, max_length=9)],
            {"type": "string", "minLength": 1, "maxLength": 9},
        ),
        (
            Annotated[str, Field(json_schema_extra={"format": "email"})],
            {"type": "string", "format": "email"},
        ),
        (Annotated[str, Field(description="D")], {"type": "string", "description": "D"}),
        (Annotated[str, Field(examples=["x"], deprecated=True)], {"type": "string"}),
        (date, {"type": "string", "format": "date"}),
        (datetime, {"type": "string", "format": "date-time"}),
        (AnyUrl, {"type": "string", "minLength": 1, "format": "uri"}),
        (int, {"type": "integer"}),
        (Annotated[int, Field(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[int, Field(gt=0, lt=10)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[int, Field(gt=0, ge=5)], {"type": "integer", "minimum": 5}),
        (float, {"type": "number"}),
        (Annotated[float, Field(ge=0.5, le=1)], {"type": "number", "minimum": 0.5, "maximum": 1.0}),
        (bool, {"type": "boolean"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Plan, {"type": "string", "description": "How large.", "enum": ["s", "l"]}),
        (Region, {"type": "string", "oneOf": TITLED}),
        (Annotated[str, EUROPE], {"type": "string", "oneOf": TITLED}),
        (Annotated[Literal["eu", "us"], EUROPE], {"type": "string", "oneOf": TITLED}),
        (Annotated[str | None, EUROPE], {"type": "string", "oneOf": TITLED}),
        (
            list[Literal["a", "b"]],
            {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        ),
        (list[Plan], {"type": "array", "items": {"type": "string", "enum": ["s", "l"]}}),
        (set[Literal["a"]], {"type": "array", "items": {"type": "string", "enum": ["a"]}}),
        (frozenset[Region], {"type": "array", "items": {"anyOf": TITLED}}),
        (tuple[Region, ...], {"type": "array", "items": {"anyOf": TITLED}}),
        (list[Annotated[str, EUROPE]], {"type": "array", "items": {"anyOf": TITLED}}),
        (
            Annotated[list[str], EUROPE, Field(min_length=1, max_length=2)],
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"anyOf": TITLED}},
        ),
        (Annotated[str, Field(pattern="a+")], {"type": "string"}),
        (Annotated[float, Field(gt=0, lt=2)], {"type": "number", "minimum": 0, "maximum": 2}),
        (Annotated[int, Field(multiple_of=2)], {"type": "integer"}),
        (Decimal, {"type": "number"}),
        (
            Annotated[Decimal, Field(gt=0, le=9, max_digits=3)],
            {"type": "number", "minimum": 0, "maximum": 9},
        ),
        (Literal[1, 2], {"type": "string", "enum": ["1", "2"]}),
        (Literal[True, None], {"type": "boolean"}),
        (Literal["a", 2], {"type": "string", "enum": ["a", "2"]}),
        (
            enum.Enum("Number", {"ONE": 1, "VERY_MANY": 2}),
            {
                "type": "string",
                "oneOf": [{"const": "1", "title": "One"}, {"const": "2", "title": "Very many"}],
            },
        ),
        (Path, {"type": "string"}),
        (UUID, {"type": "string", "description": HINT_UUID}),
        (
            Annotated[timedelta, Field(description="How long?")],
            {"type": "string", "description": "How long?"},
        ),
        (date | datetime, {"type": "string"}),
        (int | float, {"type": "number"}),
        (Annotated[str, Field(max_length=1, json_schema_extra={"x-more": 1})], SHORT),
        (int | None, {"type": "integer"}),
        (Region | None, {"type": "string", "oneOf": TITLED}),
        (
            Annotated[set[Literal["a"]] | None, Field(description="D")],
            {"type": "array", "description": "D", "items": {"type": "string", "enum": ["a"]}},
        ),
    ],
)
def test_an_ordinary_annotation_reaches_its_keyword(annotation: Any, expected: Any) -> None:
    assert prop(annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "default", "written"),
    [
        (str, "x", "x"),
        (int, 2, 2),
        (float, 0.5, 0.5),
        (bool, False, False),
        (Plan, Plan.LARGE, "l"),
        (Region | None, Region.US, "us"),
        (date, date(2026, 7, 28), "2026-07-28"),
        (datetime, datetime(2026, 7, 28, tzinfo=UTC), "2026-07-28T00:00:00Z"),
        (list[Plan], [Plan.LARGE], ["l"]),
        (set[Literal["a", "b", "c"]], {"c", "a"}, ["a", "c"]),
        (Decimal, Decimal("1.50"), 1.5),
        (Literal[1, 2], 2, "2"),
        (list[Literal[1, 2]], [2, 1], ["2", "1"]),
        (timedelta, timedelta(hours=1), "PT1H"),
        (UUID, UUID(int=1), str(UUID(int=1))),
    ],
)
def test_a_default_is_written_and_makes_the_field_optional(
    annotation: Any, default: Any, written: Any
) -> None:
    form = of_field(annotation, default)
    assert form.schema["properties"]["it"]["default"] == written
    assert "required" not in form.schema
    assert form.parse({}).it == form.parse({"it": written}).it == default


def test_a_title_of_the_authors_stays() -> None:
    form = of_field(Annotated[Plan, Field(title="How big?")])
    assert form.schema["properties"]["it"]["title"] == "How big?"


def test_a_default_made_by_a_function_is_not_told() -> None:
    form = of_field(Annotated[list[Plan], Field(default_factory=list)], Field(default_factory=list))
    assert "default" not in form.schema["properties"]["it"]
    assert form.parse({}).it == []


class Leaf(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        (Leaf, "nested"),
        (list[Leaf], "options"),
        (dict[str, int], "nested"),
        (list[str], "options"),
        (tuple[int, str], "options"),
        (Leaf | None, "nested"),
        (list[Leaf] | None, "options"),
        (int | str, "several types"),
        (int | str | None, "several types"),
        (bool | int, "several types"),
        (Leaf | str, "several types"),
        (Literal["a"] | int, "several types"),
        (Literal[1, "1"], "both written '1'"),
        (enum.Enum("Pair", {"ONE": (1, 2)}), "neither text, numbers"),
        (bytes, "bytes"),
        (Base64Bytes | None, "bytes"),
        (None, "null"),
        (Any, "type"),
        (Secret[int], "secret"),
        (Secret[str] | None, "secret"),
        (list[SecretStr], "secret"),
    ],
)
def test_what_cannot_be_carried_is_refused_naming_the_field(annotation: Any, word: str) -> None:
    with pytest.raises(UnsupportedForm, match=word) as refusal:
        of_field(annotation)
    assert refusal.value.field == "it"


def test_a_default_that_breaks_its_own_bounds_is_refused() -> None:
    with pytest.raises(UnsupportedForm, match="default"):
        of_field(Annotated[int, Field(le=3)], 4)


def test_titles_for_other_options_than_the_type_has_are_refused() -> None:
    with pytest.raises(UnsupportedForm, match="options"):
        of_field(Annotated[Plan, EUROPE])


def test_a_model_that_holds_itself_is_refused() -> None:
    class Node(BaseModel):
        below: "Node | None" = None

    with pytest.raises(UnsupportedForm, match="nested") as refusal:
        Form.of(Node)
    assert refusal.value.field == "below"


@pytest.mark.parametrize("spec", [int, str, RootModel[int], list[int], 3, "text", None, object])
def test_what_is_no_record_is_no_form(spec: Any) -> None:
    with pytest.raises(UnsupportedForm, match="is not a form"):
        Form.of(spec)


def test_a_field_without_a_json_schema_is_refused_with_the_reason() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        it: subprocess.Popen[bytes]

    with pytest.raises(UnsupportedForm, match=r"Odd.*JSON schema"):
        Form.of(Odd)


# --- kinds of forms ---------------------------------------------------------------------------


def test_a_model_is_compiled_once_and_knows_its_base() -> None:
    form = Form.of(Placement)
    assert Form.of(Placement) is form
    assert Form.of(form) is form
    assert form.base == "placement"
    assert form.schema_json == (
        b'{"type":"object","properties":{"region":{"type":"string","title":"Region"},'
        b'"size":{"type":"integer","title":"Size","default":2}},"required":["region"]}'
    )
    assert form.flat.json is form.schema_json
    assert form.parse({"region": "eu", "size": 3.0, "more": []}) == Placement(region="eu", size=3)


def test_a_subclass_has_a_form_of_its_own() -> None:
    class HTTPPlacement(Placement):
        port: int

    Form.of(Placement)
    assert Form.of(HTTPPlacement).base == "http_placement"
    assert list(Form.of(HTTPPlacement).schema["properties"]) == ["region", "size", "port"]


def test_models_made_on_every_call_do_not_pile_up() -> None:
    def ask() -> weakref.ref[type]:
        model = create_model("Fresh", it=(str, ...))
        assert Form.of(model).parse({"it": "x"}).it == "x"
        return weakref.ref(model)

    seen = [ask() for _ in range(700)]
    gc.collect()
    alive = sum(one() is not None for one in seen)
    assert 0 < alive <= 512
    assert seen[0]() is None


def test_nothing_is_written_on_the_class_of_a_form() -> None:
    model = create_model("Bare", it=(str, ...))
    before = set(vars(model))
    Form.of(model)
    assert set(vars(model)) == before


def test_a_dataclass_is_a_form() -> None:
    @dataclass
    class Order:
        plan: Plan
        note: Annotated[str | None, Field(max_length=5)]
        tags: list[Region] = field(default_factory=list[Region])

    form = Form.of(Order)
    assert form.base == "order"
    assert form.schema["required"] == ["plan"]
    assert form.parse({"plan": "s"}) == Order(Plan.SMALL, None, [])
    assert reasons(form, {"plan": "s", "note": "too long"}) == (
        "note: must have at most 5 characters",
    )


def test_a_typed_dict_is_a_form() -> None:
    class Stay(TypedDict):
        since: date

    assert Form.of(Stay).parse({"since": "2026-07-28"}) == {"since": date(2026, 7, 28)}


def test_a_dict_is_a_form_whose_values_are_a_dict_with_defaults() -> None:
    schema = {
        "type": "object",
        "title": "Anything",
        "additionalProperties": False,
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 2}},
        "required": ["a"],
    }
    form = Form.of(schema)
    assert form.base == "form"
    assert form.schema.keys() == {"type", "properties", "required"}
    assert form.parse({"a": "x", "c": 1}) == {"a": "x", "b": 2}
    assert Form.of(dict(schema)) is form
    assert reasons(form, {"b": "x"}) == ("a: an answer is required", "b: must be a whole number")


def test_a_dict_form_is_strict_about_its_subset() -> None:
    with pytest.raises(UnsupportedForm, match="pattern"):
        Form.of({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})


@pytest.mark.parametrize("value", [object(), {"type": "object", "properties": {"a": object()}}])
def test_a_dict_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedForm):
        Form.of(value if isinstance(value, dict) else {"type": value})


def test_a_bottomless_or_boundless_dict_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(UnsupportedForm):
        Form.of(deep)
    with pytest.raises(UnsupportedForm, match=str(MAX_SCHEMA_BYTES)):
        Form.of({"title": "x" * (3 * MAX_SCHEMA_BYTES)})


# --- the digest -------------------------------------------------------------------------------


def test_the_digest_tells_titles_options_and_defaults_apart() -> None:
    digests = {
        of_field(annotation, default).digest
        for annotation, default in [
            (str, ...),
            (str, "a"),
            (str, "b"),
            (Annotated[str, Field(title="T")], ...),
            (Annotated[str, Field(description="D")], ...),
            (Literal["a", "b"], ...),
            (Literal["b", "a"], ...),
            (Annotated[str, Choices({"a": "A"})], ...),
            (Annotated[str, Choices({"a": "B"})], ...),
        ]
    }
    assert len(digests) == 9


SCRIPT = """
from typing import Literal
from pydantic import BaseModel
from antiphon.forms.form import Form

class Many(BaseModel):
    them: set[Literal["a", "b", "c", "d", "e"]] = {"e", "d", "c", "b", "a"}

print(Form.of(Many).digest.hex())
"""


def test_every_process_has_the_same_digest() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


# --- answers ----------------------------------------------------------------------------------


def test_a_nullable_field_without_default_may_be_left_out() -> None:
    form = of_field(int | None)
    assert "required" not in form.schema
    assert form.parse({}).it is None
    assert form.parse({"it": None}).it is None
    assert form.parse({"it": 3}).it == 3


def test_absent_content_is_an_empty_answer() -> None:
    assert of_field(int, 3).parse(None).it == 3
    assert reasons(of_field(int), None) == ("it: an answer is required",)


def test_a_strict_model_takes_what_json_can_say() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date
        plan: Plan
        tags: set[Region]

    parsed = Form.of(Strict).parse({"day": "2026-07-28", "plan": "l", "tags": ["eu"]})
    assert parsed == Strict(day=date(2026, 7, 28), plan=Plan.LARGE, tags={Region.EU})


def test_an_alias_is_the_name_on_the_wire() -> None:
    class Aliased(BaseModel):
        from_: date = Field(alias="from")

    form = Form.of(Aliased)
    assert list(form.schema["properties"]) == ["from"]
    assert form.parse({"from": "2026-07-28"}).from_ == date(2026, 7, 28)


def test_where_the_author_reads_by_name_the_name_in_the_schema_is_read() -> None:
    by_name = ConfigDict(validate_by_alias=False, validate_by_name=True)

    class Trip(BaseModel):
        model_config = by_name
        to: str = Field(alias="into")

    @pydantic_dataclass(config=by_name)
    class Part:
        to: str = Field(alias="into")

    for kind in (Trip, Part):
        form: Form[Any] = Form.of(kind)
        (name,) = form.schema["properties"]  # the alias or not: releases of Pydantic differ
        recalled = form.recall(b'{"action":"accept","content":{"%b":"Oslo"}}' % name.encode())

        assert form.parse({name: "Oslo"}).to == "Oslo"
        assert recalled is not None
        assert recalled.to == "Oslo"


class Booking(BaseModel):
    name: str
    nights: int = 1

    @field_validator("name")
    @classmethod
    def not_taken(cls, value: str) -> str:
        if value.startswith("Zaphod"):
            raise ValueError(f"{value!r} is taken, and {value.upper()} too")
        if value == "long":
            raise ValueError("x" * 5_000)
        if value == "control":
            raise ValueError("a\x1b[2Jb")
        if value == "mute":
            raise ValueError
        return value

    @model_validator(mode="after")
    def not_too_long(self) -> "Booking":
        if self.nights > 30:
            raise ValueError(f"{self.nights} nights are too many\nfor {self.name}")
        return self


def test_a_validators_own_words_are_the_reason() -> None:
    with pytest.raises(AnswerInvalid) as invalid:
        Form.of(Booking).parse({"name": "Zaphod B."})
    assert invalid.value.reasons == ("name: 'Zaphod B.' is taken, and ZAPHOD B. too",)
    assert invalid.value.masked == ("name: '…' is taken, and … too",)


def test_a_validators_words_are_not_reworded_as_those_of_pydantic_are() -> None:
    class Meal(BaseModel):
        price: Annotated[int, Field(multiple_of=5)]

        @field_validator("price", mode="before")
        @classmethod
        def small(cls, value: Any) -> Any:
            if value > 100:
                raise ValueError("Input should be small: String should be 100")
            return value

    assert reasons(Form.of(Meal), {"price": 200}) == (
        "price: Input should be small: String should be 100",
    )
    assert reasons(Form.of(Meal), {"price": 3}) == ("price: must be a multiple of 5",)


def test_a_validator_of_the_whole_model_speaks_for_no_field() -> None:
    form = Form.of(Booking)
    assert reasons(form, {"name": "Arthur", "nights": 31}) == ("31 nights are too many for Arthur",)


@pytest.mark.parametrize(
    ("annotation", "answer", "reason"),
    [
        (Annotated[str, Field(pattern="^[A-Z]{3}$")], "eur", "must match pattern '^[A-Z]{3}$'"),
        (Annotated[float, Field(gt=0)], 0, "must be greater than 0"),
        (Annotated[Decimal, Field(decimal_places=2)], 1.005, "no more than 2 decimal places"),
        (Decimal, 12345678901234567.89, "must have at most 15 digits"),
        (Literal[1, 2], "3", "must be one of: 1, 2"),
        (list[Literal[1, 2]], ["3"], "nothing but the options"),
        (Literal[True], False, "must be True"),
        (UUID, "x", "must be a valid UUID"),
        (time, "25:00", "must be in a valid time format"),
        (NaiveDatetime, "2026-07-28T09:30:00Z", "must not have timezone info"),
    ],
)
def test_what_a_form_cannot_say_is_checked_on_the_way_back(
    annotation: Any, answer: Any, reason: str
) -> None:
    (found,) = reasons(of_field(annotation), {"it": answer})
    assert found.startswith("it: ")
    assert reason in found


@pytest.mark.parametrize(
    ("spec", "fix"),
    [
        (bool, "await ctx.approve(message)"),
        (str, "class Answer(BaseModel): value: str"),
        (Plan, "class Answer(BaseModel): value: Plan"),
        (Literal["a"], "model of one field"),
        (3, "Give a Pydantic model"),
    ],
)
def test_what_is_no_form_names_the_fix(spec: Any, fix: str) -> None:
    with pytest.raises(UnsupportedForm) as refusal:
        Form.of(spec)
    assert fix in str(refusal.value)
    assert str(refusal.value).startswith("the form is ")


def test_a_reason_is_short_printable_and_never_empty() -> None:
    form = Form.of(Booking)
    assert len(reasons(form, {"name": "long"})[0]) <= len("name: ") + REASON
    assert reasons(form, {"name": "control"}) == ("name: a\\x1b[2Jb",)
    assert reasons(form, {"name": "mute"}) == ("name: is not accepted",)


def test_an_endless_message_is_not_told_at_all() -> None:
    class Echo(BaseModel):
        it: str

        @field_validator("it")
        @classmethod
        def never(cls, value: str) -> str:
            raise ValueError(f"{value} is wrong")

    assert reasons(Form.of(Echo), {"it": "z" * 50_000}) == ("it: is not accepted",)


def test_a_wrong_choice_is_refused_with_the_options_where_they_are_few() -> None:
    few = Form.of({"type": "object", "properties": {"it": {"type": "string", "enum": ["a", "b"]}}})
    assert reasons(few, {"it": "c"}) == ("it: must be one of: a, b",)
    many = [f"option {number}" for number in range(100)]
    form = Form.of({"type": "object", "properties": {"it": {"type": "string", "enum": many}}})
    assert reasons(form, {"it": "c"}) == ("it: must be one of the options",)


def test_a_refused_answer_hides_what_was_typed_from_the_traceback() -> None:
    with pytest.raises(AnswerInvalid) as invalid:
        Form.of(Booking).parse({"name": "Zaphod B."})
    assert invalid.value.__suppress_context__
    assert "Zaphod" not in str(invalid.value)


def test_choices_hold_in_the_model_itself() -> None:
    class Pick(BaseModel):
        them: Annotated[list[Region], EUROPE]
        one: Annotated[str | None, EUROPE] = None

    assert Pick.model_validate({"them": ["eu"]}).one is None
    with pytest.raises(ValueError, match="one of the options"):
        Pick.model_validate({"them": [], "one": "asia"})


# --- secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("password", "userPassword", "PASSWORD", "new_password", "password2", "passwords"),
        *("db_password_prod", "passwd", "pwd", "passphrase", "password_confirm", "passcode"),
        *("secret", "client_secret", "secret_value", "token", "accessToken", "token_value"),
        *("api_key", "apikey", "apiKey", "APIKey", "api_keys", "Your API key", "private_key_pem"),
        *("ssh_key", "credit_card", "creditCardNumber", "card_number", "Card no.", "cvv", "cvv2"),
        *("cvc", "pin", "PIN", "pin_code", "card_pin", "ssn", "social_security_number", "otp"),
        *("Paste the API key here", "security_code", "seed_phrase", "credentials", "jwt"),
    ],
)
def test_a_name_that_asks_for_a_secret_is_seen(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("pinned", "spin", "pin_color", "opinion", "tokens_used", "max_tokens", "token_count"),
        *("tokenizer", "secretary", "secret_name", "password_hint", "password_policy", "compass"),
        *(
            "api_key_name",
            "public_key",
            "primary_key",
            "sort_key",
            "card_color",
            "credit_card_type",
        ),
        *("passenger", "name", "email", "username", "lesson", "country", "key", "", "discard_no"),
    ],
)
def test_a_name_that_only_contains_the_letters_is_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize("annotation", [str, int, str | None, Annotated[str, Field(max_length=4)]])
def test_a_field_that_looks_like_a_secret_points_to_url_mode(annotation: Any) -> None:
    with pytest.raises(UnsupportedForm, match="elicit_url") as refusal:
        Form.of(create_model("Login", password=(annotation, ...)))
    assert refusal.value.field == "password"
    assert NOT_SECRET in str(refusal.value)


def test_a_title_can_look_like_a_secret_too() -> None:
    with pytest.raises(UnsupportedForm, match="secret"):
        of_field(Annotated[str, Field(title="Your password")])


def test_a_dict_form_is_held_to_the_same() -> None:
    schema = {"type": "object", "properties": {"api_key": {"type": "string"}}}
    with pytest.raises(UnsupportedForm, match="elicit_url"):
        Form.of(schema)
    schema["properties"]["api_key"][NOT_SECRET] = True
    assert Form.of(schema).schema["properties"] == {"api_key": {"type": "string"}}


@pytest.mark.parametrize("annotation", [SecretStr, SecretBytes, SecretStr | None])
def test_a_secret_type_is_refused_whatever_its_name_or_mark(annotation: Any) -> None:
    marked = Annotated[annotation, Field(json_schema_extra={NOT_SECRET: True})]
    for spec in (annotation, marked):
        with pytest.raises(UnsupportedForm, match="elicit_url") as refusal:
            of_field(spec)
        assert NOT_SECRET not in str(refusal.value)


@pytest.mark.parametrize("annotation", [bool, Literal["sms", "app"], Plan, list[Plan], date])
def test_what_cannot_be_typed_into_holds_no_secret(annotation: Any) -> None:
    assert "token" in Form.of(create_model("Setup", token=(annotation, ...))).schema["properties"]


@pytest.mark.parametrize("word", [True, 1, "yes", False])
def test_the_authors_word_frees_a_field_and_stays_off_the_wire(word: Any) -> None:
    marked = Annotated[str, Field(json_schema_extra={NOT_SECRET: word})]
    model = create_model("Game", token=(marked, ...))
    if word is True:
        assert NOT_SECRET.encode() not in Form.of(model).schema_json
        assert Form.of(model).parse({"token": "top hat"}).model_dump() == {"token": "top hat"}
    else:
        with pytest.raises(UnsupportedForm, match="secret"):
            Form.of(model)


def test_a_schema_of_ours_is_a_schema_for_a_peer() -> None:
    form = Form.of(Booking)
    assert FlatSchema.tolerant(msgspec.json.decode(form.schema_json)).json == form.schema_json


def test_changing_a_value_changes_neither_the_answer_nor_the_form() -> None:
    items = {"type": "string", "enum": ["a", "b"]}
    schema = {
        "type": "object",
        "properties": {
            "chosen": {"type": "array", "items": items},
            "usual": {"type": "array", "items": items, "default": ["a"]},
        },
    }
    answer = {"chosen": ["a"]}
    first = Form.of(schema).parse(answer)
    first["chosen"].append("x")
    first["usual"].append("x")
    assert answer == {"chosen": ["a"]}
    assert Form.of(schema).parse(answer) == {"chosen": ["a"], "usual": ["a"]}
