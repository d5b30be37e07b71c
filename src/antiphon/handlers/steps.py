"""Steps: a tool written as named functions, each of which asks for something or works it out.

A flow is compiled to a linear handler: its graph is resolved first, then `finish` is called. Owns
the collecting of steps and the checks at registration; running is the graph's.
"""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, cast, get_args, get_origin, overload

from antiphon.engine.context import Context
from antiphon.engine.serialization.codec import JsonCodec
from antiphon.errors import ConfigError, HandlerError
from antiphon.handlers.dependencies import Dependencies, Overrides
from antiphon.handlers.graph import Graph, Node, Want, declared_needs, read_annotation
from antiphon.handlers.signature import Parameter, Signature, is_context, read_parameters
from antiphon.protocol.asks import Ask

F = TypeVar("F", bound=Callable[..., Any])

Register = Callable[[Callable[..., Any], "Flow"], Any]
"""Makes a tool of a flow's `finish`."""


class Flow:
    """A tool in steps: `@flow.step` for each, `@flow.finish` for the end."""

    __slots__ = ("_register", "_steps", "finished", "name")

    def __init__(self, name: str, register: Register) -> None:
        """Made by `Server.flow`."""
        self.name: str = name
        self.finished: bool = False
        self._register = register
        self._steps: dict[str, _FlowStep] = {}

    @overload
    def step(self, fn: F, /) -> F: ...
    @overload
    def step(self, *, name: str | None = None, secret: bool = False) -> Callable[[F], F]: ...
    def step(self, fn: Any = None, *, name: str | None = None, secret: bool = False) -> Any:
        """Add a step: a function that returns an ask or a value, under its own name.

        Its parameters are other steps, the tool's arguments and a `Context`. What it gave is kept
        in the journal, so that it runs once per call.

        Args:
            fn: The function.
            name: Another name than the function's.
            secret: Keep the value in the store only, never in the token.
        """

        def add(fn: F) -> F:
            own = name or fn.__name__
            if self.finished:
                raise ConfigError(f"{self}: step {own!r} comes after finish, which ends the flow")
            if own in self._steps:
                raise ConfigError(f"{self}: there are two steps of the name {own!r}")
            self._steps[own] = _FlowStep(fn, secret)
            return fn

        return add if fn is None else add(fn)

    def finish(self, fn: F, /) -> F:
        """End the flow and register the tool.

        The function carries the docstring, the return type and the tool's own arguments: every
        parameter that is no step and no `Context`. It is entered when every step has its value;
        after a crash it may be entered again, so its effects use `ctx.once`.

        Raises:
            ConfigError: A step takes what nobody gives, or steps wait for each other.
        """
        if self.finished:
            raise ConfigError(f"{self}: there are two functions for finish")
        made = self._register(fn, self)
        self.finished = True
        return made

    @property
    def steps(self) -> frozenset[str]:
        """The names of the steps."""
        return frozenset(self._steps)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the steps."""
        return tuple(step.fn for step in self._steps.values())

    def graph(self, signature: Signature, overrides: Overrides) -> Graph:
        """Return the steps in their order; used by the server when it registers the tool."""
        if signature.resolved:
            raise ConfigError(
                f"{self}: finish marks {', '.join(signature.resolved)} with Resolve. In a flow, "
                "make it a step."
            )
        nodes = {
            name: self._node(name, step, signature, overrides) for name, step in self._steps.items()
        }
        wants = tuple(Want(p.name, p.name, p.annotation) for p in signature.given.values())
        graph = Graph(str(self), nodes, wants)
        for name, node in nodes.items():
            node.codec = self._codec(name, node)
        return graph

    def _node(
        self, name: str, step: "_FlowStep", signature: Signature, overrides: Overrides
    ) -> Node:
        context: str | None = None
        depends: list[Parameter] = []
        arguments: list[str] = []
        wants: list[Want] = []
        for parameter in step.parameters:
            if is_context(parameter.annotation, Context):
                context = parameter.name
            elif parameter.resolve is not None:
                raise ConfigError(
                    f"{self}: step {name!r} marks {parameter.name!r} with Resolve. In a flow, make "
                    "it a step."
                )
            elif parameter.depends is not None:
                depends.append(parameter)
            elif parameter.name in self._steps:
                wants.append(Want(parameter.name, parameter.name, parameter.annotation))
            elif parameter.name in signature.arguments:
                arguments.append(parameter.name)
            else:
                raise ConfigError(self._unknown(name, parameter.name, signature.arguments))
        return Node(
            name=name,
            fn=step.fn,
            context=context,
            arguments=tuple(arguments),
            wants=tuple(wants),
            depends=Dependencies(str(self), depends, overrides) if depends else None,
            secret=step.secret,
            needs=declared_needs(step.returns),
        )

    def _unknown(self, step: str, parameter: str, arguments: Mapping[str, Parameter]) -> str:
        return (
            f"{self}: step {step!r} takes {parameter!r}, which is neither a step nor an argument. "
            f"Steps: {', '.join(self._steps)}. Arguments, as finish declares them: "
            f"{', '.join(arguments) or 'none'}."
        )

    def _codec(self, name: str, node: Node) -> JsonCodec:
        """Say how a value is kept: as the step declares it, else as its consumers do."""
        from pydantic import PydanticUserError

        declared, outcome = read_annotation(self._steps[name].returns)
        if outcome:
            raise ConfigError(
                f"{self}: step {name!r} returns an Outcome. Return the ask, and declare the "
                "parameter that takes it as Outcome[...]."
            )
        declared = _value_type(declared)
        try:
            if declared is not Any:
                return JsonCodec(declared)
        except (PydanticUserError, TypeError):
            # Without the cause: its pages say less than this sentence.
            raise ConfigError(
                f"{self}: the value of step {name!r} is kept between rounds, and {declared!r} "
                "cannot be: use a JSON value, a model or a dataclass"
            ) from None
        except HandlerError as error:
            raise ConfigError(f"{self}: the value of step {name!r} is kept: {error}") from error
        try:
            return JsonCodec(node.type)
        except (PydanticUserError, TypeError, HandlerError):
            return JsonCodec(Any)  # the answer to an ask, such as a Completion: kept as an answer

    def __str__(self) -> str:
        """Name the flow in an error text."""
        return f"flow {self.name!r}"


class _FlowStep:
    __slots__ = ("fn", "parameters", "returns", "secret")

    def __init__(self, fn: Callable[..., Any], secret: bool) -> None:
        self.fn = fn
        self.secret = secret
        self.parameters, self.returns = read_parameters(fn)


def _value_type(returns: Any) -> Any:
    """Return the type of the values among what a step may return, without the asks."""
    options = get_args(returns) if get_origin(returns) in (Union, types.UnionType) else (returns,)
    values = [option for option in options if not _is_ask(option)]
    if not values or any(value in (Any, object, inspect.Parameter.empty) for value in values):
        return Any
    return Union[tuple(values)]  # noqa: UP007 - made of a list


def _is_ask(option: Any) -> bool:
    return isinstance(option, type) and issubclass(cast("type[Any]", option), Ask)
