"""`Choices`: titles for the options of a form's field."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from antiphon.errors import UnsupportedForm
from antiphon.forms.fields import Schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Choices:
    """Titles for the options of a field: `Annotated[str, Choices({"eu": "Europe"})]`.

    Works on text, numbers and enums, and on a list or set of them. An enum can instead give each
    member a string `label`.
    """

    __slots__ = ("options",)

    def __init__(self, options: Mapping[Any, str]) -> None:
        self.options: dict[Any, str] = dict(options)

    def __get_pydantic_core_schema__(
        self, source: object, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        """Let the model itself accept only the options."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._only, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> "JsonSchemaValue":
        """Write the options with their titles."""
        return self._titled(handler(schema), handler.resolve_ref_schema)

    def _titled(self, json: Schema, resolve: Callable[[Schema], Schema]) -> Schema:
        if "anyOf" in json:
            options = [
                option if option == {"type": "null"} else self._titled(option, resolve)
                for option in json["anyOf"]
            ]
            return {**json, "anyOf": options}
        if json.get("type") == "array":
            return {**json, "items": self._titled(json.get("items", {}), resolve)}
        known = _values(resolve(json))
        if known is not None and known != set(self.options):
            raise UnsupportedForm(
                "Choices", "has other options than its type", "Title each value of the type once."
            )
        kept = {key: json[key] for key in ("title", "description", "default") if key in json}
        return {**kept, "oneOf": titled_options(self.options)}

    def _only(self, value: object) -> object:
        several = isinstance(value, (list, tuple, set, frozenset))
        for item in cast(Iterable[object], value) if several else (value,):
            plain = item.value if isinstance(item, Enum) else item
            if plain is not None and plain not in self.options:
                raise ValueError("must be one of the options")
        return value


def _values(json: Schema) -> set[Any] | None:
    """Return the values that a type itself allows."""
    if "enum" in json:
        return set(json["enum"])
    return {entry["const"] for entry in json["oneOf"]} if "oneOf" in json else None


def titled_options(titles: Mapping[Any, str]) -> list[dict[str, Any]]:
    """Write options with their titles, as a schema has them."""
    return [{"const": value, "title": title} for value, title in titles.items()]
