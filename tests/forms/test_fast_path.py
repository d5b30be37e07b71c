"""The quick yes agrees with the long way: what it accepts, it accepts with the same values."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import AnswerInvalid
from antiphon.forms.fast_path import answer_type
from antiphon.forms.form import Form
from antiphon.forms.schema import FlatSchema

FLAT = FlatSchema.compile(
    {
        "type": "object",
        "properties": {
            "region": {"type": "string", "enum": ["eu", "us"]},
            "tier": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "count": {"type": "integer"},
            "note": {"type": "string", "minLength": 1, "maxLength": 3},
            "sure": {"type": "boolean"},
        },
        "required": ["region", "size"],
    }
)
SHAPE = answer_type(FLAT.schema["properties"], FLAT.schema["required"], ())

VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 12)
    | st.floats(allow_nan=False)
    | st.sampled_from(["eu", "us", "a", "", "é😀x", "long text", "1"])
    | st.just([])
    | st.just({})
)
NAMES = st.sampled_from(["region", "tier", "size", "count", "note", "sure", "other"])


@given(st.dictionaries(NAMES, VALUES) | st.just({"region": "eu", "size": 1}) | VALUES)
def test_whatever_the_quick_way_takes_the_long_way_takes_with_the_same_values(content):
    assert SHAPE is not None
    try:
        quick = msgspec.json.decode(msgspec.json.encode(msgspec.convert(content, SHAPE)))
    except msgspec.ValidationError:
        return
    assert quick == FLAT.read(content)


@given(st.fixed_dictionaries({"region": st.sampled_from(["eu", "us"]), "size": st.integers(1, 10)}))
def test_plain_answers_take_the_quick_way(content):
    assert SHAPE is not None
    assert msgspec.to_builtins(msgspec.convert(content, SHAPE)) == content


def test_a_name_that_is_written_as_null_when_absent_is_so_in_the_quick_way():
    shape = answer_type({"note": {"type": "string"}}, (), ("note",))
    assert shape is not None
    assert msgspec.json.encode(msgspec.convert({}, shape)) == b'{"note":null}'


def test_what_is_required_stays_required_although_it_may_be_written_as_null():
    shape = answer_type({"note": {"type": "string"}}, ("note",), ("note",))
    assert shape is not None
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({}, shape)


@pytest.mark.parametrize(
    "prop",
    [
        {"type": "number"},
        {"type": "string", "format": "email"},
        {"type": "array", "items": {"type": "string", "enum": ["a"]}},
        {"type": "integer", "minimum": 0.5},
    ],
)
def test_fields_that_only_the_long_way_can_judge_make_no_type(prop):
    assert answer_type({"field": prop}, (), ()) is None


def test_the_long_way_still_gives_the_reason():
    with pytest.raises(AnswerInvalid, match="region"):
        FLAT.read({"region": "elsewhere", "size": 1})


DEFAULTS = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "enum": ["eu", "us"], "default": "eu"},
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "sure": {"type": "boolean", "default": False},
    },
    "required": ["size"],
}


@given(st.dictionaries(st.sampled_from(["region", "size", "sure", "other"]), VALUES))
def test_a_schema_dict_gives_the_same_values_in_the_quick_way(content):
    form = Form.of(DEFAULTS)
    reasons = form.flat.validate(content)
    if reasons:
        with pytest.raises(AnswerInvalid) as refused:
            form.parse(content)
        assert refused.value.reasons == reasons
    else:
        assert form.parse(content) == form.flat.fill_defaults(form.flat.read(content))
