"""What the developer's console holds: the server's process, what it offers, and the calls made.

Owns the list of calls, the records that belong to each, and when an open page has something new.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from antiphon.apps.dev.arguments import prompt_schema
from antiphon.apps.dev.call import DevCall, Wanted
from antiphon.apps.dev.process import ServerProcess
from antiphon.apps.dev.records import RoundRecord, ServerReady
from antiphon.apps.dev.timeline import CallRecords, CodeVersions, Round, RunKey, Timeline
from antiphon.client import Client
from antiphon.client.errors import ClientError
from antiphon.engine.environment import Environment
from antiphon.errors import AntiphonError
from antiphon.ports import Inbox, ItemFilter, TaskRow, Tasks
from antiphon.protocol.inbox import Item
from antiphon.protocol.journal import Journal

KEPT_CALLS = 50
SHOWN_ITEMS = 50
KEPT_RUNS = 500
"""Runs of handlers that belong to no call of this page, as those of other clients."""


class Offered(msgspec.Struct, frozen=True):
    """A tool, prompt, resource or template."""

    kind: str
    name: str
    title: str
    description: str
    schema: dict[str, Any]
    template: bool = False


class Workbench:
    """The state of one developer's console."""

    def __init__(
        self,
        environment: Environment,
        inbox: Inbox,
        tasks: Tasks,
        read_journal: Callable[[TaskRow], Awaitable[Journal]],
        process: ServerProcess,
        target: str,
    ) -> None:
        self._read_journal = read_journal
        self.environment = environment
        self.inbox = inbox
        self.tasks = tasks
        self.process = process
        self.target = target
        self.timeline: Timeline = Timeline(environment)
        self.calls: OrderedDict[str, DevCall] = OrderedDict()
        self.offered: list[Offered] = []
        self.trouble: str = ""
        self._listed = 0
        self._audience = environment.sealer.audience
        self._versions = CodeVersions(process.sources)
        self._records: dict[str, CallRecords] = {}
        self._unclaimed: dict[RunKey, RoundRecord] = {}
        self._revision = 0
        self._waiting: set[asyncio.Future[None]] = set()

    # --- changes ---------------------------------------------------------------------------------

    def changed(self) -> None:
        """Wake the open pages."""
        self._revision += 1
        waiting, self._waiting = self._waiting, set()
        for one in waiting:
            if not one.done():
                one.set_result(None)

    @property
    def revision(self) -> int:
        """A number that grows with everything that pages show."""
        return self._revision

    async def change(self, within: float) -> None:
        """Wait for the next change, or until the time is over."""
        one = asyncio.get_running_loop().create_future()
        self._waiting.add(one)
        await asyncio.wait({one}, timeout=within)
        self._waiting.discard(one)

    # --- what the server offers ------------------------------------------------------------------

    async def list_offered(self) -> list[Offered]:
        """Return what the server offers, asked once after each of its starts."""
        process = self.process
        if process.ready is not None and process.ready.audience != self._audience:
            self.trouble = (
                f"The server is called {process.ready.audience!r} now. End antiphon dev and start "
                f"it again: its tokens and its store are those of {self._audience!r}."
            )
            return self.offered
        if process.ready is not None and self._listed != process.starts:
            starts = process.starts
            try:
                self.offered = await self._ask(process.ready.url)
            except (ClientError, OSError) as error:
                self.trouble = str(error)
                if process.by_headers:
                    self.trouble += (
                        f" Calls are made {process.caller}. Start antiphon dev without --header to "
                        "call as a person of your choice (--as PERSON)."
                    )
                return self.offered
            self.trouble = self._why_nothing(process.ready)
            self._listed = starts
        return self.offered

    def _why_nothing(self, ready: ServerReady) -> str:
        """Say why a server offers nothing; empty if it does, or has nothing yet."""
        if self.offered or not ready.registered:
            return ""
        return (
            f"The server has {ready.registered} tools, prompts or resources, and none that is "
            f"visible to a caller {self.process.caller}. Start antiphon dev with --as PERSON or "
            "--header to call as somebody who may see them (visible=)."
        )

    async def _ask(self, url: str) -> list[Offered]:
        async with Client(url, name="antiphon-dev") as client:
            served = client.session.server_capabilities
            found: list[Offered] = []
            if served is not None and served.tools is not None:
                found += [
                    Offered("tool", t.name, t.title or "", t.description or "", t.input_schema)
                    for t in await client.list_tools()
                ]
            if served is not None and served.prompts is not None:
                found += [
                    Offered(
                        "prompt", p.name, p.title or "", p.description or "",
                        prompt_schema(p.arguments or ()),
                    )
                    for p in await client.list_prompts()
                ]  # fmt: skip
            if served is not None and served.resources is not None:
                found += [
                    Offered("resource", str(r.uri), r.title or r.name, r.description or "", {})
                    for r in await client.list_resources()
                ]
                found += [
                    Offered(
                        "resource", t.uri_template, t.title or t.name, t.description or "",
                        _uri_schema(), template=True,
                    )
                    for t in await client.list_resource_templates()
                ]  # fmt: skip
            return found

    def find(self, kind: str, name: str) -> Offered | None:
        """Return something that the server offers."""
        return next((one for one in self.offered if (one.kind, one.name) == (kind, name)), None)

    async def open_items(self) -> Sequence[Item]:
        """Return what waits for people who are not the client."""
        wanted = ItemFilter(self.environment.sealer.audience, open=True)
        return await self.inbox.items(wanted, limit=SHOWN_ITEMS)

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, wanted: Wanted) -> DevCall:
        """Begin a call; the oldest ones are forgotten."""
        call = DevCall(wanted, self.changed, self.process)
        self.calls[call.id] = call
        self._records[call.id] = CallRecords(self._versions)
        while len(self.calls) > KEPT_CALLS:
            old, forgotten = self.calls.popitem(last=False)
            forgotten.cancel()
            del self._records[old]
        assert self.process.ready is not None
        call.start(self.process.ready.url)
        return call

    async def settled(self, call: DevCall, within: float = 2.0) -> None:
        """Wait until a call waits or has ended, for a moment, so that the page shows it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while call.state == "running" and loop.time() < end:
            await self.change(end - loop.time())

    async def task_journal(self, call: DevCall) -> Journal | None:
        """Return the journal of a call that has become a task, from the store."""
        if call.task is None:
            return None
        try:
            row = await self.tasks.task(call.task.id)
            return None if row is None else await self._read_journal(row)
        except AntiphonError:
            return None

    async def rounds(self, call: DevCall) -> tuple[list[Round], CallRecords]:
        """Return the rounds of a call, and the runs of its handler."""
        rounds = await self.timeline.rounds(call.wire)
        self._collect()
        records = self._records[call.id]
        ids = {one.claims.call for one in rounds if one.claims is not None}
        others = {one.call for one in self._records.values() if one is not records}
        begun = [one for one in self.process.begun if one.call not in others]
        records.take(call, ids, begun, self._unclaimed)
        return rounds, records

    def _collect(self) -> None:
        process = self.process
        process.read_records()
        while process.rounds:
            start, record = process.rounds.popleft()
            self._unclaimed[start, record.call, record.began] = record
        while len(self._unclaimed) > KEPT_RUNS:
            del self._unclaimed[next(iter(self._unclaimed))]


def _uri_schema() -> dict[str, Any]:
    uri = {"type": "string", "title": "URI", "description": "With the braces filled in."}
    return {"type": "object", "properties": {"uri": uri}, "required": ["uri"]}
