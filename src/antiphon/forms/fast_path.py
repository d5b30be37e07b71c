"""A flat schema as a msgspec type: accepts ordinary answers in one step, never says why not.

What it accepts, `FlatSchema.read` accepts too, with the same values. What it refuses is read again
there, for the reason, or because the subset is wider: `null` for an absent field,
an integer written `1.0`. Fields that msgspec cannot check as strictly (formats, numbers, lists)
have no such type.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from antiphon.forms.fields import INTEGER_LIMIT, Property

AnswerType = type[msgspec.Struct]


def answer_type(
    properties: Mapping[str, Property], required: Collection[str], nulls: Collection[str]
) -> AnswerType | None:
    """Return the type of answers to a form, or None where msgspec cannot check one of its fields.

    Args:
        properties: Of a checked flat schema.
        required: Names that must be there.
        nulls: Names that are encoded as null when they are absent.
    """
    fields: list[tuple[str, Any, Any]] = []
    for index, (name, prop) in enumerate(properties.items()):
        kind = _type_of(prop)
        if kind is None:
            return None
        if name in required:
            default = msgspec.NODEFAULT
        elif name in nulls:
            kind, default = kind | None, None
        else:
            kind, default = kind | msgspec.UnsetType, msgspec.UNSET
        fields.append((f"f{index}", kind, msgspec.field(default=default, name=name)))
    try:
        return msgspec.defstruct("Answer", fields, kw_only=True, gc=False)
    except (TypeError, ValueError):  # a name or a bound that msgspec does not take
        return None


def _type_of(prop: Property) -> Any:
    match prop.get("type"):
        case "boolean":
            return bool
        case "string" if "format" not in prop:
            return _text(prop)
        case "integer":
            return _integer(prop)
        case _:
            return None


def _text(prop: Property) -> Any:
    options = prop.get("enum")
    if options is None and "oneOf" in prop:
        options = [option["const"] for option in prop["oneOf"]]
    if options is not None:
        return Literal[tuple(cast("list[str]", options))] if options else None
    meta = msgspec.Meta(min_length=prop.get("minLength"), max_length=prop.get("maxLength"))
    return Annotated[str, meta]


def _integer(prop: Property) -> Any:
    low, high = prop.get("minimum", -INTEGER_LIMIT), prop.get("maximum", INTEGER_LIMIT - 1)
    if type(low) is not int or type(high) is not int:
        return None
    meta = msgspec.Meta(ge=max(low, -INTEGER_LIMIT), le=min(high, INTEGER_LIMIT - 1))
    return Annotated[int, meta]
