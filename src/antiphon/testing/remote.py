"""What can be tried on a server of any make, through its front door alone.

A tool is called with scripted answers, and the rounds of the call are disturbed as `what_if` does;
a call that becomes a task is followed to its end.
Nothing of the inside is seen, so that only replies count: a token that is taken when it should be
refused, two replies to one request that differ, a no after which the tool says the same as after a
yes. Each call is a real one: what the tool does, it does as often as it is called.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from antiphon.client.answers import Answerer, answer_all
from antiphon.client.asks import view
from antiphon.client.client import Client
from antiphon.client.errors import RemoteError, Unanswered
from antiphon.client.read_asks import PendingAsk, read_asks
from antiphon.errors import AnswerInvalid, ConfigError, InvalidRequest
from antiphon.testing.harness import RoundTrip
from antiphon.testing.plans import (
    ByStranger,
    SentAgain,
    SentTwice,
    TooEarly,
    answer_to,
    approved_after,
    refusals,
)
from antiphon.testing.problems import Problem
from antiphon.testing.remote_tasks import follow
from antiphon.testing.story_world import (
    DisturbedWorld,
    Options,
    Plan,
    SentRequest,
    StoryStopped,
)
from antiphon.testing.tasks import asked_key
from antiphon.testing.what_if import WhatIfReport, seen

_ENOUGH = 50
"""Rounds after which a call is taken for one that never ends."""


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
        return (one.asks, one.task, seen(one), one.is_error) == (
            other.asks,
            other.task,
            seen(other),
            other.is_error,
        )

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
        if not step.task:
            return step

        def answering(asks: Sequence[PendingAsk]) -> Awaitable[dict[str, Any]]:
            return _answers_of_task(asks, script)

        return await follow(self, step, answering, self._patience)


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

    runs = _Tried(client, other, tool, arguments, script, patience, progress)
    await runs.all()
    left_out = [] if other is not None else ["what somebody else brings: --as names nobody"]
    found = tuple(dict.fromkeys(runs.problems))
    return WhatIfReport(tuple(runs.names), found, (*left_out, *runs.left_out))


class _Tried:
    """Runs the story under every plan that needs no view of the inside."""

    def __init__(
        self,
        client: Client,
        other: Client | None,
        tool: str,
        arguments: Mapping[str, Any],
        script: Answerer,
        patience: float,
        progress: Callable[[str], None],
    ) -> None:
        self._client = client
        self._other = other
        self._tool = tool
        self._arguments = arguments
        self._script = script
        self._patience = patience
        self._progress = progress
        self.names: list[str] = []
        self.problems: list[Problem] = []
        self.left_out: list[str] = []

    async def all(self) -> None:
        try:
            world, end = await self._run("as it stands", Plan())
        except Unanswered as error:
            raise ConfigError(f"{error.what}. Answer every question with --answer.") from None
        except AnswerInvalid as error:
            raise ConfigError(f"an answer does not fit: {error}") from None
        if end is None or end.error is not None or end.is_error:
            text = end.text if end is not None else f"it did not end within {_ENOUGH} rounds"
            self.problems.append(Problem("story-fails", "as it stands", text))
            return
        if not any(sent.later for sent in world.sent):
            raise ConfigError("the tool asked nothing: there are no rounds to disturb")
        for number, sent in enumerate(world.sent):
            if sent.later:
                await self._disturbed(number, sent)
            for key in sent.answers:
                await self._refused(world, end, number, asked_key(key, sent.method))
        again = [SentAgain()] if any(sent.token for sent in world.sent) else []
        for plan in (*again, TooEarly(world.sent)):
            await self._tried(plan.what, plan)

    async def _disturbed(self, number: int, sent: SentRequest) -> None:
        """Disturb one request in the ways that can be: a task has no token that could change."""
        if sent.token is not None or self._other is not None:
            plan = ByStranger(number)
            await self._tried(plan.run, plan)
        twice = SentTwice(number)
        await self._tried(twice.run, twice)

    async def _refused(self, base: RemoteWorld, end: RoundTrip, number: int, key: str) -> None:
        """Let an answer be a no: the tool must not end as after its yes."""
        given = answer_to(key, base.sent[number])
        for plan in refusals(number, key, given):
            name = f"{key!r} {plan.what}"
            world, after = await self._tried(name, plan)
            if after is None or after.error is not None or after.is_error:
                continue
            if approved_after(world, number, key):
                continue
            if seen(after) == seen(end):
                detail = f"ends as after a yes: {end.text!r}"
                self.problems.append(Problem("refusal-acts", name, detail))

    async def _tried(self, name: str, plan: Plan) -> tuple[RemoteWorld, RoundTrip | None]:
        """Run the story; what could not be tried to its end is told, and the others go on."""
        try:
            return await self._run(name, plan)
        except (ConfigError, Unanswered, AnswerInvalid) as error:
            why = error.what if isinstance(error, Unanswered) else str(error)
            self.left_out.append(f"{name}: {why}")
            return self._world(plan), None

    async def _run(self, name: str, plan: Plan) -> tuple[RemoteWorld, RoundTrip | None]:
        self.names.append(name)
        self._progress(name)
        world, end = self._world(plan), None
        try:
            end = await world.call(self._tool, self._arguments, self._script)
            await plan.at_end(world)
        except StoryStopped:
            pass
        finally:
            self.problems += world.problems
        return world, end

    def _world(self, plan: Plan) -> RemoteWorld:
        return RemoteWorld(self._client, self._other, plan, self._patience)


async def _sent(
    client: Client, method: str, params: Mapping[str, Any], before: RoundTrip | None
) -> RoundTrip:
    step = RoundTrip(request={"method": method, "params": dict(params)}, before=before)
    try:
        return replace(step, result=await client.request(method, params))
    except RemoteError as error:
        return replace(step, error=InvalidRequest(error.message, code=error.code, data=error.data))


async def _answered(step: RoundTrip, script: Answerer) -> dict[str, Any]:
    asks = read_asks((step.result or {}).get("inputRequests") or {})
    if isinstance(asks, str):
        raise ConfigError(f"the server asks what cannot be read: {asks}")
    return await answer_all([view(ask) for ask in asks], script)


async def _answers_of_task(asks: Sequence[PendingAsk], script: Answerer) -> dict[str, Any]:
    """Answer what a task asks; what it asks again has a key of its own, and the same answer."""
    keys = {asked_key(ask.key, "tasks/update"): ask.key for ask in asks}
    plain = [view(replace(ask, key=asked_key(ask.key, "tasks/update"))) for ask in asks]
    return {keys[key]: answer for key, answer in (await answer_all(plain, script)).items()}
