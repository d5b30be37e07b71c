"""Registering handlers: the decorators of `Server`, each of which compiles and registers.

Owns what can be put above a function and what hangs on the function afterwards: `legacy` and
`on_cancel`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal, TypeVar, Unpack, cast, overload

from antiphon.engine.handler import CachePolicy, Handler
from antiphon.errors import ConfigError
from antiphon.handlers.admission import admission
from antiphon.handlers.call_limits import CallLimits
from antiphon.handlers.catalog import (
    Catalog,
    completer,
    prompt_entry,
    resource_entry,
    tool_entry,
)
from antiphon.handlers.compile import (
    HandlerCompiler,
    check_uri,
    docstring,
    own_name,
)
from antiphon.handlers.dependencies import Overrides
from antiphon.handlers.middleware import Middleware, check_middleware
from antiphon.handlers.options import (
    Declaration,
    FlowOptions,
    PromptOptions,
    ResourceOptions,
    ToolOptions,
)
from antiphon.handlers.output import DeclaredOutput
from antiphon.handlers.registry import Registry
from antiphon.handlers.steps import Flow
from antiphon.handlers.uri_template import Template, is_template
from antiphon.ports import Clock

F = TypeVar("F", bound=Callable[..., Any])


class HandlerDecorators:
    """What can be registered with a server."""

    def __init__(
        self,
        registry: Registry,
        catalog: Catalog,
        cache: CachePolicy,
        clock: Clock,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._cache = cache
        self._clock = clock
        self._overrides = Overrides()
        self._compiler = HandlerCompiler(self._overrides, check_middleware(middleware))
        self.flows: list[Flow] = []
        """Every flow, whether it has its end or not."""

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
    def tool(self, fn: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Register a tool; its parameters are its arguments.

        `antiphon.handlers.options.ToolOptions` has a line on each option.
        """
        register = self._tool(Declaration.read(options, ToolOptions))
        return register if fn is None else register(fn)

    def flow(self, name: str, **options: Unpack[FlowOptions]) -> Flow:
        """Begin a tool in steps; it is registered by its `@flow.finish`. Options as for a tool."""
        flow = Flow(name, self._tool(Declaration.read(options, FlowOptions), name))
        self.flows.append(flow)
        return flow

    def _tool(self, declared: Declaration, name: str | None = None) -> Callable[..., Any]:
        """Return what registers a function, or the end of a flow, as a tool."""

        def register(fn: Callable[..., Any], flow: Flow | None = None) -> Any:
            own = own_name(fn, name or declared.name, "tool")
            schema = declared.input_schema
            limits = CallLimits(
                own,
                self._clock,
                rate=declared.rate,
                concurrency=declared.concurrency,
                timeout=declared.timeout,
            )
            handler, output = self._compiler.tool(
                fn,
                own,
                declared.calls,
                input_schema=schema,
                output_schema=declared.output_schema,
                flow=flow,
                limits=limits,
            )
            entry = tool_entry(
                handler,
                output,
                title=declared.title,
                description=declared.description or docstring(fn),
                input_schema=schema,
                annotations=declared.annotations,
                meta=declared.meta,
            )
            admitting = admission("tool", own, declared.visible, declared.scopes, limits)
            self._registry.add_tool(handler, entry, admitting)
            return self._with_legacy(fn, handler, limits, output)

        return register

    def _check_flows(self) -> None:
        """Refuse to serve a flow without an end: it would be missing without a word."""
        for flow in self.flows:
            if not flow.finished:
                raise ConfigError(f"{flow} has no finish: end it with @flow.finish")

    @overload
    def prompt(self, fn: F, /) -> F: ...
    @overload
    def prompt(self, /, **options: Unpack[PromptOptions]) -> Callable[[F], F]: ...
    def prompt(self, fn: Any = None, /, **options: Unpack[PromptOptions]) -> Any:
        """Register a prompt; its parameters are its arguments."""
        declared = Declaration.read(options, PromptOptions)

        def register(fn: Callable[..., Any]) -> Any:
            own = own_name(fn, declared.name, "prompt")
            text = declared.description or docstring(fn)
            handler = self._compiler.prompt(fn, own, declared.calls, text)
            entry = prompt_entry(
                handler, title=declared.title, description=text, meta=declared.meta
            )
            admitting = admission("prompt", own, declared.visible, declared.scopes)
            self._registry.add_prompt(handler, entry, admitting)
            return self._with_legacy(fn, handler)

        return register if fn is None else register(fn)

    def resource(self, uri: str, /, **options: Unpack[ResourceOptions]) -> Callable[[F], F]:
        """Register a resource, or a template when its URI has `{variables}`."""
        check_uri(uri)
        declared = Declaration.read(options, ResourceOptions)
        names = Template(uri).names if is_template(uri) else ()

        def register(fn: Callable[..., Any]) -> Any:
            own = own_name(fn, declared.name, "resource")
            cache = declared.cache or self._cache
            everybodys = declared.visible is None and not declared.scopes
            hints = (cache if everybodys else cache.for_one_caller()).members()
            handler = self._compiler.resource(
                fn, uri, names, declared.calls, mime_type=declared.mime_type, hints=hints
            )
            entry = resource_entry(
                handler,
                name=own,
                title=declared.title,
                description=declared.description or docstring(fn),
                mime_type=declared.mime_type,
                meta=declared.meta,
            )
            admitting = admission("resource", uri, declared.visible, declared.scopes)
            self._registry.add_resource(handler, entry, admitting)
            return self._with_legacy(fn, handler)

        return register

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Register the completion of an argument of a prompt (by name) or template (by URI).

        The function takes the text so far and, if it wants, the other arguments.
        """

        def register(fn: F) -> F:
            self._catalog.completers[(ref, argument)] = completer(fn)
            self._registry.offer("completions")
            return fn

        return register

    def _with_legacy(
        self,
        fn: Callable[..., Any],
        handler: Handler,
        limits: CallLimits | None = None,
        output: DeclaredOutput | None = None,
    ) -> Any:
        """Add `legacy`, which registers a second handler for old clients, and `on_cancel`."""
        current = handler

        def replace(replaced: Handler) -> None:
            nonlocal current
            self._registry.replace(current, replaced)
            current = replaced

        def legacy(second: F) -> F:
            replace(current.with_legacy(self._second_handler(second, handler, limits, output)))
            return second

        def on_cancel(undo: F) -> F:
            replace(current.with_on_cancel(undo))
            return undo

        with suppress(AttributeError):  # a method of an object takes no attributes
            cast("Any", fn).legacy = legacy
            if handler.kind == "tool":
                cast("Any", fn).on_cancel = on_cancel
        return fn

    def remove(self, kind: Literal["tool", "prompt", "resource", "template"], name: str) -> bool:
        """Remove something; listeners are notified. False if there is none of that name."""
        return self._registry.remove(kind, name)

    def _second_handler(
        self,
        fn: Callable[..., Any],
        handler: Handler,
        limits: CallLimits | None,
        output: DeclaredOutput | None,
    ) -> Handler:
        """Compile the handler that old clients get in place of another."""
        compiler, name = self._compiler, handler.name
        options = dataclasses.replace(handler.options, unable=None)
        if handler.kind == "tool":
            return compiler.tool(fn, name, options, limits=limits, listed=output)[0]
        if handler.kind == "prompt":
            return compiler.prompt(fn, name, options, docstring(handler.fn))
        names = Template(name).names if is_template(name) else ()
        return compiler.resource(fn, name, names, options, mime_type=None, hints=b"")

    def override(
        self, dependency: Callable[..., Any], replacement: Callable[..., Any]
    ) -> AbstractContextManager[None]:
        """Let another function stand in for that of a `Depends`, for tests.

        with server.override(get_pool, lambda: FakePool()): ...
        """
        return self._overrides.override(dependency, replacement)
