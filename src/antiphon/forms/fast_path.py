"""A flat schema as a type of msgspec: one step in C that can say yes to an answer, never why not.

What it accepts, `FlatSchema.read` accepts too, with the same values; what it refuses is read again
there, for the reason or because the subset is wider. Fields that msgspec cannot judge as strictly
(formats, numbers, lists) make no type at all. Knows no Pydantic and no handler.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from antiphon.forms.checks import INTEGER_LIMIT
from antiphon.forms.fields import Property

Shape = type[msgspec.Struct]


def shape_of(
    properties: Mapping[str, Property], required: Collection[str], nulls: Collection[str]
) -> Shape | None:
    """Make the type; its encoded values have the known members only.

    Args:
        properties: Of a checked flat schema.
        required: Names that must be there.
        nulls: Names that are written as null when they are absent.
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
        return msgspec.defstruct("Answer", fields, kw_only=True)
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
