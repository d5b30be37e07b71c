"""Drive a call through all its rounds, by default with a new server for every round.

Theory. What a call may rely on between two rounds is the text of its token and the store; a handler
that needs anything else passes a test that keeps its server and fails in production. So the default
is to make the server anew for each request, from a factory that is given only what survives: store,
keys, clock and dice. Everything a request brings and gives goes through JSON text.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from antiphon.errors import CallerError, ConfigError
from antiphon.ports import Store
from antiphon.protocol.capabilities import TASKS
from antiphon.protocol.envelope import CLIENT_CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION, admit
from antiphon.protocol.inbox import Decided, Person
from antiphon.protocol.request import LEGACY, MODERN, Era, LegacyAsk, Principal, Request
from antiphon.seal.policy import Seal
from antiphon.server import Server
from antiphon.stores.memory import MemoryStore
from antiphon.testing.decisions import Undecided, decide
from antiphon.testing.doubles import BackChannel, CountingEntropy, FakeClock, RecordingChannel
from antiphon.testing.script import Answerer, Script, WireAsk, wire_answer
from antiphon.testing.tasks import follow

Factory: TypeAlias = Callable[..., Server]
"""Makes a server. Takes what it wants of `store`, `seal`, `clock` and `entropy`, by name."""

EVERYTHING: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
"""The capabilities of a client that can be asked anything."""

WITH_TASKS: Mapping[str, Any] = {**EVERYTHING, "extensions": {TASKS: {}}}
"""The capabilities of a client that also takes tasks."""

KEY = "c2b7f09e4d1a85630e9fd27b6c48a1f35d90e7b2148c6fa3927be05d41f8639a"
"""The key of every server in a test. Worth nothing anywhere else."""

_LONG = timedelta(days=3650)


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """One round: what was sent and what came back. A call is the chain of its steps."""

    request: Mapping[str, Any] = field(repr=False)
    """Method and params as they went out."""

    result: Mapping[str, Any] | None = None
    error: CallerError | None = None
    notices: tuple[tuple[str, dict[str, Any]], ...] = ()
    pushed: tuple[WireAsk, ...] = ()
    """What was asked over a back channel while the handler waited (legacy)."""

    before: "RoundTrip | None" = field(default=None, repr=False)

    @property
    def waiting(self) -> bool:
        """Whether the server wants to hear again."""
        return (self.result or {}).get("resultType") == "input_required"

    @property
    def task(self) -> str:
        """The id of the task that the call has become; empty while it is none."""
        result = self.result or {}
        return result["taskId"] if result.get("resultType") == "task" else ""

    @property
    def token(self) -> str:
        """The token that this round gave; it must be waiting."""
        return cast("Mapping[str, Any]", self.result)["requestState"]

    @property
    def asks(self) -> dict[str, WireAsk]:
        """What this round asks, by key."""
        requests = (self.result or {}).get("inputRequests", {})
        return {k: WireAsk(k, r["method"], r.get("params", {})) for k, r in requests.items()}

    @property
    def trail(self) -> list["RoundTrip"]:
        """Every round of the call up to this one."""
        earlier = self.before.trail if self.before is not None else []
        return [*earlier, self]

    @property
    def rounds(self) -> int:
        """How many rounds the call took so far."""
        return len(self.trail)

    @property
    def asked(self) -> list[str]:
        """The keys that were asked, in order; a key asked twice stands twice."""
        return [ask.key for step in self.trail for ask in (*step.pushed, *step.asks.values())]

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks of a tool's result."""
        return list((self.result or {}).get("content", ()))

    @property
    def text(self) -> str:
        """The text of a result, of a prompt's messages and a resource too; or of the error."""
        if self.error is not None:
            return self.error.message
        result = self.result or {}
        messages: list[dict[str, Any]] = result.get("messages") or []
        said = [message["content"] for message in messages]
        blocks = [*self.content, *said, *result.get("contents", ())]
        return "".join(block.get("text", "") for block in blocks)

    @property
    def structured(self) -> Any:
        """The structured content of a tool's result."""
        return (self.result or {}).get("structuredContent")

    @property
    def is_error(self) -> bool:
        """Whether the round failed: a JSON-RPC error or a tool's error result."""
        return self.error is not None or bool((self.result or {}).get("isError"))

    @property
    def code(self) -> int:
        """The code of the JSON-RPC error; 0 without one."""
        return self.error.code if self.error is not None else 0


class Rounds:
    """A client, a world and the servers that come and go in it.

    async with Rounds(make_server) as rounds:
        done = await rounds.call("provision", {"name": "x"}, answers={"placement": {...}})
    assert done.asked == ["placement", "approve"]
    """

    enough = 200
    """Rounds after which a call is taken for one that never ends."""

    def __init__(
        self,
        server: Server | Factory,
        *,
        fresh: bool | None = None,
        store: str | Store | None = None,
        clock: FakeClock | None = None,
        capabilities: Mapping[str, Any] = EVERYTHING,
        principal: Principal | None = None,
        era: Era = "modern",
    ) -> None:
        """Make a world.

        Args:
            server: A factory, or a server that is kept.
            fresh: Whether every round gets a server of its own; true for a factory.
            store: What survives beside tokens; a memory store unless given.
            clock: The time of the world.
            capabilities: What the client can be asked.
            principal: Who calls.
            era: In the legacy era a whole call is one request, answered over a back channel.
        """
        if isinstance(server, Server) and fresh:
            raise ConfigError("a server cannot be thrown away and made again: give a factory")
        self.clock: FakeClock = clock or FakeClock()
        self.entropy: CountingEntropy = CountingEntropy()
        self.store: str | Store = store or MemoryStore(clock=self.clock)
        self.seal: Seal = Seal(keys=[KEY])
        self.capabilities: dict[str, Any] = dict(capabilities)
        self.era: Era = era
        self.principal: Principal = principal or Principal(transport="process")
        self.fresh: bool = not isinstance(server, Server) if fresh is None else fresh
        self._server = server
        self._kept: Server | None = None
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Rounds":
        """Begin."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Let go of the kept server."""
        await self._open.aclose()

    # --- servers ---------------------------------------------------------------------------------

    def make(self, **instead: Any) -> Server:
        """Make a server of this world; what is given replaces what the world would give."""
        if isinstance(self._server, Server):
            return self._server
        kit = {
            "store": self.store,
            "seal": self.seal,
            "clock": self.clock,
            "entropy": self.entropy,
            **instead,
        }
        return self._server(**_wanted(self._server, kit))

    async def deploy(self, factory: Factory) -> None:
        """Put another release of the server in place of this one; running calls go on with it."""
        self._server = factory
        self._kept = None
        await self._open.aclose()

    async def restart(self) -> None:
        """Stop the kept server and start it again, so that it looks at the clock anew."""
        if self._kept is not None:
            await self._open.aclose()
            await self._open.enter_async_context(self._kept.running())

    async def serve(self, stack: AsyncExitStack) -> Server:
        """Return a running server: a new one that ends with the stack, or the one that is kept."""
        if self.fresh:
            server = self.make()
            await stack.enter_async_context(server.running())
            return server
        if self._kept is None:
            self._kept = self.make()
            await self._open.enter_async_context(self._kept.running())
        return self._kept

    # --- one round -------------------------------------------------------------------------------

    async def send(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        before: RoundTrip | None = None,
        server: Server | None = None,
        capabilities: Mapping[str, Any] | None = None,
        principal: Principal | None = None,
        progress: bool = False,
        log_level: str | None = None,
    ) -> RoundTrip:
        """Send one request as it is."""
        meta: dict[str, Any] = {
            **params.get("_meta", {}),
            PROTOCOL_VERSION: MODERN,
            CLIENT_CAPABILITIES: self.capabilities if capabilities is None else dict(capabilities),
        }
        if progress:
            meta["progressToken"] = "progress"
        if log_level is not None:
            meta[LOG_LEVEL] = log_level
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        message = msgspec.json.decode(msgspec.json.encode(body))
        told = RecordingChannel()
        step = RoundTrip(request={"method": method, "params": dict(params)}, before=before)
        async with AsyncExitStack() as stack:
            server = server or await self.serve(stack)
            try:
                round = admit(
                    message, server.dispatcher.served, principal or self.principal, channel=told
                )
            except CallerError as error:
                return replace(step, error=error)
            step = await _dispatched(server, round, step)
        return replace(step, notices=tuple(told.notices))

    async def begin(
        self, tool: str, arguments: Mapping[str, Any] | None = None, **how: Any
    ) -> RoundTrip:
        """Send the first round of a tool call; `how` is what `send` takes."""
        return await self.send("tools/call", _tool(tool, arguments), **how)

    async def answer(self, step: RoundTrip, answers: Script | None = None, **how: Any) -> RoundTrip:
        """Send the next round with these answers; asks that have none stay unanswered."""
        given = answers or {}
        raw = {k: wire_answer(ask, given[k]) for k, ask in step.asks.items() if k in given}
        return await self.send_raw(step, raw, **how)

    async def send_raw(
        self, step: RoundTrip, answers: Any, *, token: str | None = None, **how: Any
    ) -> RoundTrip:
        """Send the next round with raw answers, whatever they are."""
        params = _first_params(step)
        if answers is not None and answers != {}:
            params["inputResponses"] = answers
        params["requestState"] = step.token if token is None else token
        return await self.send(step.request["method"], params, before=step, **how)

    async def replay(self, step: RoundTrip, **how: Any) -> RoundTrip:
        """Send the very request of a round again."""
        request = step.request
        return await self.send(request["method"], request["params"], before=step.before, **how)

    async def tamper(
        self, step: RoundTrip, answers: Script | None = None, at: int | None = None
    ) -> RoundTrip:
        """Send the next round with one character of its token changed."""
        token = step.token
        place = len(token) // 2 if at is None else at
        other = "A" if token[place] != "A" else "B"
        token = token[:place] + other + token[place + 1 :]
        return await self.answer(step, answers, token=token)

    async def decide(
        self,
        choice: Literal["approve", "decline"],
        *,
        as_: Person,
        note: str = "",
        message: str | None = None,
    ) -> Decided:
        """Decide what waits in the inbox, as a person who is signed in with these roles.

        Args:
            choice: The button.
            as_: Who presses it. One whose `auth_time` is 0 has signed in just now.
            note: What they write beside it.
            message: Which question is meant, where several wait.

        Raises:
            Undecided: None or several wait, or this person may not decide.
        """
        person = as_ if as_.auth_time else msgspec.structs.replace(as_, auth_time=self.clock())
        async with AsyncExitStack() as stack:
            view = (await self.serve(stack)).inbox_view()
            return await decide(view, choice, person, note=note, message=message)

    async def nobody_decides(self) -> None:
        """Let so much time pass that whatever waits in the inbox has expired."""
        async with AsyncExitStack() as stack:
            waiting = await (await self.serve(stack)).inbox_view().waiting()
        ends = [item.expires for item in waiting]
        if not ends:
            raise Undecided("no question waits for a decision")
        self.clock.advance(max(ends) - self.clock() + 1)
        await self.restart()

    def expire(self) -> None:
        """Let so much time pass that no token is good any more."""
        self.clock.advance(_LONG)

    # --- whole calls -----------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        answers: Script | None = None,
        **how: Any,
    ) -> RoundTrip:
        """Call a tool through all its rounds; give its last one."""
        return await self._whole("tools/call", _tool(tool, arguments), answers, how)

    async def prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        answers: Script | None = None,
        **how: Any,
    ) -> RoundTrip:
        """Get a prompt through all its rounds."""
        return await self._whole("prompts/get", _tool(name, arguments), answers, how)

    async def read(self, uri: str, *, answers: Script | None = None, **how: Any) -> RoundTrip:
        """Read a resource through all its rounds."""
        return await self._whole("resources/read", {"uri": uri}, answers, how)

    async def _whole(
        self, method: str, params: dict[str, Any], answers: Script | None, how: dict[str, Any]
    ) -> RoundTrip:
        if self.era == "legacy":
            return await self._push(method, params, answers or {}, **how)
        return await self.finish(await self.send(method, params, **how), answers, **how)

    async def _push(
        self,
        method: str,
        params: dict[str, Any],
        answers: Script,
        *,
        capabilities: Mapping[str, Any] | None = None,
        principal: Principal | None = None,
    ) -> RoundTrip:
        """Run a whole call of a legacy session: one request, whose asks a back channel answers."""
        answerer, asked = Answerer(answers), list[WireAsk]()

        def answer(key: str, request: LegacyAsk) -> Any:
            asked.append(WireAsk(key, request.method, request.params))
            return answerer.answers(asked[-1:]).get(key, {"action": "cancel"})

        channel = BackChannel(answer)
        round = Request(
            method=method,
            target=params.get("name") or params["uri"],
            arguments=params.get("arguments"),
            capabilities=dict(self.capabilities if capabilities is None else capabilities),
            principal=principal or self.principal,
            version=LEGACY[0],
            era="legacy",
            channel=channel,
            params=params,
        )
        step = RoundTrip(request={"method": method, "params": params})
        async with AsyncExitStack() as stack:
            step = await _dispatched(await self.serve(stack), round, step)
        return replace(step, pushed=tuple(asked), notices=tuple(channel.notices))

    async def finish(self, step: RoundTrip, answers: Script | None = None, **how: Any) -> RoundTrip:
        """Go on from a waiting round, or from a task, to the end.

        Raises:
            Unscripted: The server asked what the script has no answer for.
        """
        answerer = Answerer(answers or {})
        while step.waiting:
            if step.rounds > self.enough:
                raise AssertionError(f"the call did not end within {self.enough} rounds")
            step = await self.send_raw(step, answerer.answers(step.asks.values()), **how)
        return await follow(self, step, answerer, how) if step.task else step

    async def together(
        self, step: RoundTrip, answers: Script | None, count: int
    ) -> list[RoundTrip]:
        """Send the next round so many times at once."""
        return await asyncio.gather(*(self.answer(step, answers) for _ in range(count)))


async def _dispatched(server: Server, round: Request, step: RoundTrip) -> RoundTrip:
    try:
        return replace(step, result=msgspec.json.decode(await server.dispatcher.dispatch(round)))
    except CallerError as error:
        return replace(step, error=error)


def _wanted(factory: Factory, kit: Mapping[str, Any]) -> dict[str, Any]:
    """Choose from the kit what the factory takes."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(kit)
    return {name: kit[name] for name in parameters if name in kit}


def _tool(name: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"name": name} if arguments is None else {"name": name, "arguments": dict(arguments)}


def _first_params(step: RoundTrip) -> dict[str, Any]:
    """The params of the call itself: every round repeats them unchanged."""
    params = dict(step.request["params"])
    params.pop("inputResponses", None)
    params.pop("requestState", None)
    return params
