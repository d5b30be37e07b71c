"""From a function and what its decorator says to a registered handler. Everything is done once.

Owns how each shape of handler is called.
"""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from antiphon.core.content import Audio, Contents, Embedded, Image, Link, Text, ToolResult
from antiphon.engine.context import Context
from antiphon.engine.handler import (
    Handler,
    HandlerKind,
    Invoke,
    Options,
    call_in_thread,
    is_async,
)
from antiphon.errors import ConfigError
from antiphon.handlers.approved import approved_invoke
from antiphon.handlers.resolvers import resolved_invoke
from antiphon.handlers.results import prompt_writer, resource_writer, tool_writer
from antiphon.handlers.signature import Signature, validator
from antiphon.handlers.steps import Flow

_PLAIN = (str, int, float, bool, bytes, type(None), object, Any, inspect.Parameter.empty)
_BLOCKS = (Text, Image, Audio, Embedded, Link, Contents, ToolResult)


def own_name(fn: object, name: str | None, kind: HandlerKind) -> str:
    """Return the name of what a decorator was put on, and refuse what is no function."""
    if not callable(fn):
        raise ConfigError(
            f"@server.{kind} is put on a function, not on a {type(fn).__name__}. "
            f"Options have names: @server.{kind}(name=...)."
        )
    found = name or getattr(fn, "__name__", None)
    if found is None:
        raise ConfigError(f"a {type(fn).__name__} has no name of its own: give the {kind} name=")
    return found


def check_uri(uri: object) -> None:
    """Refuse `@server.resource` without its URI: the function stands in its place."""
    if not isinstance(uri, str):
        raise ConfigError('a resource needs its URI: @server.resource("shop://stock")')


def tool_handler(
    fn: Callable[..., Any],
    name: str,
    options: Options,
    *,
    input_schema: Mapping[str, Any] | None = None,
    flow: Flow | None = None,
) -> tuple[Handler, TypeAdapter[Any] | None]:
    """Compile a tool; returns the adapter of its structured output beside it, if it has one."""
    signature = Signature(fn, Context, flow.steps if flow is not None else ())
    adapter = output_adapter(signature.returns)
    handler = _handler(
        "tool",
        name,
        fn,
        signature,
        options,
        flow,
        write=tool_writer(adapter),
        check=validator(input_schema, name) if input_schema is not None else None,
    )
    return handler, adapter


def prompt_handler(
    fn: Callable[..., Any], name: str, options: Options, description: str | None
) -> Handler:
    """Compile a prompt."""
    signature = Signature(fn, Context)
    return _handler("prompt", name, fn, signature, options, write=prompt_writer(description))


def resource_handler(
    fn: Callable[..., Any],
    uri: str,
    names: tuple[str, ...],
    options: Options,
    *,
    mime_type: str | None,
    hints: bytes,
) -> Handler:
    """Compile a resource; its parameters are the variables of its URI."""
    signature = Signature(fn, Context)
    wrong = set(signature.arguments) ^ set(names)
    if wrong:
        raise ConfigError(
            f"resource {uri!r}: parameters and URI variables differ in {', '.join(sorted(wrong))}"
        )
    return _handler(
        "resource", uri, fn, signature, options, write=resource_writer(mime_type, hints)
    )


def _handler(
    kind: HandlerKind,
    name: str,
    fn: Callable[..., Any],
    signature: Signature,
    options: Options,
    flow: Flow | None = None,
    **more: Any,
) -> Handler:
    if options.unasked == "accept" and (flow or signature.resolved or options.park is not None):
        raise ConfigError(
            f'{kind} {name!r}: unasked="accept" is for handlers that return InputRequired; steps, '
            "resolvers and parked handlers never see answers that were not asked for"
        )
    invoke = plain_invoke(fn, signature)
    if flow is not None:
        invoke = flow.invoke(invoke, signature)
    elif signature.resolved:
        invoke = resolved_invoke(invoke, signature, f"{kind} {name!r}")
    if options.approve is not None:
        invoke = approved_invoke(invoke, options.approve)
    return Handler(
        kind=kind,
        name=name,
        fn=fn,
        bind=signature.bind,
        schema=signature.schema,
        invoke=invoke,
        options=options,
        is_async=is_async(fn)
        or flow is not None
        or bool(signature.resolved)
        or options.approve is not None,
        **more,
    )


def plain_invoke(fn: Callable[..., Any], signature: Signature) -> Invoke:
    """Call the function itself: async ones directly, others in a thread."""
    context = signature.context
    if not is_async(fn):

        def in_thread(ctx: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
            if context is not None:
                arguments[context] = ctx
            return call_in_thread(fn, **arguments)

        return in_thread
    if context is None:
        return lambda _, arguments: fn(**arguments)

    def with_context(ctx: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
        arguments[context] = ctx
        return fn(**arguments)

    return with_context


def output_adapter(returns: Any) -> TypeAdapter[Any] | None:
    """Return the adapter of a structured result: a model, dataclass, typed dict or dict."""
    if not _is_record(returns):
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(returns)
        adapter.json_schema(mode="serialization")
    except PydanticUserError as error:
        raise ConfigError(f"the return type {returns!r} cannot be described: {error}") from error
    return adapter


def _is_record(type_: Any) -> bool:
    if type_ in _PLAIN or type_ in _BLOCKS:
        return False
    if get_origin(type_) is dict or type_ is dict:
        return get_args(type_) == () or get_args(type_)[0] is str
    if not isinstance(type_, type):
        return False
    type_ = cast("type[Any]", type_)
    return (
        issubclass(type_, BaseModel)
        or dataclasses.is_dataclass(type_)
        or hasattr(type_, "__required_keys__")
    )


def docstring(fn: Callable[..., Any]) -> str | None:
    """Return a function's docstring as a description."""
    text = inspect.getdoc(fn)
    return text.strip() if text else None
