"""What the developer's console holds: the server's process, what it offers, and the calls made.

Owns the list of calls, the records that belong to each, and when an open page has something new.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import msgspec

from antiphon.client import Client
from antiphon.client.errors import ClientError
from antiphon.dev.arguments import prompt_schema
from antiphon.dev.call import DevCall, Wanted
from antiphon.dev.process import ServerProcess
from antiphon.dev.records import RoundRecord
from antiphon.dev.timeline import CallRecords, CodeVersions, Round, Timeline
from antiphon.environment import Environment

KEPT_CALLS = 50


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

    def __init__(self, environment: Environment, process: ServerProcess, target: str) -> None:
        self.environment = environment
        self.process = process
        self.target = target
        self.timeline = Timeline(environment)
        self.calls: OrderedDict[str, DevCall] = OrderedDict()
        self.offered: list[Offered] = []
        self.trouble = ""
        self._listed = 0
        self._versions = CodeVersions(process.sources)
        self._records: dict[str, CallRecords] = {}
        self._unclaimed: list[tuple[int, RoundRecord]] = []
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
        if process.ready is not None and self._listed != process.starts:
            starts = process.starts
            try:
                self.offered = await self._ask(process.ready.url)
                self.trouble = ""
            except (ClientError, OSError) as error:
                self.trouble = str(error)
                return self.offered
            self._listed = starts
        return self.offered

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

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, wanted: Wanted) -> DevCall:
        """Begin a call; the oldest ones are forgotten."""
        call = DevCall(wanted, self.changed)
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

    async def rounds(self, call: DevCall) -> tuple[list[Round], CallRecords]:
        """Return the rounds of a call, and the runs of its handler."""
        rounds = await self.timeline.rounds(call.wire)
        self._collect()
        records = self._records[call.id]
        ids = {one.claims.call for one in rounds if one.claims is not None}
        before = len(records.runs)
        records.take(call, ids, self.process.begun, self._unclaimed)
        if len(records.runs) > before:
            taken = {id(record) for _, record in records.runs}
            self._unclaimed = [one for one in self._unclaimed if id(one[1]) not in taken]
        return rounds, records

    def _collect(self) -> None:
        process = self.process
        process.read_records()
        while process.rounds:
            self._unclaimed.append(process.rounds.popleft())
        del self._unclaimed[:-500]


def _uri_schema() -> dict[str, Any]:
    uri = {"type": "string", "title": "URI", "description": "With the braces filled in."}
    return {"type": "object", "properties": {"uri": uri}, "required": ["uri"]}
