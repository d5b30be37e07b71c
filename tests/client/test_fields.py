"""Fields of a form as lines of text: what is read, what is refused, what is shown."""

from typing import Any

import pytest

from antiphon.client.answers import Scripted
from antiphon.client.asks import Accept, Cancel, Decline, FormAsk, RootsAsk, SampleAsk, UrlAsk
from antiphon.client.fields import TypedAnswer, from_text, prompts, split_answers
from antiphon.errors import AnswerInvalid


def field(schema: dict[str, Any], *, required: bool = True) -> Any:
    whole = {"type": "object", "properties": {"f": schema}, "required": ["f"] if required else []}
    return prompts(whole)[0]


ENUM = {"type": "string", "enum": ["eu", "us"]}
TITLED = {
    "type": "string",
    "oneOf": [{"const": "eu", "title": "Europe"}, {"const": "us", "title": "States"}],
}
MANY = {
    "type": "array",
    "items": {"type": "string", "enum": ["a", "b", "c"]},
    "minItems": 1,
    "maxItems": 2,
}


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        ({"type": "string"}, " text ", "text"),
        ({"type": "string"}, '""', ""),
        ({"type": "string", "format": "email"}, "a@b.example", "a@b.example"),
        ({"type": "string", "format": "date"}, "2026-07-28", "2026-07-28"),
        ({"type": "integer", "minimum": 1}, "3", 3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "n", False),
        (ENUM, "2", "us"),
        (ENUM, "EU", "eu"),
        (TITLED, "europe", "eu"),
        (TITLED, "us", "us"),
        (MANY, "1, c", ["a", "c"]),
        (MANY, "b,b", ["b"]),
        ({"type": "integer", "default": 2}, "", 2),
    ],
)
def test_a_line_becomes_the_value_its_field_wants(schema: dict[str, Any], line: str, value: Any):
    read = field(schema).read(line)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 3}, "ab"),
        ({"type": "string", "format": "email"}, "nobody"),
        ({"type": "integer"}, "two"),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer", "maximum": 9}, "10"),
        ({"type": "number"}, "nan"),
        ({"type": "boolean"}, "perhaps"),
        (ENUM, "3"),
        (ENUM, "asia"),
        (MANY, "a,b,c"),
        (MANY, "d"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_a_reason_that_does_not_repeat_it(
    schema: dict[str, Any], line: str
):
    with pytest.raises(AnswerInvalid) as caught:
        field(schema).read(line)
    assert caught.value.reasons[0]
    assert not line or len(line) < 3 or line not in str(caught.value)


def test_an_optional_field_may_be_left_empty():
    assert field({"type": "string"}, required=False).read("") is None


def test_labels_and_choices_show_no_control_characters():
    shown = field({"type": "string", "title": "\x1b[31mred\u202e", "enum": ["a\x07"]})
    assert "\x1b" not in shown.label
    assert "\u202e" not in shown.label
    assert "\x07" not in shown.choices[0].title
    assert shown.read("1") == "a\x07"


def test_values_are_shown_as_people_read_them():
    assert field(TITLED).show("eu") == "Europe"
    assert field({"type": "boolean"}).show(True) == "yes"
    assert field(MANY).show(["a", "b"]) == "a, b"
    assert field({"type": "string"}).show(None) == "(left empty)"


# --- answers of the command line ---------------------------------------------------------------

FORM = FormAsk(
    key="place",
    message="",
    schema={"type": "object", "properties": {"region": ENUM, "size": {"type": "integer"}}},
)


def typed(*texts: str, key: str = "place") -> TypedAnswer:
    return TypedAnswer(split_answers(texts), key)


def test_typed_answers_take_their_types_from_the_form():
    assert typed("place.region=eu", "place.size=3")(FORM) == Accept({"region": "eu", "size": 3})


def test_words_for_a_whole_key_decline_cancel_and_accept():
    assert typed("place=decline")(FORM) == Decline()
    assert typed("place=cancel")(FORM) == Cancel()
    visit = UrlAsk(key="c", message="", url="https://x.example")
    assert typed("c=accept", key="c")(visit) == Accept()
    sample = SampleAsk(key="d", params={"messages": [], "maxTokens": 1})
    assert typed("d=a text", key="d")(sample) == "a text"
    assert typed("e=/srv", "e=/tmp", key="e")(RootsAsk(key="e")) == ["/srv", "/tmp"]


def test_a_form_with_one_field_needs_no_field_name():
    one = FormAsk(
        key="k", message="", schema={"type": "object", "properties": {"n": {"type": "integer"}}}
    )
    assert typed("k=7", key="k")(one) == Accept({"n": 7})
    with pytest.raises(AnswerInvalid, match="name the field"):
        typed("place=7")(FORM)


def test_an_unknown_field_is_named_with_those_there_are():
    with pytest.raises(AnswerInvalid, match="regoin: no such field; there are region, size"):
        typed("place.regoin=eu")(FORM)


def test_a_key_may_hold_dots():
    assert typed("a.b.region=eu", key="a.b").fields == {"region": ["eu"]}
    assert typed("a.b=decline", key="a.b").words == ["decline"]


@pytest.mark.parametrize("text", ["novalue", "=x", ".f=x", "k.=x", ".=x"])
def test_a_text_that_is_no_answer_is_refused(text: str):
    with pytest.raises(ValueError, match="is not an answer"):
        split_answers([text])


def test_a_value_may_contain_equals_signs_and_dots():
    assert typed("k.f=a=b.c", key="k").fields == {"f": ["a=b.c"]}
    assert from_text({"type": "array"}, ["a, b", "c"]) == ["a", "b", "c"]


def test_what_texts_could_answer_is_what_is_declared():
    assert Scripted.parse(["k.f=x"]).abilities == {"form"}
    assert Scripted.parse(["k=accept"]).abilities == {"form", "url"}
    assert Scripted.parse(["k=text"]).abilities == {"form", "sampling", "roots"}
    assert Scripted.parse([]).abilities == frozenset()
