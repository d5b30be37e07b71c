"""A handler's signature, compiled once: its parameters, its input schema, binding arguments.

Also checks the schemas that authors give: they are bounded, and none is ever fetched from a network
(BASE-10).
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from antiphon.engine.child_tasks import UserCodeExit
from antiphon.errors import ArgumentsInvalid, ConfigError
from antiphon.protocol.text import safe

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import CoreSchema

_REASON = 200
"""Characters of one reason why arguments do not fit."""

_REASONS = 8
"""Reasons in one refusal; the next refusal can give the rest."""

_MANY = 100
"""Errors beyond which they are only counted: describing one costs more than finding it."""


class Resolve:
    """Mark a parameter as resolved: `Annotated[Placement, Resolve(ask_placement)]`."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Take the resolver: it returns a value or an ask."""
        if not callable(fn):
            raise ConfigError("Resolve(fn) takes the function itself, not what it returns")
        self.fn: Callable[..., Any] = fn


class Depends:
    """Mark a parameter as provided by a function: `Annotated[Pool, Depends(get_pool)]`.

    The function is sync or async and may take a `Context` and further dependencies. If it is a
    generator, what stands after its `yield` runs when the round ends.
    """

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Take the function that returns, or yields, the value."""
        if not callable(fn):
            raise ConfigError("Depends(fn) takes the function itself, not what it returns")
        self.fn: Callable[..., Any] = fn


class Parameter:
    """One parameter of a handler, step, resolver or dependency."""

    __slots__ = ("annotation", "default", "depends", "name", "raw", "resolve")

    def __init__(self, name: str, annotation: Any, default: Any, *, raw: bool = False) -> None:
        self.name: str = name
        self.raw: bool = raw
        """Whether it is `**name`, which takes every argument that has no parameter of its own."""

        self.annotation: Any = annotation
        self.default: Any = default
        self.resolve: Resolve | None = find_mark(annotation, Resolve)
        self.depends: Depends | None = find_mark(annotation, Depends)


class Signature:
    """The parameters of a function by who fills them, and its arguments."""

    __slots__ = (
        "arguments",
        "bind",
        "context",
        "depends",
        "given",
        "model",
        "raw",
        "resolved",
        "returns",
    )

    returns: Any

    def __init__(
        self, fn: Callable[..., Any], context_type: type, given: Collection[str] = ()
    ) -> None:
        """Read a function's signature; parameters named in `given` are filled in by others.

        Raises:
            ConfigError: It cannot be read, naming the function and the parameter.
        """
        parameters, self.returns = read_parameters(fn, raw=True)
        self.context: str | None = None
        self.raw: str | None = None
        """The name of `**arguments`, which takes what came and is not checked."""

        self.resolved: dict[str, Parameter] = {}
        self.depends: list[Parameter] = []
        self.given: dict[str, Parameter] = {}
        self.arguments: dict[str, Parameter] = {}
        for parameter in parameters:
            if parameter.raw:
                self.raw = parameter.name
            elif is_context(parameter.annotation, context_type):
                self.context = parameter.name
            elif parameter.resolve is not None:
                self.resolved[parameter.name] = parameter
            elif parameter.depends is not None:
                self.depends.append(parameter)
            elif parameter.name == "ctx" and parameter.annotation is Any:
                # It would become an argument that every client is asked for.
                where = getattr(fn, "__qualname__", repr(fn))
                raise ConfigError(f"{where}: annotate the context, `ctx: {context_type.__name__}`")
            elif parameter.name == "self" and parameter.annotation is Any:
                where = getattr(fn, "__qualname__", repr(fn))
                raise ConfigError(
                    f"{where} is a function of its class, which has no `self` yet. Register the "
                    "method of an object instead: server.tool(shop.refund)"
                )
            elif parameter.name in given:
                self.given[parameter.name] = parameter
            else:
                self.arguments[parameter.name] = parameter
        self.model: type[BaseModel] | None = (
            arguments_model(fn, self.arguments) if self.arguments else None
        )
        self.bind = _nothing if self.model is None else _binder(self.model, self.arguments)
        """Turns raw arguments into keyword arguments; raises `ArgumentsInvalid`."""

        if self.raw is not None:
            self.bind = _with_rest(self.bind, self._taken())

    def _taken(self) -> frozenset[str]:
        """Return the names that an argument of `**arguments` cannot have, whoever sends it."""
        named = {*self.arguments, *self.resolved, *self.given, *(one.name for one in self.depends)}
        if self.context is not None:
            named.add(self.context)
        return frozenset(named)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments."""
        if self.model is None:
            return {"type": "object", "properties": {}}
        schema = self.model.model_json_schema(by_alias=True)
        schema.pop("title", None)
        for name, prop in schema.get("properties", {}).items():
            if prop.get("title") == name.replace("_", " ").title():
                del prop["title"]
        return schema


def read_parameters(fn: Callable[..., Any], *, raw: bool = False) -> tuple[list[Parameter], Any]:
    """Read parameters and return annotation, with the marks in `Annotated`.

    `raw` allows `**arguments`, for handlers.
    """
    name = getattr(fn, "__qualname__", repr(fn))
    try:
        hints = get_type_hints(_annotated(fn), localns=_closure(fn), include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{name}: the annotation {error.name!r} cannot be found. Define it at module level, or "
            "leave out `from __future__ import annotations`."
        ) from error
    bound: Mapping[str, Any] = getattr(fn, "keywords", {})  # of a partial: no longer parameters
    parameters: list[Parameter] = []
    for p in inspect.signature(fn).parameters.values():
        if p.name in bound:
            continue
        if raw and p.kind is p.VAR_KEYWORD:
            parameters.append(Parameter(p.name, Any, {}, raw=True))
            continue
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise ConfigError(f"{name}: parameter {p.name!r} must be a plain named parameter")
        annotation = hints.get(p.name, Any)
        parameters.append(Parameter(p.name, annotation, p.default))
    return parameters, hints.get("return", inspect.Parameter.empty)


def _annotated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that carries the annotations of a partial or of a callable object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004 - its function, not whether it has one


def _closure(fn: Callable[..., Any]) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(fn).nonlocals)
    except (TypeError, ValueError):
        return {}


def find_mark(annotation: Any, mark: type) -> Any:
    """Return the mark of a type in `Annotated[...]`, or None."""
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            if isinstance(item, mark):
                return item
    return None


def identity(fn: Callable[..., Any]) -> object:
    """Tell functions apart; a method is the same one however often it is looked up."""
    return (id(fn.__self__), fn.__func__) if inspect.ismethod(fn) else id(fn)


def is_context(annotation: Any, context_type: type) -> bool:
    """Whether a parameter takes the context."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, context_type)


def arguments_model(
    fn: Callable[..., Any], parameters: Mapping[str, Parameter]
) -> "type[BaseModel]":
    """Build the model of the arguments.

    The fields have names of their own and the parameters' names as aliases, because a parameter
    may be called `schema` or `_x`, which a model's field may not.
    """
    from pydantic import ConfigDict, Field, PydanticUserError, create_model

    fields: dict[str, Any] = {}
    for index, (name, parameter) in enumerate(parameters.items()):
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[f"a{index}"] = (Annotated[parameter.annotation, Field(alias=name)], default)
    qualname = getattr(fn, "__name__", "handler")
    try:
        model = create_model(
            f"{qualname}_arguments", __config__=ConfigDict(extra="ignore"), **fields
        )
        model.model_json_schema(by_alias=True)
    except (PydanticUserError, TypeError):
        raise ConfigError(f"{qualname}: {_undescribed(parameters)}") from None
    return model


Bind: TypeAlias = Callable[[Mapping[str, Any] | None], dict[str, Any]]


def _nothing(_: Mapping[str, Any] | None) -> dict[str, Any]:
    """Bind the arguments of a function that takes none."""
    return {}


def _binder(model: "type[BaseModel]", names: Collection[str]) -> Bind:
    """Compile the validation of a model's fields to one step that returns keyword arguments.

    Making an instance of the model, only to take its values out again, would cost as much again.
    """
    from pydantic import ValidationError
    from pydantic_core import SchemaValidator, core_schema

    core = cast("Any", model.__pydantic_core_schema__)
    definitions: list[CoreSchema] = []
    if core["type"] == "definitions":
        definitions, core = core["definitions"], core["schema"]
    fields = cast("dict[str, Any]", core["schema"]["fields"])
    arguments = {
        name: core_schema.typed_dict_field(
            field["schema"], required=field["schema"]["type"] != "default"
        )
        for name, field in zip(names, fields.values(), strict=True)
    }
    schema: CoreSchema = core_schema.typed_dict_schema(arguments, extra_behavior="ignore")
    if definitions:
        schema = core_schema.definitions_schema(schema, definitions)
    validate = SchemaValidator(_failing_fast(schema)).validate_python

    def bind(given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Bind arguments; unknown ones are ignored.

        Raises:
            ArgumentsInvalid: With reasons for the caller.
            UserCodeExit: A validator of the author's raised what is no `Exception`.
        """
        try:
            return validate(given or {})
        except ValidationError as error:
            raise ArgumentsInvalid(reasons_of(error)) from None
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            raise UserCodeExit(error) from error

    return bind


def _with_rest(bind: Bind, taken: frozenset[str]) -> Bind:
    """Add the arguments that have no parameter of their own, as they came."""

    def bind_all(given: Mapping[str, Any] | None) -> dict[str, Any]:
        bound = bind(given)
        for name, value in (given or {}).items():
            if name not in taken:
                bound[name] = value
            elif name not in bound:
                raise ArgumentsInvalid([f"{safe(name, 80)}: no argument can have this name"])
        return bound

    return bind_all


_SEQUENCES = frozenset({"list", "tuple", "set", "frozenset"})


def _failing_fast(schema: Any) -> Any:
    """Return a schema whose sequences are left at their first wrong item.

    Otherwise each of a million wrong items would be described before the first is told.
    """
    if type(schema) is dict:
        members = cast("dict[str, Any]", schema)
        rebuilt = {name: _failing_fast(member) for name, member in members.items()}
        if members.get("type") in _SEQUENCES and "items_schema" in members:
            rebuilt["fail_fast"] = True
        return rebuilt
    if type(schema) is list:
        return [_failing_fast(member) for member in cast("list[Any]", schema)]
    if type(schema) is tuple:
        return tuple(_failing_fast(member) for member in cast("tuple[Any, ...]", schema))
    return schema


def _undescribed(parameters: Mapping[str, Parameter]) -> str:
    """Name the parameter whose type has no JSON schema; the cause of the error says why."""
    from pydantic import PydanticUserError, TypeAdapter

    cure = "Take JSON types, models, dataclasses or typed dicts, and make the rest inside."
    for name, parameter in parameters.items():
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except (PydanticUserError, TypeError):
            type_ = safe(getattr(parameter.annotation, "__name__", repr(parameter.annotation)), 80)
            return f"parameter {name!r} is a {type_}, which has no JSON schema. {cure}"
    return f"its parameters have no JSON schema together. {cure}"


def reasons_of(error: "ValidationError", whole: str = "arguments") -> list[str]:
    """Return what is wrong with values, without repeating them; `whole` names all of them."""
    if error.error_count() > _MANY:
        return [f"{error.error_count()} values do not fit"]
    reasons: list[str] = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in item["loc"]) or whole
        reasons.append(safe(f"{place}: {item['msg']}", _REASON))
    return reasons[:_REASONS]
