"""The world of a story whose requests are disturbed on purpose."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from antiphon.protocol.inbox import Decided
from antiphon.protocol.methods import MAY_ASK
from antiphon.protocol.request import Principal
from antiphon.testing.doubles import Tally
from antiphon.testing.harness import Factory, Rounds, RoundTrip
from antiphon.testing.problems import Problem, ProblemId

_OWN = MAY_ASK | {"tasks/update"}
"""Requests of which a story consists; others only look."""

_SOMEBODY_ELSE = Principal(issuer="https://what-if.invalid", subject="somebody else")


class StoryStopped(Exception):
    """The run ends here on purpose."""


@dataclass(frozen=True)
class SentRequest:
    """One request of a story, and what came back."""

    method: str
    params: Mapping[str, Any]
    step: RoundTrip
    marks: Counter[str]
    """What had happened before it was sent."""

    at: float
    """When it was sent, by the clock of the world."""

    @property
    def token(self) -> str | None:
        """The token that it brought."""
        return self.params.get("requestState")

    @property
    def later(self) -> bool:
        """Whether it goes on with a call."""
        return self.token is not None or self.method == "tasks/update"

    @property
    def answers(self) -> Mapping[str, Any]:
        """The answers that it brought, by key."""
        return self.params.get("inputResponses") or {}


Options: TypeAlias = dict[str, Any]
"""What `Rounds.send` takes beside method and params."""

Choice: TypeAlias = Literal["approve", "decline"]


class Plan:
    """What happens to the requests of one run. Nothing, unless a subclass does it."""

    what = "as it stands"
    problem: ProblemId = "duplicate-differs"
    """What is wrong when the story does not end as it does without this."""

    async def send(
        self,
        world: "DisturbedWorld",
        number: int,
        method: str,
        params: dict[str, Any],
        how: Options,
    ) -> RoundTrip:
        """Send one request of the story."""
        return await world.plain(method, params, how)

    def choice(self, number: int, choice: Choice) -> Choice:
        """Return which button is pressed in the inbox, at a decision of the story."""
        return choice

    async def at_end(self, world: "DisturbedWorld") -> None:
        """The story has been told."""


class DisturbedWorld:
    """Sends the requests of a story by a plan, and remembers them."""

    def __init__(self, plan: Plan) -> None:
        """Follow a plan."""
        self.plan: Plan = plan
        self.sent: list[SentRequest] = []
        self.problems: list[Problem] = []

    @property
    def marks(self) -> Counter[str]:
        """What has happened so far, as far as it can be seen."""
        return Counter()

    def time(self) -> float:
        """Return the time of the world."""
        raise NotImplementedError

    def let_pass(self, span: timedelta) -> None:
        """Let time pass."""
        raise NotImplementedError

    async def plain(
        self, method: str, params: Mapping[str, Any], how: Options | None = None
    ) -> RoundTrip:
        """Send a request as it is, outside of the story."""
        raise NotImplementedError

    async def by_somebody_else(
        self, method: str, params: Mapping[str, Any], how: Options
    ) -> RoundTrip | None:
        """Send a request as another caller; None where there is none."""
        raise NotImplementedError

    def same(self, one: RoundTrip, other: RoundTrip) -> bool:
        """Return whether two replies to one and the same request are as they should be."""
        return (one.result, one.code) == (other.result, other.code)

    async def told(self, method: str, params: Mapping[str, Any], how: Options) -> RoundTrip:
        """Send a request of the story, by the plan."""
        if method not in _OWN:
            return await self.plain(method, params, how)
        marks, at = self.marks, self.time()
        step = await self.plan.send(self, len(self.sent), method, dict(params), how)
        self.sent.append(SentRequest(method, dict(params), step, marks, at))
        return step

    def before_call(self, number: int) -> Counter[str]:
        """Return what had happened before the call began that a request goes on with."""
        sent = self.sent[number]
        step = sent.step
        if sent.method == "tasks/update":
            task = sent.params["taskId"]
            step = next((one.step for one in self.sent if one.step.task == task), step)
        first = step.trail[0]
        return next((one.marks for one in self.sent if one.step is first), Counter[str]())

    def calm(self) -> None:
        """Disturb nothing from now on."""
        self.plan = Plan()

    def found(self, id: ProblemId, run: str, detail: str) -> None:
        """Note what must not have happened."""
        self.problems.append(Problem(id, run, detail))


class StoryWorld(DisturbedWorld, Rounds):
    """The world of a story whose servers are made in this process."""

    def __init__(
        self, factory: Factory, tally: Tally, plan: Plan, ignored: Collection[str], **options: Any
    ) -> None:
        """Make a world whose handlers mark what they do in this tally; some marks are ignored."""
        DisturbedWorld.__init__(self, plan)
        Rounds.__init__(self, factory, **options)
        self._tally = tally
        self._ignored = ignored
        self.decided: list[tuple[Choice, Counter[str]]] = []
        """What was decided in the inbox, and what had happened before."""

    @property
    def marks(self) -> Counter[str]:
        """What has happened so far."""
        counts = self._tally.counts
        for mark in self._ignored:
            del counts[mark]
        return counts

    def time(self) -> float:
        """Return the time of the world."""
        return self.clock()

    def let_pass(self, span: timedelta) -> None:
        """Let time pass."""
        self.clock.advance(span)

    async def plain(
        self, method: str, params: Mapping[str, Any], how: Options | None = None
    ) -> RoundTrip:
        """Send a request as it is, outside of the story."""
        return await Rounds.send(self, method, params, **(how or {}))

    async def by_somebody_else(
        self, method: str, params: Mapping[str, Any], how: Options
    ) -> RoundTrip | None:
        """Send a request as another caller."""
        return await self.plain(method, params, {**how, "principal": _SOMEBODY_ELSE})

    async def send(self, method: str, params: Mapping[str, Any], **how: Any) -> RoundTrip:
        """Send a request of the story."""
        return await self.told(method, params, how)

    async def decide(self, choice: Choice, **how: Any) -> Decided:
        """Decide what waits in the inbox, by the plan."""
        self.decided.append((choice, self.marks))
        return await super().decide(self.plan.choice(len(self.decided) - 1, choice), **how)
