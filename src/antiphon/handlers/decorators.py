"""Registering handlers: the decorators of `Server`, each of which compiles and registers.

Owns what an author may write above a function, and what hangs on the function afterwards. Knows no
transport, no store and no engine: whoever serves reads the registry.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast, overload

from antiphon.engine.handler import Handler, Options
from antiphon.engine.hints import Cache
from antiphon.errors import ConfigError
from antiphon.handlers.catalog import Catalog
from antiphon.handlers.compile import (
    check_uri,
    docstring,
    own_name,
    prompt_handler,
    resource_handler,
    tool_handler,
)
from antiphon.handlers.listing import prompt_entry, resource_entry, tool_entry
from antiphon.handlers.registry import Registry
from antiphon.handlers.steps import Flow
from antiphon.handlers.uri_template import Template, is_template

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = frozenset(Options.__dataclass_fields__)


class HandlerDecorators:
    """What can be registered with a server."""

    def __init__(self, registry: Registry, catalog: Catalog, cache: Cache) -> None:
        self._registry = registry
        self._catalog = catalog
        self._cache = cache
        self._flows: list[Flow] = []

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        fn: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Register a tool.

        Options of its calls: `version`, `on_version_change`, `asks`, `unasked`, `anchor`,
        `settle`, `ttl`, `deadline`, `park`, `task`, `task_ttl`, `detach`, `legs`.
        """
        register = self._tool_of(
            name, _options(options), title, description, input_schema, annotations, meta
        )
        return register if fn is None else register(fn)

    def flow(
        self,
        name: str,
        *,
        title: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Flow:
        """Begin a tool in steps; it is registered by its `@flow.finish`. Options as for a tool."""
        register = self._tool_of(
            name, _options(options), title, description, input_schema, annotations, meta
        )
        flow = Flow(name, register)
        self._flows.append(flow)
        return flow

    def _tool_of(
        self,
        name: str | None,
        options: Options,
        title: str | None,
        description: str | None,
        input_schema: Mapping[str, Any] | None,
        annotations: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
    ) -> Callable[..., Any]:
        """Make what registers a function, or the end of a flow, as a tool."""

        def register(fn: Callable[..., Any], flow: Flow | None = None) -> Any:
            own = own_name(fn, name, "tool")
            handler, adapter = tool_handler(fn, own, options, input_schema=input_schema, flow=flow)
            entry = tool_entry(
                handler,
                adapter,
                title=title,
                description=description or docstring(fn),
                input_schema=input_schema,
                annotations=annotations,
                meta=meta,
            )
            self._registry.add_tool(handler, entry)
            return self._with_legacy(fn, handler)

        return register

    def _check_flows(self) -> None:
        """Refuse to serve a flow that was never finished: nobody would miss it otherwise."""
        self._flows = [flow for flow in self._flows if not flow.finished]
        if self._flows:
            raise ConfigError(f"{self._flows[0]} has no finish: end it with @flow.finish")

    def prompt(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Register a prompt; its parameters are its arguments."""
        chosen = _options(options)

        def register(fn: Callable[..., Any]) -> Any:
            own = own_name(fn, name, "prompt")
            text = description or docstring(fn)
            handler = prompt_handler(fn, own, chosen, text)
            entry = prompt_entry(handler, title=title, description=text, meta=meta)
            self._registry.add_prompt(handler, entry)
            return self._with_legacy(fn, handler)

        return register if fn is None else register(fn)

    def resource(
        self,
        uri: str,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        cache: Cache | None = None,
        meta: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Register a resource, or a template when its URI has `{variables}`."""
        check_uri(uri)
        chosen = _options(options)
        names = Template(uri).names if is_template(uri) else ()

        def register(fn: Callable[..., Any]) -> Any:
            own = own_name(fn, name, "resource")
            hints = (cache or self._cache).members()
            handler = resource_handler(fn, uri, names, chosen, mime_type=mime_type, hints=hints)
            entry = resource_entry(
                handler,
                name=own,
                title=title,
                description=description or docstring(fn),
                mime_type=mime_type,
                meta=meta,
            )
            self._registry.add_resource(handler, entry)
            return self._with_legacy(fn, handler)

        return register

    def completion(self, ref: str, argument: str) -> Callable[[F], F]:
        """Register the completion of an argument of a prompt (by name) or template (by URI).

        The function takes the text so far and, if it wants, the other arguments.
        """

        def register(fn: F) -> F:
            self._catalog.completers[(ref, argument)] = fn
            self._registry.offer("completions")
            return fn

        return register

    def _with_legacy(self, fn: Callable[..., Any], handler: Handler) -> Any:
        """Let `@tool.legacy` give a second handler for old clients."""
        current = handler

        def legacy(second: F) -> F:
            nonlocal current
            make = {"tool": _legacy_tool, "prompt": _legacy_prompt, "resource": _legacy_resource}
            other = make[handler.kind](second, handler)
            replaced = current.with_legacy(other)
            self._registry.replace(current, replaced)
            current = replaced
            return second

        def on_cancel(undo: F) -> F:
            nonlocal current
            replaced = current.with_on_cancel(undo)
            self._registry.replace(current, replaced)
            current = replaced
            return undo

        with suppress(AttributeError):  # a method of an object takes no attributes
            cast("Any", fn).legacy = legacy
            if handler.kind == "tool":
                cast("Any", fn).on_cancel = on_cancel
        return fn

    def remove(self, kind: Literal["tool", "prompt", "resource", "template"], name: str) -> bool:
        """Take something away; listeners are told. False if there is none of that name."""
        return self._registry.remove(kind, name)


def _options(options: Mapping[str, Any]) -> Options:
    unknown = set(options) - _OPTIONS
    if unknown:
        raise ConfigError(
            f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(sorted(_OPTIONS))}"
        )
    return Options(**options)


def _legacy_tool(fn: Callable[..., Any], handler: Handler) -> Handler:
    return tool_handler(fn, handler.name, handler.options)[0]


def _legacy_prompt(fn: Callable[..., Any], handler: Handler) -> Handler:
    return prompt_handler(fn, handler.name, handler.options, docstring(handler.fn))


def _legacy_resource(fn: Callable[..., Any], handler: Handler) -> Handler:
    names = Template(handler.name).names if is_template(handler.name) else ()
    made = resource_handler(fn, handler.name, names, handler.options, mime_type=None, hints=b"")
    return made
