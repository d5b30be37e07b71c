"""Named functions that return asks or values, run in the order of what they need of each other.

Steps and resolvers are both such graphs, and both are linear handlers underneath: everything here
runs in the handler's own task, against the same journal.

Theory. Nodes run one after another as soon as what they need is there; an ask that a node returns
is put aside until nothing else can run. Then all asks that were put aside go out in one round.
That makes a round of every *wave*: independent questions travel together, a question that needs
an answer comes in the next round.

A node that has asked is not run again once its answer is there: the journal holds under which key
it asked and what form it showed. It is run again only when it must ask again (no answer, or one
that did not fit), when nobody declares a type by which its answer could be read, or when it takes
a value that is worked out anew and differs: then it shows whether the answer is still one to this
very question. Whether a node that
returned a *value* is run again is the shape's choice: steps keep their values, resolvers do not.

A node that is not run must leave the same traces as one that is. So what it read and made in the
journal through its context, and which keys it derived, is kept with it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin

import msgspec

from antiphon.engine.approvals import ask_all
from antiphon.engine.context import Context, execution_of
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Invoke, call_user, needs_of
from antiphon.engine.mistakes import check_awaited
from antiphon.engine.questions import question, read_answer
from antiphon.engine.serialization.arguments import comparable
from antiphon.engine.serialization.codec import JsonCodec
from antiphon.errors import AnswerInvalid, ConfigError, Diverged, HandlerError, UnsupportedForm
from antiphon.forms import form as forms
from antiphon.forms.form import Form
from antiphon.forms.models import is_model_type
from antiphon.handlers.dependencies import Dependencies
from antiphon.protocol.asks import Ask, Elicit, ElicitUrl, Kind, ListRoots, Opened, Outcome, Sample
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.digest import canonical, short_digest
from antiphon.protocol.journal import Entry, encode_value
from antiphon.protocol.journal_index import EntryKind

Values: TypeAlias = Mapping[str, Outcome[Any]]


class _Kept(msgspec.Struct, omit_defaults=True):
    """What the journal holds of a node."""

    v: msgspec.Raw = msgspec.Raw()
    """Its value, encoded."""

    k: str | None = None
    """The key under which it asked."""

    t: Kind = "form"
    x: str = ""
    """The digest of the form that it showed, or the URL."""

    e: list[tuple[EntryKind, str]] = []
    """Entries that it read or made through its context."""

    d: dict[str, int] = {}
    """Keys that it derived."""

    i: str = ""
    """A digest of the values, worked out anew in every round, about which it asked."""


_kept = msgspec.json.Decoder(_Kept).decode

_UNKNOWN = "?"
"""Stands for values of which no digest can be made."""

_NO_ASK = ListRoots()


class Want:
    """A parameter that takes a node's value."""

    __slots__ = ("node", "outcome", "parameter", "type")

    type: Any
    outcome: bool

    def __init__(self, parameter: str, node: str, annotation: Any) -> None:
        self.parameter: str = parameter
        self.node: str = node
        self.type, self.outcome = read_annotation(annotation)

    def take(self, values: Values) -> Any:
        """Return the value, or its outcome where the parameter is declared as one."""
        outcome = values[self.node]
        return outcome if self.outcome else outcome.unwrap()


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One function of a graph, and what it is called with."""

    name: str
    fn: Callable[..., Any]
    context: str | None
    """The parameter that takes the context."""

    arguments: tuple[str, ...]
    """Parameters that take the call's arguments of the same name."""

    wants: tuple[Want, ...]
    depends: Dependencies | None = None
    """What it depends on besides."""

    codec: JsonCodec | None = None
    """How its value is kept; None for values that are not."""

    secret: bool = False
    needs: tuple[Capability, ...] = ()
    """What the client needs for the ask that its return annotation declares."""

    type: Any = Any
    """What its consumers declare."""

    form: Form[Any] | None = None
    """The form that such a type would be, if it can be one."""

    lenient: bool = False
    """Whether every consumer takes a refusal as a value."""

    entry: str = ""
    """Its key in the journal."""

    def __post_init__(self) -> None:
        """Derive what every round needs."""
        self.entry = f"node:{self.name}"

    async def call(self, ctx: Context, arguments: Mapping[str, Any], values: Values) -> Any:
        """Run the function: async ones here, others in a thread."""
        kwargs = {name: arguments[name] for name in self.arguments}
        kwargs.update((want.parameter, want.take(values)) for want in self.wants)
        if self.context is not None:
            kwargs[self.context] = ctx
        if self.depends is not None:
            return await self.depends.call(ctx, self.fn, kwargs)
        return await call_user(self.fn, (), kwargs)


class Graph:
    """Nodes in the order in which they can run."""

    __slots__ = ("_consumers", "_nodes")

    def __init__(self, what: str, nodes: Mapping[str, Node], consumers: Sequence[Want]) -> None:
        """Order the nodes and tell each what is expected of it.

        Raises:
            ConfigError: They wait for each other in a circle.
        """
        before = {name: {w.node for w in node.wants} for name, node in nodes.items()}
        try:
            order = list(TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = " → ".join(reversed(error.args[1]))
            raise ConfigError(f"{what} can never run: {circle} wait for each other") from error
        declared = {name: index for index, name in enumerate(nodes)}
        depth: dict[str, int] = {}
        for name in order:
            depth[name] = 1 + max((depth[n] for n in before[name]), default=0)
        ordered = sorted(nodes, key=lambda name: (depth[name], declared[name]))
        self._nodes = {name: nodes[name] for name in ordered}
        self._consumers = consumers
        _expect(what, self._nodes, [*consumers, *(w for n in nodes.values() for w in n.wants)])

    @property
    def nodes(self) -> Iterable[Node]:
        """The nodes, in the order in which they can run."""
        return self._nodes.values()

    @property
    def needs(self) -> tuple[Capability, ...]:
        """What a client needs for all the asks that are declared, whichever comes first."""
        return tuple(need for node in self._nodes.values() for need in node.needs)

    def before(self, call: Invoke) -> Invoke:
        """Return a call that resolves the graph first and takes what it wants of it."""

        async def invoke(ctx: Context, arguments: dict[str, Any]) -> Any:
            values = await self.resolve(ctx, arguments)
            for want in self._consumers:
                arguments[want.parameter] = want.take(values)
            return await call(ctx, arguments)

        return invoke

    async def resolve(self, ctx: Context, arguments: Mapping[str, Any]) -> Values:
        """Run what must run, ask what must be asked; returns every node's outcome.

        Raises:
            Refused: A person refused what a consumer needs.
        """
        execution = execution_of(ctx)
        values: dict[str, Outcome[Any]] = {}
        live: set[str] = set()
        wave: list[_Asking] = []
        waiting = dict(self._nodes)
        while waiting or wave:
            ready = [n for n in waiting.values() if all(w.node in values for w in n.wants)]
            if not ready:
                await self._answers(execution, wave, values)
                wave = []
            for node in ready:
                del waiting[node.name]
                inputs = _inputs(node, values, live)
                came = _recalled(execution, node, inputs)
                if came is None:
                    came = await _called(execution, node, ctx, arguments, values)
                    if inputs and isinstance(came, _Asking):
                        came.left.i = inputs
                if isinstance(came, _Asking):
                    wave.append(came)
                else:
                    if node.codec is None:
                        live.add(node.name)
                    _settle(node, came, values)
        return values

    async def _answers(
        self, execution: Execution, wave: list["_Asking"], values: dict[str, Outcome[Any]]
    ) -> None:
        """Settle a wave: what was answered, then what is asked now, in as few rounds as allowed."""
        await execution.enter_async("ask")
        asking: list[_Asking] = []
        for one in wave:
            if one.answer is not None:
                _settle(one.node, one.answer, values)
            else:
                asking.append(one)
        size = execution.environment.limits.asks_per_round
        for start in range(0, len(asking), size):
            batch = asking[start : start + size]
            outcomes = await ask_all(
                execution, [(self._key(execution, one), question(one.ask)) for one in batch]
            )
            for one, outcome in zip(batch, outcomes, strict=True):
                _settle(one.node, outcome, values)

    def _key(self, execution: Execution, asking: "_Asking") -> str:
        """Name a node's ask, the same in every round, and note it in the journal."""
        node, ask = asking.node, asking.ask
        _check_type(node, ask)
        ready = question(ask)
        known = execution.replay.peek("patch", node.entry)
        key = _kept(known.payload).k if known is not None else None
        if key is None:
            key = self._new_key(execution, node, ready.base)
        execution.keys.take(key)
        kept = asking.left
        kept.k, kept.t = key, ready.kind
        if ready.form is not None:
            kept.x = ready.form.digest.hex()
        elif isinstance(ask, ElicitUrl):
            kept.x = ask.url
        payload = encode_value(kept)
        if known is None or known.payload != payload:
            execution.record(Entry("patch", node.entry, payload, secret=ask.secret))
        return key

    def _new_key(self, execution: Execution, node: Node, base: str) -> str:
        """Derive a key as a linear handler would; where it is taken, the node's own name."""
        entries = [execution.replay.peek("patch", other.entry) for other in self._nodes.values()]
        held = {_kept(entry.payload).k for entry in entries if entry is not None}
        for key in (base, node.name):
            if key not in held and _is_free(execution, key):
                return key
        while (key := execution.key_for(base, None)) in held or not _is_free(execution, key):
            pass
        return key


def _is_free(execution: Execution, base: str) -> bool:
    """Return whether nothing was asked or answered under a derived key in this call."""
    replay = execution.replay
    known = replay.used("ask", base) or replay.peek("ask", base) is not None
    return not known and base not in execution.keys


@dataclass(slots=True, eq=False)
class _Asking:
    """A node that has asked: in this round, or in an earlier one, and then with its answer."""

    node: Node
    ask: Ask = _NO_ASK
    left: _Kept = field(default_factory=_Kept)
    answer: Outcome[Any] | None = None


class _Traces:
    """What a node leaves behind in the run, beside its value."""

    __slots__ = ("_commits", "_execution", "_keys", "_made", "_unread")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._unread = frozenset(execution.replay.unread)
        self._made = len(execution.replay.fresh)
        self._keys = execution.keys.taken()
        self._commits = len(execution.commits)

    def left(self, node: Node) -> _Kept:
        execution = self._execution
        if node.codec is not None:
            self.check_commits(node)
        keys = {b: n for b, n in execution.keys.taken().items() if self._keys.get(b) != n}
        replay = execution.replay
        read = sorted(name for name in self._unread if name not in replay.unread)
        fresh = replay.fresh[self._made :]
        made: list[tuple[EntryKind, str]] = [(entry.kind, entry.key) for entry in fresh]
        return _Kept(e=[*read, *made], d=keys)

    def check_commits(self, node: Node) -> None:
        if len(self._execution.commits) > self._commits:
            raise HandlerError(
                f"{node.name!r} calls ctx.on_commit, but it is not run again in later rounds, so "
                "that this would be forgotten. Call it where the call ends."
            )


async def _called(
    execution: Execution, node: Node, ctx: Context, arguments: Mapping[str, Any], values: Values
) -> "Outcome[Any] | _Asking":
    """Run a node."""
    sees_context = node.context is not None or node.depends is not None
    traces = _Traces(execution) if sees_context else None
    before = len(execution.calls)
    value = await node.call(ctx, arguments, values)
    if len(execution.calls) > before:  # it may not run again: what it forgot is seen now or never
        check_awaited(execution.calls, before)
    left = traces.left(node) if traces is not None else _Kept()
    if isinstance(value, Ask):
        if traces is not None:
            traces.check_commits(node)
        if node.secret and not value.secret:
            value = msgspec.structs.replace(value, secret=True)  # its answer is the step's value
        return _Asking(node, value, left)
    return _keep(execution, node, value, left)


def _keep(execution: Execution, node: Node, value: Any, left: _Kept) -> Outcome[Any]:
    """Keep a node's value, if its shape keeps values; return it as every later round will."""
    if node.codec is None:
        if isinstance(value, Outcome):
            return cast("Outcome[Any]", value)
        return Outcome("accepted", value)
    execution.enter("step")
    data, value = node.codec.keep(value, f"the value of step {node.name!r}")
    kept = msgspec.structs.replace(left, v=msgspec.Raw(data))
    execution.record(Entry("patch", node.entry, encode_value(kept), secret=node.secret))
    return Outcome("accepted", value)


def _load(node: Node, data: bytes) -> Any:
    assert node.codec is not None
    try:
        return node.codec.load(data)
    except HandlerError as error:
        raise Diverged(
            recorded=f"a value of step {node.name!r}",
            now="another type for it",
            cure="Keep the types of steps while calls are running, or declare another version=.",
        ) from error


def _inputs(node: Node, values: Values, live: set[str]) -> str:
    """Tell apart the values that a node takes from nodes that are run in every round."""
    taken = [values[want.node] for want in node.wants if want.node in live]
    if not taken:
        return ""
    try:
        plain = comparable([(outcome.status, outcome.value) for outcome in taken])
        return short_digest(canonical(plain)).hex()
    except (ValueError, TypeError, RecursionError):
        return _UNKNOWN


def _recalled(execution: Execution, node: Node, inputs: str) -> "Outcome[Any] | _Asking | None":
    """Return what a node returned in an earlier round; None if it has to execution."""
    entry = execution.replay.seen("patch", node.entry)
    if entry is None:
        return None
    kept = _kept(entry.payload)
    came: Outcome[Any] | _Asking
    if kept.k is not None:
        if inputs == _UNKNOWN or kept.i != inputs:
            return None
        answer = _answer(execution, node, kept)
        if answer is None:
            return None
        came = _Asking(node, answer=answer)
    elif node.codec is not None:
        came = Outcome("accepted", _load(node, bytes(kept.v)))
    else:
        return None
    for kind, key in kept.e:
        execution.replay.skip(kind, key)
    execution.keys.take_all(kept.d)
    return came


def _answer(execution: Execution, node: Node, kept: _Kept) -> Outcome[Any] | None:
    """Read the answer to what a node asked, without asking the node what that was."""
    key, kind, form = kept.k or "", kept.t, node.form
    if kind == "form" and (form is None or form.digest.hex() != kept.x):
        return None
    entry = execution.replay.peek("ask", key)
    if entry is None:
        return None
    try:
        outcome = read_answer(kind, entry.value(), key, form)
    except AnswerInvalid:
        return None  # it runs again, and asks again with the reason
    execution.replay.skip("ask", key)
    execution.keys.take(key)
    if kind == "url" and outcome.accepted:
        return Outcome(outcome.status, Opened(kept.x), key)
    return outcome


def _settle(node: Node, outcome: Outcome[Any], values: dict[str, Outcome[Any]]) -> None:
    """A refusal ends the call at once, unless everybody who wants the value can take it."""
    if not node.lenient:
        outcome.unwrap()
    values[node.name] = outcome


# --- at registration -----------------------------------------------------------------------------


def _expect(what: str, nodes: Mapping[str, Node], wants: Iterable[Want]) -> None:
    """Tell each node what its consumers declare."""
    by_node: dict[str, list[Want]] = {}
    for want in wants:
        by_node.setdefault(want.node, []).append(want)
    for name, own in by_node.items():
        node = nodes[name]
        node.lenient = all(want.outcome for want in own)
        node.type = next((want.type for want in own if want.type is not Any), Any)
        try:
            node.form = _form_of(node.type)
        except UnsupportedForm as error:
            if "form" in node.needs:  # it declares to ask for this type: `-> Elicit`
                raise ConfigError(f"{what}, {name!r}: {error}") from error


def _form_of(type_: Any) -> Form[Any] | None:
    if not isinstance(type_, type):
        return None
    type_ = cast("type[Any]", type_)
    if not (is_model_type(type_) or dataclasses.is_dataclass(type_)):
        return None
    return forms.of(type_)


def read_annotation(annotation: Any) -> tuple[Any, bool]:
    """Return the type that a parameter declares, and whether it takes an `Outcome` of it."""
    if annotation is inspect.Parameter.empty:
        return Any, False
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is Outcome:
        return Any, True
    if get_origin(annotation) is Outcome:
        return get_args(annotation)[0], True
    return annotation, False


def declared_needs(returns: Any) -> tuple[Capability, ...]:
    """Return what a client needs for what a function declares to return: `-> Sample`.

    A function that may return a value or one of several asks needs nothing for certain.
    """
    declared, _ = read_annotation(returns)
    return needs_of(declared) if declared in (Elicit, ElicitUrl, Sample, ListRoots) else ()


def _check_type(node: Node, ask: Ask) -> None:
    """Tell an author at once that a parameter declares another form than the one shown."""
    if not isinstance(ask, Elicit) or node.form is None or not isinstance(ask.form, type):
        return
    shown = cast("type[Any]", ask.form)
    if not issubclass(shown, node.type):
        raise HandlerError(
            f"{node.name!r} asks for {shown.__name__}, but the parameter that takes it is declared "
            f"as {node.type.__name__}. Let both name the same type."
        )
