"""The blocking driver of the flow, and `BlockingClient` for programs without an event loop.

The flow is the same as in the async client. Transports are async, so a background thread runs them.
"""

import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal

from antiphon.client.asks import Step
from antiphon.client.client import Client
from antiphon.client.connection import Progress
from antiphon.client.drivers import call_of, cancel_remote, perform
from antiphon.client.errors import ClientError, NotOpen
from antiphon.client.flow_types import Action, ActionOutcome, End, Event, Flow, PendingCall
from antiphon.client.prepared_call import OnTask, PreparedCall
from antiphon.client.saved import SavedCall


def drive_blocking(
    flow: Flow,
    perform: Callable[[Action], ActionOutcome],
    cancel: Callable[[PendingCall], None],
) -> End:
    """Run a flow to its end. Interrupting the caller cancels the remote task."""
    action = next(flow)
    call: PendingCall | None = None
    try:
        while True:
            call = call_of(action) or call
            outcome = perform(action)
            try:
                action = flow.send(Event(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    except KeyboardInterrupt:
        if call is not None:
            cancel(call)
        raise


def _leave_interrupts() -> None:
    """Block interrupts in this thread, so that the thread that waits for the person gets them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


class BlockingClient:
    """`Client` for plain functions: the same arguments, the same methods, without `await`.

    ```python
    with BlockingClient("http://127.0.0.1:8400/mcp", answers=Terminal()) as client:
        result = client.call_tool("provision", {"name": "orders"})
    ```
    """

    def __init__(self, target: object, **options: Any) -> None:
        """Take what `Client` takes."""
        self._target = target
        self._options = options
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self.client: Client
        """The async client; read its properties, but do not await its coroutines."""

    def __enter__(self) -> Self:
        """Start the background thread and connect."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            self._portal.call(_leave_interrupts)
            self.client = self._portal.call(self._make)
            stack.enter_context(self._portal.wrap_async_context_manager(self.client))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connection and end the thread."""
        self._stack.close()
        self._portal = None

    async def _make(self) -> Client:
        return Client(self._target, **self._options)

    # --- calls, run to the end -----------------------------------------------------------------

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: Progress | None = None,
        on_task: OnTask | None = None,
    ) -> types.CallToolResult:
        """Call a tool and answer what it asks, to the end."""
        return self._run(
            PendingCall.tool(name, arguments), on_progress=on_progress, on_task=on_task
        )

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> types.GetPromptResult:
        """Get a prompt and answer what it asks."""
        return self._run(PendingCall.prompt(name, arguments))

    def read_resource(self, uri: str) -> types.ReadResourceResult:
        """Read a resource and answer what it asks."""
        return self._run(PendingCall.resource(uri))

    def _run(self, call: PendingCall, **options: Any) -> Any:
        prepared: PreparedCall = self._wait(self.client.prepare, SavedCall(call=call), **options)
        try:
            end = drive_blocking(
                prepared.flow,
                lambda action: self._wait(perform, action, prepared),
                lambda call: self._wait(cancel_remote, call, prepared),
            )
        finally:
            self._wait(prepared.close)
        return prepared.conclude(end).result

    # --- the rest is the async client, waited for ----------------------------------------------

    def begin(self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Step:
        """Call a tool and stop at its first question."""
        return self._wait(self.client.begin, name, arguments, **options)

    def begin_call(self, call: PendingCall, **options: Any) -> Step:
        """Begin any call, such as a prompt or a resource, and stop at its first question."""
        return self._wait(self.client.begin_call, call, **options)

    def resume(
        self, saved: str | Step, answers: Mapping[str, Any] | None = None, **options: Any
    ) -> Step:
        """Resume a saved call: answer every open question, stop at the next."""
        return self._wait(self.client.resume, saved, answers, **options)

    def restart(self, refused: str | Step | ClientError) -> Step:
        """Begin the same call again, without its token and answers."""
        return self._wait(self.client.restart, refused)

    def task(self, id: str, *, wait: float | None = 0.0, on_task: OnTask | None = None) -> Step:
        """Return the state of a task by its id."""
        return self._wait(self.client.task, id, wait=wait, on_task=on_task)

    def cancel(self, saved: str | Step) -> None:
        """Cancel the task of a call."""
        self._wait(self.client.cancel, saved)

    def cancel_task(self, id: str) -> None:
        """Cancel a task by its id."""
        self._wait(self.client.cancel_task, id)

    def list_tools(self) -> list[types.Tool]:
        """List the tools, all pages."""
        return self._wait(self.client.list_tools)

    def list_prompts(self) -> list[types.Prompt]:
        """List the prompts, all pages."""
        return self._wait(self.client.list_prompts)

    def list_resources(self) -> list[types.Resource]:
        """List the resources, all pages."""
        return self._wait(self.client.list_resources)

    def list_resource_templates(self) -> list[types.ResourceTemplate]:
        """List the resource templates, all pages."""
        return self._wait(self.client.list_resource_templates)

    def _wait(self, function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        if self._portal is None:
            raise NotOpen
        future = self._portal.start_task_soon(partial(function, *args, **options))
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise
