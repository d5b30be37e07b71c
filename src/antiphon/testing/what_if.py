"""What if: a story that passes is told again under everything that can happen to its rounds.

    report = await what_if(shop, story)
    report.check()

A story is a coroutine that drives a world (`Rounds`) and checks what came of it. It is run once as
it stands, and then again in worlds of their own: a round is sent twice, or not answered, or its
token is changed, expired or brought by somebody else; an answer becomes a no; the server stays, or
is an older session; the client starts over. What may not happen then is a finding.

What handlers do to the world is seen in a `Tally`. In an older session a handler runs once from its
first line to its last, so that what is marked there is what is meant to happen.
"""

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from antiphon.protocol.request import Principal
from antiphon.testing.decisions import Undecided
from antiphon.testing.doubles import Tally
from antiphon.testing.harness import EVERYTHING, Factory, RoundTrip
from antiphon.testing.plans import (
    ByStranger,
    DecidedNo,
    SentAgain,
    SentTwice,
    SlowRounds,
    StopBefore,
    TooEarly,
    TooLate,
    WithoutAnswers,
    approved_after,
    refusals,
)
from antiphon.testing.problems import CURES, Problem, ProblemId
from antiphon.testing.story_world import Plan, StoryStopped, StoryWorld

Story: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Drives a world and checks what came of it; the last `RoundTrip` may be returned."""

MakeFactory: TypeAlias = Callable[[Tally], Factory]
"""Makes the factory of a server whose handlers mark in this tally what they do to the world."""

_SEEN = ("content", "structuredContent", "messages", "contents")


@dataclass(frozen=True)
class WhatIfReport:
    """What came of the runs of one story."""

    runs: tuple[str, ...]
    """Every run, in order, in words."""

    problems: tuple[Problem, ...]
    left_out: tuple[str, ...] = ()
    """Runs that could not be compared, with the reason."""

    def check(self) -> None:
        """Fail a test when something was found.

        Raises:
            AssertionError: It lists the problems with their cures.
        """
        if self.problems:
            raise AssertionError(f"{len(self.problems)} found in {len(self.runs)} runs\n{self}")

    def __str__(self) -> str:
        """List the problems."""
        return "\n".join(map(str, self.problems)) or "nothing found"


@dataclass
class _Told:
    """One run of the story."""

    world: StoryWorld
    end: Any = None
    error: BaseException | None = None
    log: list[str] = field(default_factory=list[str])

    @property
    def marks(self) -> Counter[str]:
        return self.world.marks

    @property
    def outcome(self) -> Any:
        """What is compared between two runs, beside the marks."""
        end = self.end
        return (seen(end), end.asked) if isinstance(end, RoundTrip) else None

    @property
    def words(self) -> str:
        """The outcome, for people."""
        end = self.end
        return f"{end.text!r} after {end.asked}" if isinstance(end, RoundTrip) else "nothing"

    @property
    def failure(self) -> str:
        """Why the story did not pass; empty if it did."""
        if self.error is not None:
            return f"{type(self.error).__name__}: {self.error}".strip()
        if isinstance(self.end, RoundTrip) and self.end.is_error:
            return self.end.text
        return ""


async def what_if(
    make: MakeFactory,
    story: Story,
    *,
    allow: Collection[ProblemId] = (),
    capabilities: Mapping[str, Any] = EVERYTHING,
    principal: Principal | None = None,
) -> WhatIfReport:
    """Run a story as it stands, and under everything that can happen to its rounds.

    Args:
        make: Takes a tally, and returns the factory of a server.
        story: Drives a world; it is run many times, each time in a world of its own.
        allow: Mistakes that are meant, by their id.
        capabilities: What the client can be asked.
        principal: Who calls.
    """
    unknown = set(allow) - set(CURES)
    if unknown:
        raise ValueError(f"there are no mistakes called {sorted(unknown)}; {sorted(CURES)}")
    with tempfile.TemporaryDirectory() as folder:
        runs = _StoryRuns(make, story, Path(folder), capabilities, principal)
        await runs.all()
    found = dict.fromkeys(one for one in runs.problems if one.id not in allow)
    return WhatIfReport(tuple(runs.names), tuple(found), tuple(runs.left_out))


class _StoryRuns:
    """Runs a story again and again, and collects what is wrong."""

    def __init__(
        self,
        make: MakeFactory,
        story: Story,
        folder: Path,
        capabilities: Mapping[str, Any],
        principal: Principal | None,
    ) -> None:
        self._make = make
        self._story = story
        self._folder = folder
        self._capabilities = capabilities
        self._principal = principal
        self._run_again: set[str] = set()
        """Marks of lines that run in every round: told once, and left out of every comparison."""

        self.names: list[str] = []
        self.problems: list[Problem] = []
        self.left_out: list[str] = []

    async def all(self) -> None:
        """Make every run that the story as it stands calls for."""
        base = await self._told("as it stands", Plan())
        if base.failure:
            detail = " ".join([base.failure, *base.log])
            self.problems.append(Problem("story-fails", "as it stands", detail))
            return
        await self._other_hosts(base)
        story = base.world.sent
        for number, sent in enumerate(story):
            if sent.later:
                await self._disturbed(base, number)
                await self._started_over(base, number)
            for key in sent.answers:
                await self._refused(base, number, key)
        for number, (choice, marks) in enumerate(base.world.decided):
            if choice == "approve":
                plan = DecidedNo(number)
                name = f"decision {number + 1} {plan.what}"
                self._did_nothing(base, await self._told(name, plan), marks, name)
        if any(sent.later for sent in story):
            for plan in (SlowRounds(), SentAgain(), TooEarly(story)):
                await self._same(base, plan.what, plan)

    # --- runs that must not matter ---------------------------------------------------------------

    async def _disturbed(self, base: _Told, number: int) -> None:
        """Disturb one request in all the ways that must change nothing."""
        silent = WithoutAnswers(number)
        for plan in (ByStranger(number), SentTwice(number), silent):
            await self._same(base, plan.run, plan)
        self._run_again |= silent.again
        if base.world.sent[number].token is not None:
            late = TooLate(number)
            self.problems += (await self._told(late.run, late)).world.problems

    async def _same(self, base: _Told, name: str, plan: Plan) -> None:
        """Run the story with a plan after which it must end as it stands."""
        told = await self._told(name, plan)
        self.problems += told.world.problems
        if told.world.problems:
            return  # what follows from it says nothing new
        if told.failure or told.outcome != base.outcome:
            detail = told.failure or _instead(told, base)
            self.problems.append(Problem(plan.problem, name, detail))
        elif told.marks != base.marks:
            detail = _difference(told.marks, base.marks)
            self.problems.append(Problem(plan.problem, name, detail))

    async def _other_hosts(self, base: _Told) -> None:
        """Run the story with one server for all its rounds, and in an older session."""
        kept = await self._told("one server for all rounds", Plan(), fresh=False)
        if (kept.failure, kept.outcome) != ("", base.outcome):
            detail = kept.failure or _instead(kept, base)
            self.problems.append(Problem("needs-memory", "one server for all rounds", detail))
        name = "an older session, where handlers run once"
        live = await self._told(name, Plan(), era="legacy")
        if live.world.sent:
            self.left_out.append(f"{name}: the story sends single rounds, which do not exist there")
        elif live.failure or live.outcome != base.outcome:
            why = live.failure or "it ends otherwise there"
            self.left_out.append(f"{name}: {why}")
        elif live.marks != base.marks:
            detail = _difference(base.marks, live.marks)
            self.problems.append(Problem("runs-again", "as it stands", detail))
            self._run_again |= set(base.marks - live.marks)

    async def _started_over(self, base: _Told, number: int) -> None:
        """Let the client forget a call, and begin it anew.

        The whole story is told again, so that what its earlier calls did may happen twice.
        """
        name = f"a client that starts over before request {number + 1}"
        told = await self._told(name, StopBefore(number), again=True)
        earlier = base.world.before_call(number)
        if isinstance(told.error, Undecided):
            self.left_out.append(f"{name}: its held call goes on, with what was decided")
        elif told.failure:
            self.problems.append(Problem("starts-over", name, told.failure))
        elif detail := _difference(told.marks, base.marks, base.marks + earlier):
            self.problems.append(Problem("starts-over", name, detail))

    # --- a no ------------------------------------------------------------------------------------

    async def _refused(self, base: _Told, number: int, key: str) -> None:
        """Let an answer be a no: what the story does after its yes must not happen."""
        sent = base.world.sent[number]
        for plan in refusals(number, key, sent.answers[key]):
            name = f"{key!r} {plan.what}"
            told = await self._told(name, plan)
            if not approved_after(told.world, number, key):
                self._did_nothing(base, told, sent.marks, name)

    def _did_nothing(self, base: _Told, told: _Told, before: Counter[str], name: str) -> None:
        """Compare what happened after a no with what follows the story's yes."""
        done = (told.marks - before) & (base.marks - before)
        if done:
            detail = f"still happened: {_listed(done)}"
            if any(mark in before for mark in done):
                detail += " (also before the question: what runs in every round needs ctx.once)"
            self.problems.append(Problem("refusal-acts", name, detail))

    # --- one run ---------------------------------------------------------------------------------

    async def _told(self, name: str, plan: Plan, *, again: bool = False, **options: Any) -> _Told:
        """Run the story once; `again`, a second time when the plan has stopped it."""
        self.names.append(name)
        tally = Tally(self._folder / f"{len(self.names)}.txt")
        world = StoryWorld(
            self._make(tally),
            tally,
            plan,
            self._run_again,
            capabilities=self._capabilities,
            principal=self._principal,
            **{"fresh": True, **options},
        )
        told = _Told(world)
        with _heard(told.log):
            async with world:
                await self._run(told)
                if told.error is None:
                    await world.plan.at_end(world)
                if again and isinstance(told.error, StoryStopped):
                    told.error = None
                    world.calm()
                    await self._run(told)
        if isinstance(told.error, StoryStopped):
            told.error = None
        return told

    async def _run(self, told: _Told) -> None:
        try:
            told.end = await self._story(told.world)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 - a story fails by whatever its checks raise
            told.error = error


@contextmanager
def _heard(lines: list[str]) -> Generator[None]:
    """Collect the warnings of the server: they name the line of the handler."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if " failed at " in record.getMessage():
                lines.append(f"[{record.getMessage()}]")

    log, handler = logging.getLogger("antiphon"), Collect(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def seen(step: RoundTrip) -> dict[str, Any]:
    """Return what a client gets to see of a result: of a tool, a prompt or a resource."""
    result = step.result or {}
    return {name: result[name] for name in _SEEN if name in result}


def _instead(told: _Told, base: _Told) -> str:
    if told.words == base.words:
        return f"another result, of the same text: {base.words}"
    return f"{told.words} instead of {base.words}"


def _difference(now: Counter[str], meant: Counter[str], at_most: Counter[str] | None = None) -> str:
    often = now - (meant if at_most is None else at_most)
    parts = [
        f"{word}: {_listed(part)}"
        for word, part in (("too often", often), ("missing", meant - now))
        if part
    ]
    return "; ".join(parts)


def _listed(marks: Counter[str]) -> str:
    return ", ".join(f"{what!r}" + (f" x{n}" if n > 1 else "") for what, n in marks.items())
