"""Dependencies: `Annotated[Pool, Depends(get_pool)]` on a parameter of a handler, step or resolver.

A dependency is made when the function that takes it is called, and ended when that function ends;
so it is made again in every round. It is never asked for and never kept in the journal, which is
why it is not a `Resolve`: a resolver's answer belongs to the call, a connection to the process.
"""

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from types import TracebackType
from typing import Any

from antiphon.engine.context import Context
from antiphon.engine.handler import call_in_thread, call_user, is_async
from antiphon.errors import ConfigError, HandlerError
from antiphon.handlers.signature import Parameter, identity, is_context, read_parameters
from antiphon.protocol.asks import Ask

Enter = Callable[..., AbstractAsyncContextManager[Any]]


class Dependency:
    """The function behind a `Depends`, compiled, and what it takes itself."""

    __slots__ = ("_enter", "context", "fn", "key", "wants")

    def __init__(
        self, fn: Callable[..., Any], context: str | None, wants: "Sequence[DependencyParameter]"
    ) -> None:
        self.fn: Callable[..., Any] = fn
        self.context: str | None = context
        self.wants: Sequence[DependencyParameter] = wants
        self.key: object = identity(fn)
        self._enter = _entering(fn)

    async def make(self, kwargs: dict[str, Any], stack: AsyncExitStack) -> Any:
        """Return what is depended on; what it opened is closed with the stack."""
        if self._enter is not None:
            return await stack.enter_async_context(self._enter(**kwargs))
        value = await call_user(self.fn, (), kwargs)
        if isinstance(value, Ask):
            raise HandlerError(
                f"the dependency {_name(self.fn)} returned an ask, which is not asked there: use "
                "Resolve instead of Depends"
            )
        return value


DependencyParameter = tuple[str, Dependency]
"""A parameter, and what fills it."""


class Overrides:
    """What stands in for dependencies, in tests."""

    def __init__(self) -> None:
        self.found: dict[object, Dependency] = {}

    @contextmanager
    def override(self, fn: Callable[..., Any], replacement: Callable[..., Any]) -> Generator[None]:
        """Let another function stand in for a dependency; several may be replaced at a time."""
        key = identity(fn)
        before = self.found.get(key)
        self.found[key] = _Reading(f"the replacement of {_name(fn)}").dependency(replacement)
        try:
            yield
        finally:
            if before is None:
                del self.found[key]
            else:
                self.found[key] = before


class Dependencies:
    """What one function depends on."""

    def __init__(self, what: str, parameters: Sequence[Parameter], overrides: Overrides) -> None:
        """Read the dependencies behind marked parameters.

        Raises:
            ConfigError: One takes what nobody gives, or they depend on each other.
        """
        reading = _Reading(what)
        self._wants = [(p.name, reading.of(p)) for p in parameters]
        self._overrides = overrides

    async def call(self, ctx: Context, fn: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Call a function with what it depends on; end all of that afterwards."""
        stack = AsyncExitStack()
        made: dict[object, Any] = {}
        try:
            for parameter, dependency in self._wants:
                kwargs[parameter] = await self._make(dependency, ctx, stack, made)
            result = await (fn(**kwargs) if is_async(fn) else call_in_thread(fn, **kwargs))
        except BaseException as error:
            # A dependency may clean up after an error, but not make a success of it.
            await stack.__aexit__(type(error), error, error.__traceback__)
            raise
        await stack.aclose()
        return result

    async def _make(
        self, dependency: Dependency, ctx: Context, stack: AsyncExitStack, made: dict[object, Any]
    ) -> Any:
        """Make a dependency after those that it needs, each once."""
        key = dependency.key
        if key not in made:
            dependency = self._overrides.found.get(key, dependency)
            kwargs = {
                parameter: await self._make(wanted, ctx, stack, made)
                for parameter, wanted in dependency.wants
            }
            if dependency.context is not None:
                kwargs[dependency.context] = ctx
            made[key] = await dependency.make(kwargs, stack)
        return made[key]


class _Reading:
    """Reads the functions behind marks, each once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._path: list[str] = []

    def of(self, parameter: Parameter) -> Dependency:
        assert parameter.depends is not None
        return self.dependency(parameter.depends.fn)

    def dependency(self, fn: Callable[..., Any]) -> Dependency:
        name = _name(fn)
        if name in self._path:
            circle = " → ".join([*self._path[self._path.index(name) :], name])
            raise ConfigError(f"{self._what}: its dependencies need each other: {circle}")
        self._path.append(name)
        context: str | None = None
        wants: list[DependencyParameter] = []
        for parameter in read_parameters(fn)[0]:
            if is_context(parameter.annotation, Context):
                context = parameter.name
            elif parameter.depends is not None:
                wants.append((parameter.name, self.of(parameter)))
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(
                    f"{self._what}: the dependency {name} takes {parameter.name!r}. It may take a "
                    "Context, Annotated[..., Depends(...)], and parameters that have a default."
                )
        self._path.pop()
        return Dependency(fn, context, wants)


def _entering(fn: Callable[..., Any]) -> Enter | None:
    """Return how a dependency is entered that ends with clean-up; None for a plain function.

    Both a generator and one that is marked with a decorator of `contextlib` will do.
    """
    inner = inspect.unwrap(fn)
    if inspect.isasyncgenfunction(inner):
        return asynccontextmanager(fn) if inner is fn else fn
    if inspect.isgeneratorfunction(inner):
        return partial(_in_thread, contextmanager(fn) if inner is fn else fn)
    return None


def _in_thread(
    manager: Callable[..., AbstractContextManager[Any]], **kwargs: Any
) -> AbstractAsyncContextManager[Any]:
    return _InThread(manager(**kwargs))


class _InThread(AbstractAsyncContextManager[Any]):
    """A blocking context manager, entered and left in threads."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return await call_in_thread(self._manager.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await call_in_thread(self._manager.__exit__, kind, error, trace)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))
