"""Resolvers: `Annotated[Placement, Resolve(ask_placement)]` on a handler's parameter.

A handler with resolved parameters is compiled to a linear one: its graph is resolved first, then
the function itself is called. Owns reading the marks and checking them at registration; running is
the graph's.
"""

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.engine.context import Context
from antiphon.errors import ConfigError
from antiphon.handlers.dependencies import Dependencies, Overrides
from antiphon.handlers.graph import Graph, Node, Want, declared_needs
from antiphon.handlers.signature import (
    Parameter,
    Signature,
    identity,
    is_context,
    read_parameters,
)


def resolver_graph(signature: Signature, what: str, overrides: Overrides) -> Graph:
    """Return the resolvers that a signature marks, in their order.

    Raises:
        ConfigError: A resolver takes what nobody gives, or resolvers wait for each other.
    """
    nodes = _Nodes(what, signature.arguments, overrides)
    wants = tuple(nodes.want(parameter, "") for parameter in signature.resolved.values())
    return Graph(what, nodes.found, wants)


class _Nodes:
    """The resolvers behind a signature, each function once."""

    def __init__(self, what: str, arguments: Mapping[str, Parameter], overrides: Overrides) -> None:
        self.found: dict[str, Node] = {}
        self._what = what
        self._arguments = arguments
        self._overrides = overrides
        self._names: dict[object, str] = {}
        self._path: list[str] = []

    def want(self, parameter: Parameter, consumer: str) -> Want:
        """Return what fills a marked parameter, reading its resolver when it is first met."""
        assert parameter.resolve is not None
        fn = parameter.resolve.fn
        name = self._names.get(identity(fn))
        if name is None:
            name = parameter.name
            if name in self._names.values():
                name = f"{consumer}.{name}" if consumer else name
            self._names[identity(fn)] = name
            self._read(fn, name)
        elif name in self._path:
            circle = " → ".join([*self._path[self._path.index(name) :], name])
            raise ConfigError(f"{self._what}: its resolvers wait for each other: {circle}")
        return Want(parameter.name, name, parameter.annotation)

    def _read(self, fn: Callable[..., Any], name: str) -> None:
        self._path.append(name)
        context: str | None = None
        arguments: list[str] = []
        wants: list[Want] = []
        depends: list[Parameter] = []
        parameters, returns = read_parameters(fn)
        for parameter in parameters:
            if is_context(parameter.annotation, Context):
                context = parameter.name
            elif parameter.resolve is not None:
                wants.append(self.want(parameter, name))
            elif parameter.depends is not None:
                depends.append(parameter)
            elif parameter.name in self._arguments:
                arguments.append(parameter.name)
            else:
                raise ConfigError(
                    f"{self._what}: the resolver of {name!r} takes {parameter.name!r}, which is no "
                    f"argument of it. It may take {_list(self._arguments)}, a Context, or "
                    "Annotated[..., Resolve(...)] and Annotated[..., Depends(...)]."
                )
        self._path.pop()
        self.found[name] = Node(
            name=name,
            fn=fn,
            context=context,
            arguments=tuple(arguments),
            wants=tuple(wants),
            depends=Dependencies(self._what, depends, self._overrides) if depends else None,
            needs=declared_needs(returns),
        )


def _list(arguments: Mapping[str, Parameter]) -> str:
    return ", ".join(map(repr, arguments)) if arguments else "no arguments (there are none)"
