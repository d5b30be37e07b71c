"""For any flat model: its schema is a form, and what fits the form comes back as the model."""

import enum
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types._v2026_07_28 import ElicitRequestFormParams, PrimitiveSchemaDefinition
from pydantic import BaseModel, Field, TypeAdapter, create_model

from antiphon.errors import AnswerInvalid
from antiphon.forms.choices import Choices
from antiphon.forms.form import Form
from antiphon.forms.schema import FlatSchema
from antiphon.protocol.secret_names import looks_secret

OFFICIAL: TypeAdapter[Any] = TypeAdapter(PrimitiveSchemaDefinition)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"

    @property
    def label(self) -> str:
        return self.name.title()


class Kind(NamedTuple):
    """An annotation, what a person may answer, and the value the model should then hold."""

    annotation: Any
    answers: st.SearchStrategy[Any]
    value: Any = staticmethod(lambda answer: answer)


def text_kind(bounds: tuple[int, int]) -> Kind:
    low, high = sorted(bounds)
    return Kind(
        Annotated[str, Field(min_length=low, max_length=high)],
        st.text(st.characters(codec="utf-8"), min_size=low, max_size=high),
    )


def integer_kind(bounds: tuple[int, int]) -> Kind:
    low, high = sorted(bounds)
    whole = st.integers(low, high)
    return Kind(
        Annotated[int, Field(gt=low - 1, le=high)],
        whole | whole.filter(lambda n: abs(n) < 2**53).map(float),
        int,
    )


def number_kind(bounds: tuple[float, float]) -> Kind:
    low, high = sorted(bounds)
    answers = st.floats(low, high, allow_nan=False)
    return Kind(Annotated[float, Field(ge=low, le=high)], answers, float)


def options_kind(options: list[str]) -> Kind:
    return Kind(Literal[*options], st.sampled_from(options))


def titled_kind(options: list[str]) -> Kind:
    titles = Choices({option: option * 2 for option in options})
    return Kind(Annotated[str, titles], st.sampled_from(options))


def several_kind(options: list[str]) -> Kind:
    return Kind(set[Literal[*options]], st.lists(st.sampled_from(options), unique=True), set)


SMALL = st.integers(-(2**40), 2**40)
FLOATS = st.floats(-1e9, 1e9, allow_nan=False)
OPTIONS = st.lists(st.text("abcé ", min_size=1, max_size=4), min_size=1, max_size=5, unique=True)
DAYS = st.dates(min_value=date(1000, 1, 1))
MOMENTS = st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
COLOURS = st.sampled_from([colour.value for colour in Colour])

KINDS = st.one_of(
    st.just(Kind(str, st.text(st.characters(codec="utf-8")))),
    st.just(Kind(bool, st.booleans())),
    st.just(Kind(Colour, COLOURS, Colour)),
    st.just(Kind(date, DAYS.map(date.isoformat), date.fromisoformat)),
    st.just(Kind(datetime, MOMENTS.map(datetime.isoformat), datetime.fromisoformat)),
    st.just(Kind(list[Colour], st.lists(COLOURS, unique=True), lambda a: [Colour(c) for c in a])),
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(text_kind),
    st.tuples(SMALL, SMALL).map(integer_kind),
    st.tuples(FLOATS, FLOATS).map(number_kind),
    OPTIONS.map(options_kind),
    OPTIONS.map(titled_kind),
    OPTIONS.map(several_kind),
)


class Field_(NamedTuple):
    kind: Kind
    optional: bool
    title: str | None
    description: str | None

    def definition(self) -> tuple[Any, Any]:
        words = Field(title=self.title, description=self.description)
        annotation: Any = Annotated[self.kind.annotation, words]
        return (annotation | None, None) if self.optional else (annotation, ...)


TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=12)
# A title such as "Token" is refused, which the tests of secrets hold.
TITLES = TEXTS.filter(lambda title: title is None or not looks_secret(title))
NAMES = st.from_regex(r"[a-m][a-z0-9]{0,3}x", fullmatch=True)
FIELDS = st.dictionaries(
    NAMES, st.builds(Field_, KINDS, st.booleans(), TITLES, TEXTS), min_size=1, max_size=5
)


def form_of(fields: dict[str, Field_]) -> tuple[type[BaseModel], Form[Any]]:
    definitions: dict[str, Any] = {name: field.definition() for name, field in fields.items()}
    model = create_model("Generated", **definitions)
    return model, Form.of(model)


@settings(deadline=None)
@given(FIELDS)
def test_the_schema_of_a_flat_model_is_a_form_by_our_and_the_official_measure(
    fields: dict[str, Field_],
) -> None:
    _, form = form_of(fields)
    assert list(form.schema["properties"]) == list(fields)
    assert set(form.schema.get("required", ())) == {n for n, f in fields.items() if not f.optional}
    assert FlatSchema.compile(msgspec.json.decode(form.schema_json)).json == form.schema_json
    ElicitRequestFormParams.model_validate({"message": "?", "requestedSchema": form.schema})
    for prop in form.schema["properties"].values():
        OFFICIAL.validate_python(prop)


@settings(deadline=None)
@given(FIELDS, st.data())
def test_an_answer_that_fits_comes_back_as_the_model(
    fields: dict[str, Field_], data: st.DataObject
) -> None:
    _, form = form_of(fields)
    content: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, field in fields.items():
        if field.optional and data.draw(st.booleans()):
            expected[name] = None
        else:
            content[name] = data.draw(field.kind.answers)
            expected[name] = field.kind.value(content[name])
    parsed = form.parse({**content, "unknown": 1})
    assert {name: getattr(parsed, name) for name in fields} == expected


SENTINEL = "what-was-typed"
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.text("abcé ", max_size=4), max_size=3)
    | COLOURS
    | DAYS.map(str)
    | st.just(SENTINEL)
)


@settings(deadline=None)
@given(FIELDS, st.data())
def test_any_answer_is_parsed_within_the_schema_or_refused_with_reasons(
    fields: dict[str, Field_], data: st.DataObject
) -> None:
    model, form = form_of(fields)
    content = {
        name: data.draw(field.kind.answers | ANYTHING)
        for name, field in fields.items()
        if data.draw(st.integers(0, 3))
    }
    try:
        parsed, told = form.parse(content), ()
    except AnswerInvalid as invalid:
        parsed, told = None, invalid.reasons
    assert isinstance(parsed, model) is (told == ())
    assert all(reason.partition(":")[0] in fields for reason in told)
    assert SENTINEL not in str(told)
    assert told or form.flat.validate(content) == ()
