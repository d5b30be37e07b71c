"""The blocking driver of the flow, and `BlockingClient` for programs without a loop.

The decisions are the flow's, the same as in the async client; only who waits differs. Transports
are async, so one thread in the background runs them. Knows no wire and no person.
"""

import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal

from antiphon.client.calls import prompt_call, resource_call, tool_call
from antiphon.client.client import Client
from antiphon.client.errors import ClientError, NotOpen
from antiphon.client.flow_types import Call, Effect, Ending, Flow, Happened, Outcome
from antiphon.client.link import Progress
from antiphon.client.loop import call_of, give_up, perform
from antiphon.client.running import OnTask, Run
from antiphon.client.saved import SavedCall
from antiphon.client.values import Step


def drive_blocking(
    flow: Flow, perform: Callable[[Effect], Outcome], give_up: Callable[[Call], None]
) -> Ending:
    """Run a flow to its end. Who interrupts it cancels his task."""
    effect = next(flow)
    call: Call | None = None
    try:
        while True:
            call = call_of(effect) or call
            outcome = perform(effect)
            try:
                effect = flow.send(Happened(time.monotonic(), outcome))
            except StopIteration as end:
                return end.value
    except KeyboardInterrupt:
        if call is not None:
            give_up(call)
        raise


def _leave_interrupts() -> None:
    """Leave interrupts to the thread that waits for the person.

    Delivered to this thread, one would be noted and nothing more: the other would go on reading.
    """
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
        """The async client behind; its properties may be read, its coroutines not awaited."""

    def __enter__(self) -> Self:
        """Start the thread and connect."""
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
        return self._run(tool_call(name, arguments), on_progress=on_progress, on_task=on_task)

    def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> types.GetPromptResult:
        """Get a prompt and answer what it asks."""
        return self._run(prompt_call(name, arguments))

    def read_resource(self, uri: str) -> types.ReadResourceResult:
        """Read a resource and answer what it asks."""
        return self._run(resource_call(uri))

    def _run(self, call: Call, **options: Any) -> Any:
        run: Run = self._wait(self.client.prepare, SavedCall(call=call), **options)
        try:
            ending = drive_blocking(
                run.flow,
                lambda effect: self._wait(perform, effect, run),
                lambda given_up: self._wait(give_up, given_up, run),
            )
        finally:
            self._wait(run.close)
        return run.conclude(ending).result

    # --- the rest is the async client, waited for ----------------------------------------------

    def begin(self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Step:
        """Call a tool and stop at its first question."""
        return self._wait(self.client.begin, name, arguments, **options)

    def resume(
        self, saved: str | Step, answers: Mapping[str, Any] | None = None, **options: Any
    ) -> Step:
        """Go on with a saved call: answer every open question, stop at the next."""
        return self._wait(self.client.resume, saved, answers, **options)

    def restart(self, refused: str | Step | ClientError) -> Step:
        """Begin the same call anew."""
        return self._wait(self.client.restart, refused)

    def task(self, id: str, *, wait: float | None = 0.0, on_task: OnTask | None = None) -> Step:
        """Look at a task by its id."""
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
