"""The flat schema of a form: what it carries, what it refuses, and what answers fit it."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import AnswerInvalid, UnsupportedForm
from antiphon.forms.fields import FORMATS, MAX_CHOICES, without_null
from antiphon.forms.schema import MAX_FIELDS, MAX_REASONS, MAX_SCHEMA_BYTES, FlatSchema, adapt

TITLED = [{"const": "eu", "title": "Europe"}, {"const": "us", "title": "America"}]


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


def one(prop: dict[str, Any], *, required: bool = True) -> FlatSchema:
    return FlatSchema.compile({**form(it=prop), "required": ["it"] if required else []})


EVERY_KIND = form(
    text={"type": "string", "title": "T", "description": "D", "minLength": 1, "maxLength": 9},
    mail={"type": "string", "format": "email", "default": "a@example.org"},
    count={"type": "integer", "minimum": 1, "maximum": 5, "default": 2},
    share={"type": "number", "minimum": 0.5, "default": 1.5},
    sure={"type": "boolean", "default": False},
    plain={"type": "string", "enum": ["a", "b"], "default": "b"},
    titled={"type": "string", "oneOf": TITLED, "default": "eu"},
    named={"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
    several={
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {"type": "string", "enum": ["a", "b"]},
        "default": ["a"],
    },
    several_titled={"type": "array", "items": {"anyOf": TITLED}},
)
GOOD = {
    "text": "hello",
    "mail": "me@example.org",
    "count": 3,
    "share": 0.75,
    "sure": True,
    "plain": "a",
    "titled": "us",
    "named": "b",
    "several": ["b", "a"],
    "several_titled": [],
}


# --- schemas ----------------------------------------------------------------------------------


def test_every_allowed_kind_of_field_passes_unchanged() -> None:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **EVERY_KIND}
    flat = FlatSchema.compile({**schema, "required": ["mail", "text"]})
    assert flat.schema == {**schema, "required": ["text", "mail"]}
    assert msgspec.json.decode(flat.json) == flat.schema
    assert flat.read(GOOD) == GOOD


def test_the_json_is_the_same_whatever_order_the_keywords_came_in() -> None:
    there = FlatSchema.compile(form(a={"type": "integer", "title": "A", "minimum": 1}))
    back = FlatSchema.compile(form(a={"minimum": 1, "title": "A", "type": "integer"}))
    assert there.json == back.json


def test_the_order_of_the_fields_is_kept() -> None:
    flat = FlatSchema.compile(form(z={"type": "boolean"}, a={"type": "boolean"}))
    assert list(flat.schema["properties"]) == ["z", "a"]


def test_titles_cannot_carry_control_or_direction_characters() -> None:
    flat = one(
        {"type": "string", "title": "ok\u202eevil", "oneOf": [{"const": "a", "title": "\x1b"}]}
    )
    assert flat.schema["properties"]["it"]["title"] == "ok\\u202eevil"
    assert flat.schema["properties"]["it"]["oneOf"] == [{"const": "a", "title": "\\x1b"}]


@pytest.mark.parametrize(
    ("prop", "word"),
    [
        ({"type": "object", "properties": {}}, "nested"),
        ({"type": "string", "pattern": "a+"}, "pattern"),
        ({"type": "string", "format": "password"}, "password"),
        ({"type": "string", "format": 3}, "format"),
        ({"type": "string", "minimum": 3}, "minimum"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "string", "minLength": True}, "minLength"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "maxLength"),
        ({"type": "string", "title": 3}, "title"),
        ({"type": "string", "default": 3}, "default"),
        ({"type": "string", "default": None}, "default"),
        ({"type": "string", "const": "a"}, "const"),
        ({"type": "integer", "enum": [1, 2]}, "enum"),
        ({"enum": ["a", 1]}, "enum"),
        ({"type": "string", "enum": ["a", 1]}, "strings"),
        ({"type": "string", "enum": []}, "empty"),
        ({"type": "string", "enum": ["a", "a"]}, "twice"),
        ({"type": "string", "enum": ["a"], "enumNames": []}, "enumNames"),
        ({"type": "string", "enum": ["a"], "enumNames": ["A", "B"]}, "enumNames"),
        ({"type": "string", "enum": ["a"], "maxLength": 3}, "maxLength"),
        ({"type": "string", "enum": ["a"], "default": "b"}, "default"),
        ({"type": "string", "enum": ["a"], "oneOf": TITLED}, "oneOf"),
        ({"type": "string", "oneOf": [{"const": "a"}]}, "title"),
        ({"type": "string", "oneOf": [{"const": 1, "title": "One"}]}, "const"),
        ({"type": "string", "enum": [str(n) for n in range(MAX_CHOICES + 1)]}, str(MAX_CHOICES)),
        ({"type": "integer", "exclusiveMinimum": 3}, "exclusiveMinimum"),
        ({"type": "integer", "minimum": "3"}, "minimum"),
        ({"type": "number", "maximum": math.inf}, "maximum"),
        ({"type": "number", "minimum": 2, "maximum": 1}, "minimum"),
        ({"type": "number", "multipleOf": 2}, "multipleOf"),
        ({"type": "boolean", "default": 1}, "default"),
        ({"type": "array", "items": {"type": "string"}}, "options"),
        ({"type": "array", "items": {"type": "object", "properties": {}}}, "options"),
        ({"type": "array", "items": {"type": "integer", "enum": [1]}}, "strings"),
        ({"type": "array", "items": {"enum": ["a"]}}, "string"),
        ({"type": "array", "items": {"type": "string", "enum": ["a"], "title": "A"}}, "title"),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}, "minItems": 2}, "minItems"),
        ({"type": "array", "items": {"anyOf": TITLED}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": {"anyOf": TITLED}, "default": ["asia"]}, "default"),
        ({"type": "array", "prefixItems": []}, "options"),
        ({"type": ["string", "null"]}, "several types"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "anyOf"),
        ({"$ref": "#/$defs/X"}, "$ref"),
        ({"type": "null"}, "null"),
        ({}, "no type"),
        ("string", "no schema"),
    ],
)
def test_what_a_form_cannot_carry_is_refused_with_field_reason_and_cure(
    prop: Any, word: str
) -> None:
    with pytest.raises(UnsupportedForm) as refusal:
        FlatSchema.compile(form(fine={"type": "boolean"}, it=prop))
    assert refusal.value.field == "it"
    assert word in str(refusal.value)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({}, "object"),
        ({"type": "array", "properties": {}}, "object"),
        ({"type": "object"}, "properties"),
        ({"type": "object", "properties": []}, "properties"),
        ({**form(), "additionalProperties": False}, "additionalProperties"),
        ({**form(), "required": "a"}, "required"),
        ({**form(), "required": [1]}, "required"),
        ({**form(), "required": ["a"]}, "required"),
        (form(**{"": {"type": "boolean"}}), "name"),
        (form(**{"a\nb": {"type": "boolean"}}), "name"),
        (form(**{"x" * 200: {"type": "boolean"}}), "name"),
        (form(**{f"f{n}": {"type": "boolean"} for n in range(MAX_FIELDS + 1)}), str(MAX_FIELDS)),
        (form(a={"type": "string", "description": "x" * MAX_SCHEMA_BYTES}), str(MAX_SCHEMA_BYTES)),
        (form(a={"type": "string", "enum": ["\ud800"]}), "JSON"),
    ],
)
def test_a_schema_outside_the_bounds_of_a_form_is_refused(schema: Any, word: str) -> None:
    with pytest.raises(UnsupportedForm, match=word):
        FlatSchema.compile(schema)


def test_a_form_without_fields_is_a_form() -> None:
    assert FlatSchema.compile(form()).read({"anything": 1}) == {}


# --- a peer's schema --------------------------------------------------------------------------


def test_a_peers_schema_loses_what_is_not_part_of_a_form() -> None:
    flat = FlatSchema.tolerant(
        {
            "title": "Theirs",
            "additionalProperties": False,
            "required": ["a", "ghost"],
            **form(
                a={"type": "string", "pattern": "x", "format": "hostname", "default": 3},
                b={"enum": ["x"]},
                c={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "C"},
                d={"oneOf": [{"const": "x"}]},
            ),
        }
    )
    assert flat.schema == {
        **form(
            a={"type": "string"},
            b={"type": "string", "enum": ["x"]},
            c={"type": "integer", "title": "C"},
            d={"type": "string", "oneOf": [{"const": "x", "title": "x"}]},
        ),
        "required": ["a"],
    }


@pytest.mark.parametrize("prop", [{"type": "object"}, {"type": "array", "items": {}}, {}, 3])
def test_a_peers_schema_that_is_no_form_is_refused_all_the_same(prop: Any) -> None:
    with pytest.raises(UnsupportedForm):
        FlatSchema.tolerant(form(a=prop))


def test_a_union_of_more_than_one_type_is_left_alone() -> None:
    prop = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}
    assert without_null(prop) == (prop, False)


# --- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prop", "value"),
    [
        ({"type": "string"}, 1),
        ({"type": "string"}, ["a"]),
        ({"type": "string", "minLength": 2}, "a"),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "integer"}, True),
        ({"type": "integer"}, 1.5),
        ({"type": "integer"}, "1"),
        ({"type": "integer"}, math.inf),
        ({"type": "integer"}, 1e300),
        ({"type": "integer"}, 2**63),
        ({"type": "integer", "minimum": 2}, 1),
        ({"type": "integer", "maximum": 2}, 3),
        ({"type": "number"}, False),
        ({"type": "number"}, math.nan),
        ({"type": "number"}, -math.inf),
        ({"type": "number"}, 10**400),
        ({"type": "number", "minimum": 0.5}, 0.25),
        ({"type": "boolean"}, 1),
        ({"type": "boolean"}, "true"),
        ({"type": "string", "enum": ["a"]}, "b"),
        ({"type": "string", "enum": ["a"]}, ["a"]),
        ({"type": "string", "oneOf": TITLED}, "Europe"),
        ({"type": "array", "items": {"anyOf": TITLED}}, "eu"),
        ({"type": "array", "items": {"anyOf": TITLED}}, ["asia"]),
        ({"type": "array", "items": {"anyOf": TITLED}}, [["eu"]]),
        ({"type": "array", "items": {"anyOf": TITLED}}, ["eu", "eu"]),
        ({"type": "array", "items": {"anyOf": TITLED}}, ["eu", "us", "eu"]),
        ({"type": "array", "items": {"anyOf": TITLED}, "minItems": 1}, []),
        ({"type": "array", "items": {"anyOf": TITLED}, "maxItems": 1}, ["eu", "us"]),
    ],
)
def test_an_answer_that_breaks_its_schema_gets_a_reason_without_the_value(
    prop: dict[str, Any], value: Any
) -> None:
    (reason,) = one(prop).validate({"it": value})
    assert reason.startswith("it: must ")
    with pytest.raises(AnswerInvalid) as invalid:
        one(prop).read({"it": value})
    assert invalid.value.reasons == (reason,)


def test_a_whole_number_may_be_written_with_a_point_and_becomes_whole() -> None:
    read = one({"type": "integer", "maximum": 1}).read({"it": 1.0})["it"]
    assert read == 1
    assert type(read) is int


def test_a_number_keeps_its_type() -> None:
    assert one({"type": "number"}).read({"it": 1}) == {"it": 1}
    assert one({"type": "number"}).read({"it": 0.25}) == {"it": 0.25}


def test_length_counts_characters_not_bytes() -> None:
    assert one({"type": "string", "maxLength": 2}).validate({"it": "👍👍"}) == ()


GOOD_FORMATS = {
    "email": ["a@b", "first.last+tag@mail.example.org", "jörg@müller.example", "a@x--y.example"],
    "uri": ["https://example.org", "http://[::1]:8080/a?b#c", "urn:isbn:1", "mailto:a@b", "x:%20"],
    "date": ["2026-07-28", "2024-02-29"],
    "date-time": [
        "2026-07-28T09:30:00Z",
        "2026-07-28t09:30:00.123456789z",
        "2026-07-28T23:59:59-11:30",
    ],
}
BAD_FORMATS = {
    "email": ["", "a", "@b", "a@", "a b@c", "a@b c", "a@b..c", "a@-b", "a@b-", "a@b@c", "<a@b>",
              "a@" + "b" * 400, "a\n@b", "a@b\n"],
    "uri": ["", "example.org", "/path", "https://", "https:///x", "https://@/", "http:a", "a:",
            "https://exa mple.org", "https://example.org/%zz", "https://köln.example", "1a:b"],
    "date": ["", "2026-7-28", "20260728", "2026-W31-2", "2026-02-30", "2026-07-28T00:00:00Z",
             "٢٠٢٦-07-28", "0000-01-01"],
    "date-time": ["", "2026-07-28", "2026-07-28T09:30:00", "2026-07-28 09:30:00Z",
                  "2026-07-28T25:00:00Z", "2026-07-28T09:30Z", "2026-07-28T09:30:00+0100",
                  "2026-07-28T09:30:00.Z", "2026-07-28T09:30:00+25:00"],
}  # fmt: skip


@pytest.mark.parametrize("format_", FORMATS)
def test_formats_tell_right_from_wrong(format_: str) -> None:
    flat = one({"type": "string", "format": format_})
    assert [v for v in GOOD_FORMATS[format_] if flat.validate({"it": v})] == []
    assert [v for v in BAD_FORMATS[format_] if not flat.validate({"it": v})] == []


def test_a_required_field_must_be_there_and_null_is_not() -> None:
    flat = one({"type": "boolean"})
    assert flat.validate({}) == flat.validate({"it": None}) == ("it: an answer is required",)


def test_an_optional_field_may_be_absent_or_null() -> None:
    flat = one({"type": "boolean"}, required=False)
    assert flat.read({}) == flat.read({"it": None}) == {}


def test_unknown_members_are_dropped() -> None:
    assert one({"type": "boolean"}).read({"it": True, "extra": {"deep": []}}) == {"it": True}


@pytest.mark.parametrize("content", [None, [], "text", 3, True])
def test_content_that_is_no_object_is_refused(content: Any) -> None:
    assert one({"type": "boolean"}).validate(content) == ("the answer must be an object",)


def test_every_wrong_field_has_its_reason_up_to_a_bound() -> None:
    flat = FlatSchema.compile(form(**{f"f{n}": {"type": "boolean"} for n in range(40)}))
    reasons = flat.validate({f"f{n}": "no" for n in range(40)})
    assert len(reasons) == MAX_REASONS
    assert reasons[:2] == ("f0: must be true or false", "f1: must be true or false")


def test_defaults_fill_what_the_answer_leaves_out() -> None:
    flat = FlatSchema.compile(EVERY_KIND)
    filled = flat.fill_defaults({"count": 5, "titled": None})
    assert filled == {
        "mail": "a@example.org",
        "count": 5,
        "share": 1.5,
        "sure": False,
        "plain": "b",
        "titled": "eu",
        "several": ["a"],
    }
    filled["several"].append("b")
    assert flat.defaults["several"] == ["a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "other"]), JSON))
def test_any_json_is_either_read_within_the_schema_or_given_reasons(content: Any) -> None:
    flat = FlatSchema.compile(EVERY_KIND)
    reasons = flat.validate(content)
    if reasons:
        assert all(": must " in reason for reason in reasons)
    else:
        values = flat.read(content)
        assert values.keys() <= GOOD.keys()
        assert flat.read(values) == values
        assert msgspec.json.decode(msgspec.json.encode(values)) == values


KEYWORDS = [
    *("type", "title", "description", "default", "minLength", "maxLength", "format", "minimum"),
    *("maximum", "enum", "enumNames", "oneOf", "items", "minItems", "maxItems", "anyOf", "$ref"),
]
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
STRINGS = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3)
TITLES = STRINGS.map(lambda names: [{"const": name, "title": name.upper()} for name in names])
VALUES = JSON | st.integers(0, 3) | STRINGS | TITLES | STRINGS.map(lambda e: {"enum": e})
PROPERTIES = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    TYPES,
    st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4),
)


@given(JSON | PROPERTIES)
def test_any_json_as_a_schema_is_compiled_or_refused_by_name(prop: Any) -> None:
    for compile_ in (FlatSchema.compile, FlatSchema.tolerant):
        try:
            flat, refused = compile_(form(it=prop)), None
        except UnsupportedForm as refusal:
            flat, refused = None, refusal.field
        assert refused in (None, "it", "(form)")
        assert flat is None or FlatSchema.compile(flat.schema).json == flat.json


# --- older revisions --------------------------------------------------------------------------


def test_newer_revisions_get_the_schema_as_it_is() -> None:
    assert adapt(EVERY_KIND, "2026-07-28") == EVERY_KIND
    assert adapt(EVERY_KIND, "2025-11-25") == EVERY_KIND


def test_2025_06_18_gets_names_beside_values_and_no_defaults_but_booleans() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **form(
            where={"type": "string", "title": "W", "oneOf": TITLED, "default": "eu"},
            sure={"type": "boolean", "default": True},
            count={"type": "integer", "minimum": 1, "default": 2},
        ),
        "required": ["where"],
    }
    assert adapt(schema, "2025-06-18") == {
        "type": "object",
        "properties": {
            "where": {
                "type": "string",
                "title": "W",
                "enum": ["eu", "us"],
                "enumNames": ["Europe", "America"],
            },
            "sure": {"type": "boolean", "default": True},
            "count": {"type": "integer", "minimum": 1},
        },
        "required": ["where"],
    }


def test_2025_06_18_cannot_choose_several() -> None:
    schema = form(them={"type": "array", "items": {"anyOf": TITLED}})
    with pytest.raises(UnsupportedForm, match="2025-06-18") as refusal:
        adapt(schema, "2025-06-18")
    assert refusal.value.field == "them"


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
def test_revisions_without_forms_are_refused(revision: str) -> None:
    with pytest.raises(UnsupportedForm, match=revision):
        adapt(EVERY_KIND, revision)
