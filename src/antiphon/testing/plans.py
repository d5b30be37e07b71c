"""Everything that can happen to a request of a story, one plan each."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from antiphon.testing.harness import RoundTrip
from antiphon.testing.problems import ProblemId
from antiphon.testing.story_world import (
    Choice,
    DisturbedWorld,
    Options,
    Plan,
    SentRequest,
    StoryStopped,
)
from antiphon.testing.tasks import asked_key

_NO = {"action": "decline"}
_LATE = timedelta(days=3650)


class AtRequest(Plan):
    """Disturbs one request of the story."""

    def __init__(self, number: int) -> None:
        """Take the number of the request, from 0."""
        self._number = number

    @property
    def run(self) -> str:
        """The run in words."""
        return f"request {self._number + 1} {self.what}"

    async def send(
        self, world: DisturbedWorld, number: int, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Disturb the request if it is the one."""
        if number != self._number:
            return await world.plain(method, params, how)
        return await self.disturb(world, method, params, how)

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Send the one request."""
        raise NotImplementedError


class ByStranger(AtRequest):
    """Before a request, others are tried that must be refused.

    It is sent by somebody else, with a changed token, and with other arguments.
    """

    what = "sent by somebody else, with changed tokens and other arguments before"
    problem: ProblemId = "duplicate-differs"

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Try, and then send the request itself."""
        for method_of_theirs, sent in _of_theirs(method, params):
            theirs = await world.by_somebody_else(method_of_theirs, sent, how)
            if theirs is not None and theirs.error is None:
                detail = f"{method_of_theirs} was answered as if the right caller had come"
                world.found("stranger-accepted", self.run, detail)
        for token in _changed(params.get("requestState")):
            changed = await world.plain(method, {**params, "requestState": token}, how)
            if changed.error is None:
                world.found("tampered-accepted", self.run, "a token with another letter was taken")
        if "requestState" in params and params.get("arguments"):
            for moved in _other_arguments(params["arguments"]):
                step = await world.plain(method, {**params, "arguments": moved}, how)
                if step.error is None and not step.is_error:
                    world.found("moved-accepted", self.run, f"with {moved}: {_said(step)}")
        return await world.plain(method, params, how)


class SentTwice(AtRequest):
    """A request arrives twice at the same time: both have the same outcome."""

    what = "sent twice at once"

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Send it twice."""
        one, other = await asyncio.gather(
            world.plain(method, params, how), world.plain(method, params, how)
        )
        if method != "tasks/update" and not world.same(one, other):
            world.found("duplicate-differs", self.run, f"{_said(one)}; {_said(other)}")
        return one if one.error is None else other


class WithoutAnswers(AtRequest):
    """A request comes without its answers first: it is asked again, and nothing has happened."""

    what = "sent without its answers first"
    problem: ProblemId = "silence-acts"

    def __init__(self, number: int) -> None:
        """Take the number of the request, from 0."""
        super().__init__(number)
        self.again: set[str] = set()
        """Marks that were made before, and again when the same was asked again."""

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Send it without answers, and then the answers."""
        answers = params.pop("inputResponses", None)
        if not answers or "requestState" not in params:
            return await world.plain(method, {**params, "inputResponses": answers or {}}, how)
        before = world.marks
        step = await world.plain(method, params, how)
        done = world.marks - before
        if not step.waiting or not set(answers) <= set(step.asks):
            world.found("silence-acts", self.run, f"not asked again: {_said(step)}")
            raise StoryStopped
        self.again = set(done) & set(before)
        if self.again:
            world.found("runs-again", self.run, f"happened again: {sorted(self.again)}")
        if set(done) - self.again:
            happened = sorted(set(done) - self.again)
            world.found("silence-acts", self.run, f"happened: {happened}")
        params = {**params, "inputResponses": answers, "requestState": step.token}
        return await world.plain(method, params, how)


class TooLate(AtRequest):
    """A request comes when its token has expired: it is refused."""

    what = "sent when its token has expired"

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Let time pass, send it, and end the run."""
        world.let_pass(_LATE)
        step = await world.plain(method, params, how)
        if step.error is None and not step.is_error:
            world.found("expired-accepted", self.run, _said(step))
        raise StoryStopped


class StopBefore(AtRequest):
    """The client forgets the call before this request."""

    async def disturb(
        self, world: DisturbedWorld, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """End the run."""
        raise StoryStopped


class AnsweredNo(Plan):
    """One answer of the story is another one: a refusal."""

    def __init__(self, number: int, key: str, answer: Mapping[str, Any], what: str) -> None:
        """Take the key and the answer in the place of the story's."""
        self._number = number
        self._key = key
        self._answer = answer
        self._said = False
        self.what = what

    async def send(
        self, world: DisturbedWorld, number: int, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Send it with the other answer, and also when it is asked for again.

        The run ends before another call begins: the no was not said to that one.
        """
        answers: Mapping[str, Any] = params.get("inputResponses") or {}
        begins = how.get("before") is None and "requestState" not in params
        if self._said and begins and method != "tasks/update":
            raise StoryStopped
        again = [name for name in answers if asked_key(name, method) == self._key]
        if number >= self._number and again:
            self._said = True
            no = dict.fromkeys(again, self._answer)
            params = {**params, "inputResponses": {**answers, **no}}
        return await world.plain(method, params, how)


def answer_to(key: str, sent: SentRequest) -> Any:
    """Return the answer to a question that a request brought, by the key of its handler."""
    return next(
        (a for name, a in sent.answers.items() if asked_key(name, sent.method) == key), None
    )


def refusals(number: int, key: str, answer: Any) -> Iterator[AnsweredNo]:
    """Every way to say no where the story said yes; completions and roots have none."""
    if not isinstance(answer, dict):
        return
    given = cast("dict[str, Any]", answer)
    if given.get("action") != "accept":
        return
    yield AnsweredNo(number, key, _NO, "declined")
    yield AnsweredNo(number, key, {"action": "cancel"}, "cancelled")
    if _yes(given):
        content: dict[str, Any] = given["content"]
        no = {name: False if value is True else value for name, value in content.items()}
        yield AnsweredNo(number, key, {"action": "accept", "content": no}, "answered with no")


def approved_after(world: DisturbedWorld, number: int, key: str) -> bool:
    """Return whether a yes came after a no that was none to an approval.

    A question may be one that a person need not answer: what happens then is what they approved
    afterwards.
    """
    if number >= len(world.sent) or _yes(answer_to(key, world.sent[number])):
        return False
    later = [sent.answers for sent in world.sent[number + 1 :]]
    return any(_yes(answer) for answers in later for name, answer in answers.items() if name != key)


def _yes(answer: Any) -> bool:
    """Return whether an answer is an explicit yes: accepted, with something ticked."""
    if not isinstance(answer, dict):
        return False
    given = cast("dict[str, Any]", answer)
    content: dict[str, Any] = given.get("content") or {}
    return given.get("action") == "accept" and any(value is True for value in content.values())


class DecidedNo(Plan):
    """Somebody declines in the inbox what the story approves."""

    what = "declined in the inbox"

    def __init__(self, number: int) -> None:
        """Take the number of the decision, from 0."""
        self._number = number

    def choice(self, number: int, choice: Choice) -> Choice:
        """Decline the one."""
        return "decline" if number == self._number else choice


class SlowRounds(Plan):
    """A second passes before every request."""

    what = "a second passes between two rounds"
    problem: ProblemId = "time-matters"

    async def send(
        self, world: DisturbedWorld, number: int, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Let time pass, and send it."""
        world.let_pass(timedelta(seconds=1))
        return await world.plain(method, params, how)


class SentAgain(Plan):
    """At the end every request that brought a token comes again: first as it was, then changed."""

    what = "every round sent again at the end"

    async def at_end(self, world: DisturbedWorld) -> None:
        """Send them."""
        for number, sent in enumerate(world.sent):
            if sent.token is None:
                continue
            run = f"request {number + 1} sent again at the end"
            again = await world.plain(sent.method, sent.params)
            if not world.same(sent.step, again):
                world.found("duplicate-differs", run, f"{_said(sent.step)}; {_said(again)}")
            if sent.answers:
                others = dict.fromkeys(sent.answers, _NO)
                params = {**sent.params, "inputResponses": others}
                other = await world.plain(sent.method, params)
                if other.error is None:
                    world.found("other-answer-accepted", run, _said(other))


class TooEarly(Plan):
    """Every request also brings the answers to what is asked later."""

    what = "answers before they are asked for"
    problem: ProblemId = "unasked-accepted"

    def __init__(self, story: Sequence[SentRequest]) -> None:
        """Take the requests of the story as it stands."""
        self._story = story

    async def send(
        self, world: DisturbedWorld, number: int, method: str, params: dict[str, Any], how: Options
    ) -> RoundTrip:
        """Send it with more answers; where these are refused, without."""
        before: RoundTrip | None = how.get("before")
        asked = set(before.asks) if before is not None else set[str]()
        coming = [sent.answers for sent in self._story[number + 1 :]]
        early = {
            key: answer
            for answers in coming
            for key, answer in answers.items()
            if key not in asked  # the story answers it in a later round, though it may do so now
        }
        if number < len(self._story) and early and method != "tasks/update":
            meant = self._story[number].step
            own: Mapping[str, Any] = params.get("inputResponses") or {}
            step = await world.plain(method, {**params, "inputResponses": {**early, **own}}, how)
            if step.error is None:
                if list(step.asks) != list(meant.asks):
                    world.found("unasked-accepted", self.what, f"not asked any more: {_said(step)}")
                    raise StoryStopped
                return step
        return await world.plain(method, params, how)

    async def at_end(self, world: DisturbedWorld) -> None:
        """Whatever the story was asked must have been asked in spite of the answers."""
        left = _asked(self._story) - _asked(world.sent)
        if left:
            world.found("unasked-accepted", self.what, f"not asked any more: {sorted(left)}")


def _asked(story: Sequence[SentRequest]) -> set[str]:
    return {asked_key(key, sent.method) for sent in story for key in sent.answers}


def _of_theirs(method: str, params: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What somebody else might send instead of a request; a task is also looked at and ended."""
    yield method, params
    if method == "tasks/update":
        yield "tasks/get", {"taskId": params["taskId"]}
        yield "tasks/cancel", {"taskId": params["taskId"]}


def _changed(token: str | None) -> Iterator[str]:
    """Change a letter at the beginning, in the middle and near the end of a token."""
    if token is None:
        return
    for place in sorted({0, len(token) // 2, max(0, len(token) - 4)}):
        other = "A" if token[place] != "A" else "B"
        yield token[:place] + other + token[place + 1 :]


def _other_arguments(arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Change each argument in turn to another of its kind."""
    for name, value in arguments.items():
        other: Any = None
        if isinstance(value, str):
            other = value + "x"
        elif isinstance(value, (bool, int, float)):
            other = (not value) if isinstance(value, bool) else value + 1
        if other is not None:
            yield {**arguments, name: other}


def _said(step: RoundTrip) -> str:
    """Tell a round in short, without its token."""
    if step.waiting:
        return f"asks {sorted(step.asks)}"
    if step.task:
        return "becomes a task"
    return f"refused ({step.code})" if step.error is not None else f"ends with {step.text!r}"
