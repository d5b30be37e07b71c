"""A handler's signature, compiled once: what it takes, how arguments become values.

Owns the input schema and the binding of arguments. Knows no call, no wire and no context but
its type, which is given.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from antiphon.core.text import safe
from antiphon.errors import ArgumentsInvalid, ConfigError

_REASON = 200
_REASONS = 8


class Resolve:
    """Mark a parameter as resolved: `Annotated[Placement, Resolve(ask_placement)]`."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        """Take the resolver: it returns a value or an ask."""
        if not callable(fn):
            raise ConfigError("Resolve(fn) takes the function itself, not what it returns")
        self.fn = fn


class Parameter:
    """One parameter of a handler or resolver."""

    __slots__ = ("annotation", "default", "name", "resolve")

    def __init__(self, name: str, annotation: Any, default: Any, resolve: Resolve | None) -> None:
        self.name = name
        self.annotation = annotation
        self.default = default
        self.resolve = resolve


class Signature:
    """Context parameter, resolved and given parameters, and arguments of a function."""

    __slots__ = (
        "_fields",
        "_validate",
        "arguments",
        "context",
        "given",
        "model",
        "resolved",
        "returns",
    )

    def __init__(
        self, fn: Callable[..., Any], context_type: type, given: Collection[str] = ()
    ) -> None:
        """Read a function's signature; what is given by others is no argument.

        Raises:
            ConfigError: It cannot be read, naming the function and the parameter.
        """
        parameters, self.returns = read_parameters(fn)
        self.context: str | None = None
        self.resolved: dict[str, Parameter] = {}
        self.given: dict[str, Parameter] = {}
        self.arguments: dict[str, Parameter] = {}
        for parameter in parameters:
            if is_context(parameter.annotation, context_type):
                self.context = parameter.name
            elif parameter.resolve is not None:
                self.resolved[parameter.name] = parameter
            elif parameter.name == "ctx" and parameter.annotation is Any:
                # It would become an argument that every client is asked for.
                where = getattr(fn, "__qualname__", repr(fn))
                raise ConfigError(f"{where}: annotate the context, `ctx: {context_type.__name__}`")
            elif parameter.name in given:
                self.given[parameter.name] = parameter
            else:
                self.arguments[parameter.name] = parameter
        self.model = arguments_model(fn, self.arguments) if self.arguments else None
        self._validate = (
            self.model.__pydantic_validator__.validate_python if self.model is not None else None
        )
        self._fields = tuple((f"a{i}", name) for i, name in enumerate(self.arguments))

    def bind(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Turn raw arguments into keyword arguments; unknown ones are ignored.

        Raises:
            ArgumentsInvalid: With reasons for the caller.
        """
        if self._validate is None:
            return {}
        try:
            values = self._validate(arguments or {}).__dict__
        except ValidationError as error:
            raise ArgumentsInvalid(reasons_of(error)) from None
        return {name: values[field] for field, name in self._fields}

    def schema(self) -> dict[str, Any]:
        """Give the JSON schema of the arguments."""
        if self.model is None:
            return {"type": "object", "properties": {}}
        schema = self.model.model_json_schema(by_alias=True)
        schema.pop("title", None)
        for name, prop in schema.get("properties", {}).items():
            if prop.get("title") == name.replace("_", " ").title():
                del prop["title"]
        return schema


def read_parameters(fn: Callable[..., Any]) -> tuple[list[Parameter], Any]:
    """Read parameters and return annotation, with `Resolve` marks taken out of `Annotated`."""
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
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise ConfigError(f"{name}: parameter {p.name!r} must be a plain named parameter")
        annotation = hints.get(p.name, Any)
        parameters.append(Parameter(p.name, annotation, p.default, find_mark(annotation, Resolve)))
    return parameters, hints.get("return", inspect.Parameter.empty)


def _annotated(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function that carries the annotations of a partial or of a callable object."""
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
    """Find a mark of a type in `Annotated[...]`, or None."""
    if get_origin(annotation) is Annotated:
        for item in get_args(annotation)[1:]:
            if isinstance(item, mark):
                return item
    return None


def is_context(annotation: Any, context_type: type) -> bool:
    """Tell whether a parameter wants the context."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, context_type)


def arguments_model(fn: Callable[..., Any], parameters: Mapping[str, Parameter]) -> type[BaseModel]:
    """Build the model of the arguments.

    The fields have names of their own and the parameters' names as aliases, because a parameter
    may be called `schema` or `_x`, which a model's field may not.
    """
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
    except (PydanticUserError, TypeError) as error:
        raise ConfigError(f"{qualname}: {_undescribed(parameters)}") from error
    return model


def _undescribed(parameters: Mapping[str, Parameter]) -> str:
    """Name the parameter whose type has no JSON schema; why is the cause of the error."""
    cure = "Take JSON types, models, dataclasses or typed dicts, and make the rest inside."
    for name, parameter in parameters.items():
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except (PydanticUserError, TypeError):
            type_ = safe(getattr(parameter.annotation, "__name__", repr(parameter.annotation)), 80)
            return f"parameter {name!r} is a {type_}, which has no JSON schema. {cure}"
    return f"its parameters have no JSON schema together. {cure}"


def reasons_of(error: ValidationError) -> list[str]:
    """Say what is wrong with arguments, without repeating their values."""
    reasons: list[str] = []
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in item["loc"]) or "arguments"
        reasons.append(safe(f"{place}: {item['msg']}", _REASON))
    return reasons[:_REASONS]
