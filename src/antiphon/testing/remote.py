"""What can be tried on a server of any make, through its front door alone.

A tool is called with scripted answers, and the rounds of the call are disturbed as `what_if` does;
a call that becomes a task is followed to its end.
Nothing of the inside is seen, so that only replies count: a token that is taken when it should be
refused, two replies to one request that differ, a no after which the tool says the same as after a
yes. Each call is a real one: what the tool does, it does as often as it is called.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from antiphon.client.answers import Answerer, answer_all
from antiphon.client.asks import view
from antiphon.client.client import Client
from antiphon.client.errors import RemoteError
from antiphon.client.read_asks import read_asks
from antiphon.core.text import safe
from antiphon.errors import ConfigError, InvalidRequest
from antiphon.testing.harness import RoundTrip
from antiphon.testing.plans import (
    ByStranger,
    SentAgain,
    SentTwice,
    TooEarly,
    approved_after,
    refusals,
)
from antiphon.testing.problems import Problem
from antiphon.testing.story_world import DisturbedWorld, Options, Plan, StoryStopped
from antiphon.testing.tasks import ended
from antiphon.testing.what_if import WhatIfReport, seen

_ENOUGH = 50
"""Rounds, or questions of a task, after which a call is taken for one that never ends."""

_LOOK = (0.02, 1.0)
"""Seconds between two looks at a task: no fewer and no more, whatever the server advises."""


class RemoteWorld(DisturbedWorld):
    """A server behind a client, and perhaps a second client with the credentials of another."""

    def __init__(self, client: Client, other: Client | None, plan: Plan, patience: float) -> None:
        """Take open clients, and the seconds in which a task must ask or end."""
        super().__init__(plan)
        self._client = client
        self._other = other
        self._patience = patience

    def time(self) -> float:
        """Return the time."""
        return time.time()

    async def plain(
        self, method: str, params: Mapping[str, Any], how: Options | None = None
    ) -> RoundTrip:
        """Send a request as it is."""
        return await _sent(self._client, method, params, (how or {}).get("before"))

    async def by_somebody_else(
        self, method: str, params: Mapping[str, Any], how: Options
    ) -> RoundTrip | None:
        """Send a request with the credentials of the other."""
        if self._other is None:
            return None
        return await _sent(self._other, method, params, how.get("before"))

    def same(self, one: RoundTrip, other: RoundTrip) -> bool:
        """A second request is answered like the first, or refused."""
        if one.error is not None or other.error is not None:
            return one.error is None or other.error is None
        # Two replies may bring different tokens for the same questions.
        return (one.asks, seen(one), one.is_error) == (other.asks, seen(other), other.is_error)

    async def call(self, tool: str, arguments: Mapping[str, Any], script: Answerer) -> RoundTrip:
        """Call a tool through all its rounds."""
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments)}
        step = await self.told("tools/call", params, {})
        while step.waiting:
            if step.rounds > _ENOUGH:
                raise StoryStopped
            answers = await _answered(step, script)
            token = (step.result or {}).get("requestState")
            going_on = {} if token is None else {"requestState": token}
            more = {**params, **going_on, "inputResponses": answers}
            step = await self.told("tools/call", more, {"before": step})
        return await self._followed(step, script) if step.task else step

    async def _followed(self, step: RoundTrip, script: Answerer) -> RoundTrip:
        """Follow a task to its end, and answer what it asks."""
        task, answered = step.task, set[str]()
        for _ in range(_ENOUGH):
            step = await self._news(step, task, answered)
            if step.error is not None or _status(step) != "input_required":
                return ended(step)
            answers = await _answered(step, script, answered)
            answered.update(answers)
            update = {"taskId": task, "inputResponses": answers}
            taken = await self.told("tasks/update", update, {"before": step})
            if taken.error is not None:
                return taken
        raise StoryStopped

    async def _news(self, step: RoundTrip, task: str, answered: set[str]) -> RoundTrip:
        """Look at a task until it has ended, or asks what it has not asked before."""
        until = self.time() + self._patience
        while True:
            step = await self.plain("tasks/get", {"taskId": task}, {"before": step.before or step})
            status = _status(step)
            new = status == "input_required" and not step.asks.keys() <= answered
            if step.error is not None or new or status not in ("working", "input_required"):
                return step
            row = step.result or {}
            if self.time() > until:
                says = safe(str(row.get("statusMessage") or status), 200)
                raise ConfigError(
                    f"the task neither asked nor ended within {self._patience:g} s; it says: {says}"
                )
            await asyncio.sleep(sorted((*_LOOK, row.get("pollIntervalMs", 0) / 1000))[1])


async def try_server(
    client: Client,
    other: Client | None,
    tool: str,
    arguments: Mapping[str, Any],
    script: Answerer,
    *,
    patience: float = 30.0,
    progress: Callable[[str], None] = lambda name: None,
) -> WhatIfReport:
    """Call a tool of a server, and call it again with its rounds disturbed.

    Args:
        client: The open client of a caller.
        other: One of another caller, whom the server should tell from the first.
        tool: The tool.
        arguments: Its arguments.
        script: Answers every question of the tool.
        patience: Seconds in which a task must ask something or end.
        progress: Told the name of each run before it begins.

    Raises:
        ConfigError: The tool cannot be tried: it asks nothing, or its task waits for something.
    """
    if client.era == "legacy":
        raise ConfigError("the server speaks an older revision, in which a call has no rounds")

    async def story(plan: Plan) -> tuple[RemoteWorld, RoundTrip | None]:
        world = RemoteWorld(client, other, plan, patience)
        end = None
        try:
            end = await world.call(tool, arguments, script)
            await plan.at_end(world)
        except StoryStopped:
            pass
        return world, end

    runs = _Tried(story, progress)
    await runs.all()
    left_out = [] if other is not None else ["tokens brought by somebody else: --as names nobody"]
    return WhatIfReport(tuple(runs.names), tuple(dict.fromkeys(runs.problems)), tuple(left_out))


class _Tried:
    """Runs the story under every plan that needs no view of the inside."""

    def __init__(
        self,
        story: Callable[[Plan], Awaitable[tuple[RemoteWorld, RoundTrip | None]]],
        progress: Callable[[str], None],
    ) -> None:
        self._story = story
        self._progress = progress
        self.names: list[str] = []
        self.problems: list[Problem] = []

    async def all(self) -> None:
        world, end = await self._run("as it stands", Plan())
        if end is None or end.is_error:
            text = end.text if end is not None else f"it did not end within {_ENOUGH} rounds"
            self.problems.append(Problem("story-fails", "as it stands", text))
            return
        if not any(sent.later for sent in world.sent):
            raise ConfigError("the tool asked nothing: there are no rounds to disturb")
        for number, sent in enumerate(world.sent):
            if sent.later:
                for plan in (ByStranger(number), SentTwice(number)):
                    await self._run(plan.run, plan)
            for key in sent.answers:
                await self._refused(world, end, number, key)
        for plan in (SentAgain(), TooEarly(world.sent)):
            await self._run(plan.what, plan)

    async def _refused(self, base: RemoteWorld, end: RoundTrip, number: int, key: str) -> None:
        """Let an answer be a no: the tool must not end as after its yes."""
        for plan in refusals(number, key, base.sent[number].answers[key]):
            name = f"{key!r} {plan.what}"
            world, after = await self._run(name, plan)
            if after is None or after.is_error or approved_after(world, number, key):
                continue
            if seen(after) == seen(end):
                detail = f"ends as after a yes: {end.text!r}"
                self.problems.append(Problem("refusal-acts", name, detail))

    async def _run(self, name: str, plan: Plan) -> tuple[RemoteWorld, RoundTrip | None]:
        self.names.append(name)
        self._progress(name)
        world, end = await self._story(plan)
        self.problems += world.problems
        return world, end


async def _sent(
    client: Client, method: str, params: Mapping[str, Any], before: RoundTrip | None
) -> RoundTrip:
    step = RoundTrip(request={"method": method, "params": dict(params)}, before=before)
    try:
        return replace(step, result=await client.request(method, params))
    except RemoteError as error:
        return replace(step, error=InvalidRequest(error.message, code=error.code, data=error.data))


async def _answered(
    step: RoundTrip, script: Answerer, before: Collection[str] = ()
) -> dict[str, Any]:
    asks = read_asks((step.result or {}).get("inputRequests") or {})
    if isinstance(asks, str):
        raise ConfigError(f"the server asks what cannot be read: {asks}")
    return await answer_all([view(ask) for ask in asks if ask.key not in before], script)


def _status(step: RoundTrip) -> str:
    return str((step.result or {}).get("status", ""))
