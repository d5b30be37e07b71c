"""From a function and what its decorator says to a registered handler. Everything is done once.

Owns how each shape of handler is called.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

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
from antiphon.handlers.admission import approved_invoke
from antiphon.handlers.call_limits import CallLimits
from antiphon.handlers.dependencies import Dependencies, Overrides
from antiphon.handlers.given_schemas import validator
from antiphon.handlers.graph import Graph
from antiphon.handlers.middleware import Middleware, with_middleware
from antiphon.handlers.output import DeclaredOutput, check_same_output, declared_output
from antiphon.handlers.resolvers import resolver_graph
from antiphon.handlers.results import prompt_writer, resource_writer, tool_writer
from antiphon.handlers.signature import Signature
from antiphon.handlers.source_checks import check_source
from antiphon.handlers.steps import Flow


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


class HandlerCompiler:
    """Compiles the handlers of one server, each inside the server's middleware."""

    def __init__(self, overrides: Overrides, middleware: tuple[Middleware, ...] = ()) -> None:
        self._overrides = overrides
        self._middleware = middleware

    def tool(
        self,
        fn: Callable[..., Any],
        name: str,
        options: Options,
        *,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        flow: Flow | None = None,
        limits: CallLimits | None = None,
        listed: DeclaredOutput | None = None,
    ) -> tuple[Handler, DeclaredOutput | None]:
        """Compile a tool; returns its structured output beside it, if it declares one.

        A second handler of a tool returns what is `listed` for the first one.
        """
        signature = Signature(fn, Context, flow.steps if flow is not None else ())
        if signature.raw is not None and input_schema is None and listed is None:
            raise ConfigError(
                f"tool {name!r} takes **{signature.raw}, so that its signature does not say what "
                "clients may send: give input_schema="
            )
        output = declared_output(signature.returns, output_schema, name)
        if listed is not None:
            check_same_output(output, listed, signature.returns, name)
            output = listed
        handler = self._handler(
            "tool",
            name,
            fn,
            signature,
            options,
            flow,
            limits,
            write=tool_writer(output),
            check=validator(input_schema, name).check if input_schema is not None else None,
        )
        return handler, output

    def prompt(
        self, fn: Callable[..., Any], name: str, options: Options, description: str | None
    ) -> Handler:
        """Compile a prompt."""
        signature = Signature(fn, Context)
        _refuse_raw(signature, f"prompt {name!r}")
        write = prompt_writer(description)
        return self._handler("prompt", name, fn, signature, options, write=write)

    def resource(
        self,
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
        _refuse_raw(signature, f"resource {uri!r}")
        wrong = set(signature.arguments) ^ set(names)
        if wrong:
            raise ConfigError(
                f"resource {uri!r}: parameters and URI variables differ in "
                f"{', '.join(sorted(wrong))}"
            )
        write = resource_writer(mime_type, hints)
        return self._handler("resource", uri, fn, signature, options, write=write)

    def foreign(
        self,
        kind: HandlerKind,
        name: str,
        run: Callable[[Context, Mapping[str, Any]], Awaitable[Any]],
        options: Options,
        write: Callable[..., bytes],
        check: Callable[[Mapping[str, Any]], Awaitable[list[str]]] | None = None,
    ) -> Handler:
        """Compile a handler that takes its arguments as they came, and writes its own results."""
        invoke: Invoke = run
        if self._middleware:
            invoke = with_middleware(invoke, self._middleware, kind, name)
        return Handler(
            kind=kind,
            name=name,
            fn=run,
            bind=lambda given: dict(given or {}),
            schema=dict,
            invoke=invoke,
            write=write,
            options=options,
            needs=options.needs(),
            check=check,
        )

    def _handler(
        self,
        kind: HandlerKind,
        name: str,
        fn: Callable[..., Any],
        signature: Signature,
        options: Options,
        flow: Flow | None = None,
        limits: CallLimits | None = None,
        **more: Any,
    ) -> Handler:
        if options.unasked == "accept" and (flow or signature.resolved or options.park is not None):
            raise ConfigError(
                f'{kind} {name!r}: unasked="accept" is for handlers that return InputRequired; '
                "steps, resolvers and parked handlers never see answers that were not asked for"
            )
        graph = None
        if flow is not None:
            graph = flow.graph(signature, self._overrides)
        elif signature.resolved:
            graph = resolver_graph(signature, f"{kind} {name!r}", self._overrides)
        check_source(fn, f"{kind} {name!r}", signature.context)
        for node in graph.nodes if graph is not None else ():
            check_source(node.fn, f"{kind} {name!r}, {node.name!r}", node.context)
        return Handler(
            kind=kind,
            name=name,
            fn=fn,
            bind=signature.bind,
            schema=signature.schema,
            invoke=self._invoke(kind, name, fn, signature, options, graph, limits),
            options=options,
            needs=options.needs(graph.needs if graph is not None else ()),
            is_async=is_async(fn) or graph is not None or options.approve is not None,
            **more,
        )

    def _invoke(
        self,
        kind: HandlerKind,
        name: str,
        fn: Callable[..., Any],
        signature: Signature,
        options: Options,
        graph: Graph | None,
        limits: CallLimits | None,
    ) -> Invoke:
        what = f"{kind} {name!r}"
        if signature.depends:
            depends = Dependencies(what, signature.depends, self._overrides)
            invoke = _provided_invoke(fn, signature.context, depends)
        else:
            invoke = plain_invoke(fn, signature.context)
        if graph is not None:
            invoke = graph.before(invoke)
        if options.approve is not None:
            invoke = approved_invoke(invoke, options.approve)
        if limits is not None:
            invoke = limits.around(invoke)
        if self._middleware:
            invoke = with_middleware(invoke, self._middleware, kind, name)
        return invoke


def _refuse_raw(signature: Signature, what: str) -> None:
    if signature.raw is not None:
        raise ConfigError(f"{what} takes **{signature.raw}: only a tool may, others name each one")


def plain_invoke(fn: Callable[..., Any], context: str | None) -> Invoke:
    """Call the function itself: async ones directly, others in a thread."""
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


def _provided_invoke(fn: Callable[..., Any], context: str | None, depends: Dependencies) -> Invoke:
    """Call the function with what it depends on."""

    def provided(ctx: Any, arguments: dict[str, Any]) -> Awaitable[Any]:
        if context is not None:
            arguments[context] = ctx
        return depends.call(ctx, fn, arguments)

    return provided


def docstring(fn: Callable[..., Any]) -> str | None:
    """Return a function's docstring as a description."""
    text = inspect.getdoc(fn)
    return text.strip() if text else None
