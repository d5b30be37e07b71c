"""What a tool declares to return: the schema that is listed, and how a result is checked.

A model, a dataclass or a dict is its own structure. A list, a number or anything else that has a
schema stands under the one member `result`, because the structure of older clients is an object.
Text stays text: `-> str` declares no structure.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeGuard,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from antiphon.errors import ConfigError, HandlerError
from antiphon.forms.models import is_model_type
from antiphon.handlers.given_schemas import check_schema, validator
from antiphon.handlers.signature import reasons_of
from antiphon.protocol.asks import InputRequired

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

BLOCK_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})
"""The `type` of content blocks."""

Schema: TypeAlias = dict[str, Any]
_UNSAID = (str, bytes, bytearray, type(None), object, Any, inspect.Parameter.empty)
"""Types that say nothing about a structure: text, nothing, or anything."""

_COLLECTIONS = (list, tuple, set, frozenset, Sequence)


class DeclaredOutput:
    """The structured result of a tool."""

    __slots__ = ("check", "schema", "wrapped")

    def __init__(
        self, schema: Schema, check: Callable[[Any], tuple[Any, bytes]], *, wrapped: bool = False
    ) -> None:
        """Take the parts.

        Args:
            schema: As it is listed.
            check: Returns a value as it was declared, and its JSON; raises `HandlerError`.
            wrapped: Whether the JSON stands under the member `result`.
        """
        self.schema: Schema = schema
        self.check: Callable[[Any], tuple[Any, bytes]] = check
        self.wrapped: bool = wrapped


def declared_output(
    returns: Any, schema: Mapping[str, Any] | None, tool: str
) -> DeclaredOutput | None:
    """Return the structured result of a tool: by the schema given, else by its return type.

    Raises:
        ConfigError: The schema or the type cannot be listed.
    """
    if schema is not None:
        return _by_schema(dict(schema), tool)
    type_ = _without_asking(returns)
    record = _is_record(type_)
    if not record and not _is_data(type_):
        return None
    from pydantic import PydanticUserError, TypeAdapter

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type_)
        found = adapter.json_schema(mode="serialization", by_alias=True)
    except (PydanticUserError, TypeError, NameError) as error:
        if not record:
            return None  # content blocks, or a type of the author's own
        raise ConfigError(f"the return type {returns!r} cannot be described: {error}") from error
    check_schema(found, f"tool {tool!r}: output schema")
    listed = _rooted(found) if record else _wrapped(found)
    return DeclaredOutput(listed, _by_type(adapter), wrapped=not record)


def check_same_output(
    own: DeclaredOutput | None, listed: DeclaredOutput, returns: Any, tool: str
) -> None:
    """Refuse a second handler that declares another result than the one that is listed.

    Raises:
        ConfigError: Clients would refuse its results.
    """
    if returns is str or (own is not None and own.schema != listed.schema):
        raise ConfigError(
            f"tool {tool!r}: the handler for legacy clients must return what the tool declares, "
            "because they are listed the same output schema"
        )


# --- checking ------------------------------------------------------------------------------------


def _by_type(adapter: "TypeAdapter[Any]") -> Callable[[Any], tuple[Any, bytes]]:
    from pydantic import ValidationError

    def check(value: Any) -> tuple[Any, bytes]:
        try:
            fitting = adapter.validate_python(value)
        except ValidationError as error:
            raise _unfit(value, reasons_of(error, "result"), "type") from None
        # A warning about a value of another type would show the value, wherever warnings go.
        return fitting, adapter.dump_json(fitting, by_alias=True, warnings=False)

    return check


def _by_schema(schema: Schema, tool: str) -> DeclaredOutput:
    check_schema(schema, f"tool {tool!r}: output schema")
    wrong = validator(schema, tool, "result")

    def check(value: Any) -> tuple[Any, bytes]:
        plain = plain_json(value)
        reasons = wrong(plain)
        if reasons:
            raise _unfit(value, reasons, "schema")
        return plain, msgspec.json.encode(plain)

    return DeclaredOutput(schema, check)


def plain_json(value: Any) -> Any:
    """Return a value as plain JSON data.

    Raises:
        HandlerError: It cannot be written as JSON.
    """
    from pydantic_core import to_jsonable_python

    try:
        return to_jsonable_python(value, by_alias=True)
    except (TypeError, ValueError) as error:
        raise HandlerError(
            f"the handler returned {_with_article(value)}, which cannot be written as JSON"
        ) from error


def is_model(value: object) -> "TypeGuard[BaseModel]":
    """Whether a value is an instance of a Pydantic model."""
    return is_model_type(type(value))


def _with_article(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"


def _unfit(value: Any, reasons: list[str], declared: str) -> HandlerError:
    return HandlerError(
        f"the handler returned {_with_article(value)} that does not fit its declared return "
        f"{declared}: {'; '.join(reasons)}. Return what is declared, or change the declaration."
    )


# --- reading the return type ---------------------------------------------------------------------


def _without_asking(returns: Any) -> Any:
    """Return the type of the results: `InputRequired` in a union is not one of them."""
    if get_origin(returns) not in (Union, types.UnionType):
        return returns
    results = [option for option in get_args(returns) if option is not InputRequired]
    return Union[tuple(results)] if results else InputRequired  # noqa: UP007 - made of a list


def _is_record(type_: Any) -> bool:
    """Whether values of a type are objects in JSON, which need no member around them."""
    if get_origin(type_) is dict or type_ is dict:
        return get_args(type_) == () or get_args(type_)[0] is str
    if not isinstance(type_, type) or _is_block(cast("type[Any]", type_)):
        return False
    type_ = cast("type[Any]", type_)
    return (
        is_model_type(type_)
        or dataclasses.is_dataclass(type_)
        or hasattr(type_, "__required_keys__")
    )


def _is_data(type_: Any) -> bool:
    """Whether a type says what JSON its values are, and is neither text nor content."""
    origin = get_origin(type_)
    if origin is Annotated:
        return _is_data(get_args(type_)[0])
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(type_) if option is not type(None)]
        return all(_is_record(option) or _is_data(option) for option in options)
    if origin in _COLLECTIONS:
        items = [item for item in get_args(type_) if item is not Ellipsis]
        return all(item is str or _is_record(item) or _is_data(item) for item in items)
    if origin is Literal:
        return True
    if type_ in _UNSAID or type_ in _COLLECTIONS:
        return False
    return not (isinstance(type_, type) and _is_block(cast("type[Any]", type_)))


def _is_block(type_: type[Any]) -> bool:
    """Whether a type is a content block: ours, or one of the official SDK."""
    if issubclass(type_, msgspec.Struct):
        return True
    if not is_model_type(type_) or not type_.__module__.startswith("mcp"):
        return False
    field = cast("type[BaseModel]", type_).model_fields.get("type")
    return field is not None and field.default in BLOCK_TYPES


# --- schemas -------------------------------------------------------------------------------------


def _rooted(schema: Schema) -> Schema:
    """Return a schema with its object at the root: older clients take no reference there."""
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    return {**schema["$defs"][name], "$defs": schema["$defs"]}


def _wrapped(schema: Schema) -> Schema:
    """Return the schema of an object whose member `result` has this one."""
    schema = dict(schema)
    definitions = schema.pop("$defs", None)
    listed: Schema = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if definitions is not None:
        listed["$defs"] = definitions
    return listed
