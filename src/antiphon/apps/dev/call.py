"""A call that is made from the page: driven by `antiphon.Client`, answered by a person.

In the modern era the call stops at its questions and is resumed with the answers; in a legacy
session the server waits while the same questions are answered. Both end in `OpenAsk`.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec
from pydantic import BaseModel

from antiphon.apps.dev.process import ServerProcess
from antiphon.apps.dev.wire import Exchange, http_client
from antiphon.client import Client
from antiphon.client.asks import AnyAsk, FormAsk, RootsAsk, SampleAsk, Step, UrlAsk
from antiphon.client.errors import (
    AbilityMissing,
    AnswerUnfit,
    ClientError,
    ConnectionLost,
    RemoteError,
)
from antiphon.client.flow_types import PendingCall, Timeouts
from antiphon.client.read_asks import Task
from antiphon.ports import EffectRow
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.request import Era
from antiphon.protocol.text import safe_line

CallState: TypeAlias = Literal["running", "waiting", "done", "failed", "cancelled"]
TIMEOUTS = Timeouts(rounds=1_000, total=86_400.0, answer=86_400.0, reply=3_600.0)
KEPT_NOTES = 500
NOTICED_WITHIN = 0.2
"""Seconds after which it is known that a server which dropped a connection has ended."""


class ServerEnded(ClientError):
    """The server's process ended while it ran a round."""

    def __init__(self) -> None:
        super().__init__(
            "the server's process ended while it ran this round",
            "What it printed last is below; start it again, and the round can be sent again.",
        )


class Wanted(msgspec.Struct, frozen=True):
    """What is called, and as which client."""

    kind: Literal["tool", "prompt", "resource"]
    name: str
    arguments: dict[str, Any]
    era: Era
    can: frozenset[Capability]
    client: str = ""
    offered: str = ""
    """The name under which the server lists it: of a resource perhaps a template."""

    @property
    def pending(self) -> PendingCall:
        """The call before its first round."""
        if self.kind == "tool":
            return PendingCall.tool(self.name, self.arguments)
        if self.kind == "prompt":
            return PendingCall.prompt(self.name, self.arguments)
        return PendingCall.resource(self.name)


class OpenAsk:
    """A question that waits on the page."""

    def __init__(self, ask: AnyAsk) -> None:
        """Begin to wait."""
        self.ask = ask
        self.problem = ""
        self.sent: dict[str, list[str]] | None = None
        """What was typed and did not fit."""

        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def key(self) -> str:
        """The key of the question."""
        return self.ask.key


class Noted(msgspec.Struct, frozen=True):
    """Something that was seen while the call ran."""

    at: float
    kind: Literal["progress", "log", "task"]
    text: str


class AnswerGiven(msgspec.Struct, frozen=True):
    """A question and what was said to it."""

    key: str
    kind: str
    message: str
    said: str
    at: float


class DevCall:
    """One call, from its first request to its end."""

    def __init__(self, wanted: Wanted, changed: Callable[[], None], process: ServerProcess) -> None:
        """Prepare a call.

        Args:
            wanted: What is called.
            changed: Called whenever the page would show something else.
            process: The server's.
        """
        self._process = process
        self.starts: int = 0
        """How often the server had been started when the call ended; 0 before."""

        self.id: str = secrets.token_hex(4)
        self.wanted = wanted
        self.began: float = time.time()  # noqa: TID251 - for display
        self.ended: float = 0.0
        self.state: CallState = "running"
        self.open: dict[str, OpenAsk] = {}
        self.given: list[AnswerGiven] = []
        self.notes: list[Noted] = []
        self.wire: list[Exchange] = []
        self.task: Task | None = None
        self.result: Any = None
        self.error: str = ""
        self.revision: int = 0
        self.attempts: list[Any] = []
        """What was done to its rounds on purpose."""

        self.effects: dict[str, EffectRow] = {}
        """What was seen of its effects; a task that has ended leaves none in the store."""

        self._told = changed
        self._replaced: asyncio.Future[Step] | None = None
        self._step: Step | None = None
        self.running: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Note that the page would show something else now."""
        self.revision += 1
        self._told()

    # --- driving ---------------------------------------------------------------------------------

    def start(self, url: str) -> None:
        """Begin the call; while the server is away, as during a reload, its requests wait."""
        self.running = asyncio.create_task(self._run(url), name=f"antiphon dev call {self.id}")

    async def _run(self, url: str) -> None:
        try:
            async with (
                http_client(self.wire, self.changed) as http,
                self._client(url, http) as client,
            ):
                if client.era == "modern":
                    await self._by_steps(client)
                else:
                    self.result = await self._to_the_end(client)
            self.state = "done"
        except AbilityMissing as error:
            self.state = "failed"
            self.error = f"{error.what}. Another client may have it: choose one for a new call."
        except ClientError as error:
            self.state, self.error = "failed", str(error)
        except asyncio.CancelledError:
            self.state, self.error = "cancelled", "You have cancelled the call."
        except Exception as error:  # noqa: BLE001 - whatever it is, the page shows it
            self.state, self.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            self.open, self.ended = {}, time.time()  # noqa: TID251 - for display
            self.starts = self._process.starts
            self.changed()

    def _client(self, url: str, http: Any) -> Client:
        return Client(
            url,
            answers=_PageAnswers(self),
            era=self.wanted.era,
            tasks="tasks" in self.wanted.can,
            timeouts=TIMEOUTS,
            http_client=http,
            name=self.wanted.client or "antiphon-dev",
            log_level="debug",
            on_log=self._log,
        )

    async def _by_steps(self, client: Client) -> None:
        can = self.wanted.can - {"tasks"}
        step = await self._sent(
            partial(client.begin_call, self.wanted.pending, can=can, on_progress=self._progress)
        )
        while not step.done:
            self._step = step
            self._see_task(step.task)
            answers: Mapping[str, Any] | None = None
            if step.asks:
                answers = await self._answered(step)
                if isinstance(answers, Step):
                    step = answers
                    continue
            step = await self._resumed(client, step, answers)
        self.result = step.result

    async def _resumed(self, client: Client, step: Step, answers: Mapping[str, Any] | None) -> Step:
        send = partial(
            client.resume,
            step,
            answers,
            can=self.wanted.can - {"tasks"},
            on_progress=self._progress,
            on_task=self._see_task,
        )
        try:
            return await self._sent(send)
        except AnswerUnfit as unfit:
            self._note("log", f"not sent: {unfit}")
            return step
        except (ConnectionLost, RemoteError) as lost:
            # A token may be sent again, as any client may: its round runs once. Not if the round
            # has ended the process, which it would do again.
            if isinstance(lost, ConnectionLost):
                await asyncio.sleep(NOTICED_WITHIN)
            elif self._process.up.is_set():
                raise
            if self._process.state == "ended":
                raise ServerEnded from lost
            self._note("log", f"{lost.what}; the round is sent again when the server is back")
            return await self._sent(send)

    async def _to_the_end(self, client: Client) -> Any:
        wanted = self.wanted
        match wanted.kind:
            case "tool":
                return await client.call_tool(
                    wanted.name, wanted.arguments, on_progress=self._progress
                )
            case "prompt":
                return await client.get_prompt(wanted.name, wanted.arguments)
            case _:
                return await client.read_resource(wanted.name)

    async def _sent(self, send: Callable[[], Awaitable[Step]]) -> Step:
        self.state = "running"
        self.changed()
        await self._process.up.wait()
        return await send()

    # --- questions -------------------------------------------------------------------------------

    async def ask(self, ask: AnyAsk) -> Any:
        """Put one question on the page, and wait for what is said."""
        opened = self.open[ask.key] = OpenAsk(ask)
        self.state = "waiting"
        self.changed()
        try:
            return await opened.answer
        finally:
            self.open.pop(ask.key, None)
            if not self.open and self.state == "waiting":
                self.state = "running"
            self.changed()

    async def _answered(self, step: Step) -> Any:
        """Return the answers to all questions of a round, or the step that has replaced it."""
        self._replaced = asyncio.get_running_loop().create_future()
        asked = {key: asyncio.create_task(self.ask(ask)) for key, ask in step.asks.items()}
        waiting: set[asyncio.Future[Any]] = {*asked.values()}
        try:
            while waiting and not self._replaced.done():
                both = {*waiting, self._replaced}
                done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
            if self._replaced.done():
                return self._replaced.result()
            return {key: task.result() for key, task in asked.items()}
        finally:
            for task in asked.values():
                task.cancel()
            await asyncio.wait(asked.values())

    def say(self, key: str, answer: Any, said: str) -> None:
        """Answer a question of the page."""
        opened = self.open.get(key)
        if opened is None or opened.answer.done():
            return
        self.given.append(
            AnswerGiven(key, opened.ask.kind, message_of(opened.ask), said, time.time())  # noqa: TID251
        )
        opened.answer.set_result(answer)

    @property
    def step(self) -> Step | None:
        """The call between two rounds, in the modern era."""
        return self._step

    def replace_step(self, step: Step) -> None:
        """Go on from another state of the call, as after a round that lost its answers."""
        if self._replaced is not None and not self._replaced.done():
            self._replaced.set_result(step)

    def cancel(self) -> None:
        """Give the call up."""
        if self.running is not None:
            self.running.cancel()

    # --- what is seen meanwhile ------------------------------------------------------------------

    async def _log(self, level: str, data: Any, logger: str | None) -> None:
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        self._note("log", f"{level} {logger or ''} {text}")

    def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        of = f" of {total:g}" if total is not None else ""
        self._note("progress", f"{progress:g}{of} {message or ''}")

    def _see_task(self, task: Task | None) -> None:
        if task is not None and task != self.task:
            if self.task is None or (task.status, task.message) != (
                self.task.status, self.task.message,
            ):  # fmt: skip
                self._note("task", f"{task.status} {task.message}")
            self.task = task

    def _note(self, kind: Literal["progress", "log", "task"], text: str) -> None:
        if len(self.notes) < KEPT_NOTES:
            self.notes.append(Noted(time.time(), kind, safe_line(text.strip(), 500)))  # noqa: TID251
        self.changed()

    @property
    def task_status(self) -> str:
        """Of a call that has become a task, its status; the last one is never asked for."""
        if self.task is None:
            return ""
        return "completed" if self.state == "done" else self.task.status

    @property
    def shown_state(self) -> str:
        """The state in a word; a call that ended with an error result has not gone well."""
        result: dict[str, Any] = self.shown_result or {}
        return "error" if self.state == "done" and result.get("isError") else self.state

    @property
    def shown_result(self) -> Any:
        """The result as JSON values; None without one."""
        if not isinstance(self.result, BaseModel):
            return None
        return self.result.model_dump(by_alias=True, mode="json", exclude_none=True)


class _PageAnswers:
    """Answers what a legacy session asks, by the page."""

    def __init__(self, call: DevCall) -> None:
        self._call = call
        self.abilities = call.wanted.can - {"tasks"}

    async def elicit(self, ask: FormAsk) -> Any:
        return await self._call.ask(ask)

    async def elicit_url(self, ask: UrlAsk) -> Any:
        return await self._call.ask(ask)

    async def sample(self, ask: SampleAsk) -> Any:
        return await self._call.ask(ask)

    async def roots(self, ask: RootsAsk) -> Any:
        return await self._call.ask(ask)


def message_of(ask: AnyAsk) -> str:
    """Return what a question says, for a list."""
    match ask:
        case FormAsk() | UrlAsk():
            return ask.message
        case SampleAsk():
            return "A completion"
        case _:
            return "The workspace roots"
