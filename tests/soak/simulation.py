"""Clients, servers, crashes and an operator in simulated time; every call is judged when it ends.

A client thinks before it answers, sometimes longer than its token lives. Rounds are sent to any
server, twice at once, or to one that is dropped on the way. The clocks of the servers differ by
minutes. An operator settles effects of unknown end, after a while. Some calls are abandoned.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from antiphon import Limits, Seal
from antiphon.protocol.request import Principal
from antiphon.testing import KEY, MortalStore, Process, Rounds, RoundTrip
from tests.simulated_time import Life, LoopClock, SimulatedLoop
from tests.soak.memory import resident
from tests.soak.shop import Plan, Shop, Truth
from tests.soak.stores import Broken, Kept

TTL = 600.0
LEASE = 30.0
AHEAD = (0.0, 20.0, 150.0, -180.0, 10.0)
"""How far the clock of each server is ahead of the store's, in seconds."""
SKEW = 30.0
"""Seconds beyond which a token is refused because it comes from the future."""
DAY = 86_400.0
SWEPT = 1.25
"""Rows are removed some time after they have expired: so many times as many may be there."""
_UNCERTAIN = re.compile(r"effect '([^']+)' of call (\S+) was started")
_REFUSED = -32602


class Unheard(Exception):
    """A client got no answer in any reasonable time."""


@dataclass(frozen=True)
class Token:
    """A round that waits, and between which moments its token was made, by its server's clock."""

    step: RoundTrip
    after: float = 0.0
    before: float = 0.0
    asked: float = 0.0
    """When the round that made it was sent for the first time, by the store's clock."""


@dataclass
class Figures:
    """What came of the calls."""

    ends: Counter[str] = field(default_factory=Counter[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    peak: Counter[str] = field(default_factory=Counter[str])
    """The most rows that were seen."""


class Simulation:
    """One soak."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        calls: int,
        lanes: int,
        seed: int,
        progress: Callable[[str], None] | None = None,
        broken: Broken | None = None,
    ) -> None:
        self._broken = broken
        self._progress = progress
        self._shown = 0
        self.calls = calls
        self.lanes = lanes
        self.dice = random.Random(seed)
        self.shop = Shop()
        self.figures = Figures()
        self._kind = kind
        self._folder = folder
        self._begun = 0
        self._resident = 0
        self.grown = 0
        """Bytes by which the process grew after the first third of the calls."""
        self._needed = 0
        """Rows of one kind that calls which have ended may still have in the store."""
        self.left: dict[str, int] = {}
        self.expected: dict[str, int] = {}

    @property
    def wrong(self) -> list[str]:
        """What must not have happened."""
        return self.shop.wrong

    async def run(self) -> None:
        """Make all calls, let everything expire, and count what is left."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self.loop = loop
        self.clocks = [LoopClock(loop, ahead=ahead) for ahead in AHEAD]
        self.kept = Kept(self._kind, self._folder, self.clocks[0], "soak", self._broken)
        await self.kept.store.open()
        self.rounds = Rounds(
            self._make,
            clock=self.clocks[0],
            store=self.kept.store,
            principal=Principal(issuer="tests", subject="ada"),
        )
        self.servers = [self._server(number) for number in range(len(AHEAD))]
        async with asyncio.TaskGroup() as group:
            for lane in range(self.lanes):
                group.create_task(self._lane(lane))
        if self._broken is None:
            await self._hold_that_nothing_is_left()
        await self.kept.store.close()

    # --- servers -------------------------------------------------------------------------------

    def _make(self, process: Process | None = None, **kit: Any) -> Any:
        limits = Limits(lease=timedelta(seconds=LEASE), waiters=64)
        seal = Seal(keys=[KEY], ttl=timedelta(seconds=TTL))
        return self.shop.serve(process or Process(), **{**kit, "seal": seal, "limits": limits})

    def _server(self, number: int) -> Any:
        return self.rounds.make(clock=self.clocks[number])

    # --- clients -------------------------------------------------------------------------------

    async def _lane(self, lane: int) -> None:
        await asyncio.sleep(self.dice.expovariate(1 / 300))
        while self._begun < self.calls and not (self._broken and self.wrong):
            self._begun += 1
            number = self._begun
            if number % max(1, self.calls // 30) == 0:
                self._watch(number)
            plan = self._plan(f"call{number}")
            truth = self.shop.open[plan.label] = Truth()
            try:
                end = await Call(self, plan, truth).to_the_end()
            except Unheard:
                end = "unheard"
            self.figures.ends[end] += 1
            self._need(truth.effects.total() + 1, 2 * TTL if end == "done" else DAY)
            # What a token that still lives might set off would be found here, not later.
            self.loop.call_later(2 * TTL + 4 * LEASE, self.shop.open.pop, plan.label, None)
            await asyncio.sleep(self.dice.expovariate(1 / 20))

    def _need(self, rows: int, seconds: float) -> None:
        """Allow a call that has ended some rows, for as long as its tokens or its effects live."""
        self._needed += rows
        self.loop.call_later(seconds, self._need_less, rows)

    def _need_less(self, rows: int) -> None:
        self._needed -= rows

    def _watch(self, number: int) -> None:
        most = 5 * self.lanes + SWEPT * self._needed
        for name, count in self.kept.rows().items():
            self.figures.peak[name] = max(self.figures.peak[name], count)
            if count > most:
                self.wrong.append(f"{count} rows of {name} after {number} calls, not {most:.0f}")
        now = resident()
        if number <= self.calls // 3:
            self._resident = now
        self.grown = now - self._resident
        if self._progress is not None:
            days = self.loop.time() / 86_400
            for text in self.wrong[self._shown :]:
                self._progress(f"wrong: {text}")
            self._shown = len(self.wrong)
            self._progress(
                f"{number} calls begun, {days:.1f} days, {self.figures.counts['rounds']} rounds, "
                f"{now >> 20} MiB, wrong: {len(self.wrong)}"
            )

    def _plan(self, label: str) -> Plan:
        dice = self.dice
        rounds = dice.choice((1, 1, 2, 3, 4))
        works = dice.random() < 0.08
        return Plan(
            label=label,
            words=tuple(f"{dice.getrandbits(24):06x}" for _ in range(rounds)),
            large=dice.random() < 0.1,
            works_in=dice.randrange(rounds) if works else -1,
            works=dice.uniform(0.3, 2.5) * TTL if works else 0.0,
        )

    # --- the end -------------------------------------------------------------------------------

    async def _hold_that_nothing_is_left(self) -> None:
        """Let everything expire; a store that has seen it all must be as one that saw nothing."""
        control = Kept(self._kind, self._folder, self.clocks[0], "control")
        await control.store.open()
        for _ in range(30):  # a store removes a few rows whenever it is used
            for ticks in (60, 1):
                await asyncio.sleep(timedelta(days=3).total_seconds())
                for _ in range(ticks):
                    await asyncio.sleep(1)
                    await self._tick(self.kept)
                    await self._tick(control)
            self.left, self.expected = self.kept.rows(), control.rows()
            if self.left == self.expected:
                break
        if self.left != self.expected:
            self.wrong.append(f"left behind: {self.left}, a new store holds {self.expected}")
        await control.store.close()

    async def _tick(self, kept: Kept) -> None:
        server = self.rounds.make(store=kept.store)
        step = await self.rounds.begin("tick", server=server)
        if step.waiting:
            step = await self.rounds.answer(step, {"word": {"word": "on"}}, server=server)
        if step.is_error:
            self.wrong.append(f"a call after the soak failed: {step.text}")


class Call:
    """One call of one client."""

    def __init__(self, soak: Simulation, plan: Plan, truth: Truth) -> None:
        self.soak = soak
        self.plan = plan
        self.truth = truth
        self.dice = soak.dice
        self.counts = soak.figures.counts
        self.disturbed = False
        """Whether a round was cut, so that plain code may run more than once."""

    def wrong(self, what: str) -> None:
        self.soak.wrong.append(f"{self.plan.label}: {what}; {self.plan}")

    async def to_the_end(self) -> str:
        """Make the call; returns how it ended."""
        began = self._now(0)
        number = self.dice.randrange(len(AHEAD))
        start = self.soak.clocks[number]()
        step = await self.soak.rounds.begin(
            "order", self.plan.arguments, server=self.soak.servers[number]
        )
        token = Token(step, start, self._now(number))
        past: list[Token] = []
        while token.step.waiting:
            if self.dice.random() < 0.03:
                return "abandoned"
            await asyncio.sleep(self._thinking())
            past.append(token)
            token = await self._round(token)
            if self._now(0) - began > timedelta(days=1).total_seconds():
                return "too late"
        if token.step.code == _REFUSED:
            return "expired"
        self._judge(token.step)
        await self._send_again([*past, token])
        return "done"

    def _thinking(self) -> float:
        if self.dice.random() < 0.03:
            return self.dice.uniform(0.9, 3) * TTL
        return min(self.dice.expovariate(1 / 60), 0.5 * TTL)

    def _now(self, number: int) -> float:
        return self.soak.clocks[number]()

    # --- rounds --------------------------------------------------------------------------------

    def _answers(self, step: RoundTrip, words: tuple[str, ...] | None = None) -> dict[str, Any]:
        words = words or self.plan.words
        return {key: {"word": words[int(key.removeprefix("word"))]} for key in step.asks}

    async def _send(self, step: RoundTrip, number: int, **how: Any) -> RoundTrip:
        server = how.pop("server", None) or self.soak.servers[number]
        answers = how.pop("answers", None) or self._answers(step)
        self.counts["rounds"] += 1
        try:
            async with asyncio.timeout(self.plan.works + 4 * TTL):
                return await self.soak.rounds.answer(step, answers, server=server)
        except TimeoutError:
            self.wrong("a client never heard")
            raise Unheard from None

    async def _round(self, token: Token) -> Token:
        """Send a round until it has an outcome, whatever happens to it."""
        settled = False
        began = self._now(0)
        unheard: RoundTrip | None = None
        """The outcome, when its reply was lost on the way."""
        clean = True
        """Whether nobody else can have answered this round before."""
        for _ in range(40):
            number = self.dice.randrange(len(AHEAD))
            chance = self.dice.random()
            if chance < 0.16:
                clean = False
            if chance < 0.06:
                unheard = await self._drop_the_server(token.step, number) or unheard
                continue
            if chance < 0.12:
                answered = await self._twice(token, number, began)
                if answered is not None:
                    return answered
                continue
            if chance < 0.16:
                await self._hang_up(token.step, number)
                continue
            start = self._now(number)
            step = await self._send(token.step, number)
            if step.code == _REFUSED:
                if start + SKEW < token.before:
                    # The clocks differ too much; a server whose clock is right takes the token.
                    self.counts["refused for its clock"] += 1
                    await asyncio.sleep(10)
                    continue
                if settled:
                    self.wrong("a call was refused after an operator had settled it")
                elif unheard is not None and self._now(0) < began + TTL:
                    self.wrong("an outcome was forgotten before its reply was heard")
                elif start < token.after + TTL:
                    self.wrong("a token was refused before it had expired")
                return Token(step)
            uncertain = _UNCERTAIN.search(step.text) if step.is_error else None
            if uncertain is not None:
                await self._operate(uncertain[2], uncertain[1])
                settled = True
                continue
            if step.is_error and step.code == -32603:
                self.counts["told to try again"] += 1
                await asyncio.sleep(5)
                continue
            if unheard is not None and step.result != unheard.result:
                self.wrong("an outcome was told differently after its reply was lost")
            if clean:
                return Token(step, start, self._now(number), began)
            return Token(step, began + min(AHEAD), self._now(0) + max(AHEAD), began)
        self.wrong(f"no outcome after forty tries: {step.text}")
        return Token(step)

    async def _drop_the_server(self, step: RoundTrip, number: int) -> RoundTrip | None:
        """Send a round to a server that is dropped; returns the reply that was lost on the way."""
        self.counts["servers dropped"] += 1
        self.disturbed = True
        life = Life(crash_at=self.dice.randrange(1, 16))
        store = MortalStore(self.soak.kept.store, life)
        server = self.soak.rounds.make(process=life, store=store, clock=self.soak.clocks[number])
        sent = life.start(self._send(step, number, server=server))
        ended = asyncio.create_task(life.ended.wait())
        await asyncio.wait({sent, ended}, return_when=asyncio.FIRST_COMPLETED)
        self.truth.crashed = self.truth.crashed or not life.alive
        lost = sent.result() if sent.done() and life.alive else None
        life.bury()
        ended.cancel()
        await asyncio.sleep(LEASE + 1)
        return None if lost is None or lost.is_error else lost

    async def _hang_up(self, step: RoundTrip, number: int) -> None:
        self.counts["hung up"] += 1
        self.disturbed = True
        task = asyncio.create_task(self._send(step, number))
        await asyncio.wait({task}, timeout=self.dice.uniform(0, 1))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _twice(self, token: Token, number: int, began: float) -> Token | None:
        """Send a round to two servers at once; both must be told the same. None if both failed."""
        self.counts["sent twice"] += 1
        numbers = (number, self.dice.randrange(len(AHEAD)))
        one, two = await asyncio.gather(*(self._send(token.step, n) for n in numbers))
        if not one.is_error and not two.is_error and one.result != two.result:
            self.wrong("two copies of one round were told different things")
        done = one if not one.is_error else two
        if done.is_error:
            return None
        return Token(done, began + min(AHEAD), self._now(0) + max(AHEAD), began)

    async def _operate(self, call: str, key: str) -> None:
        """Settle an effect of unknown end by what really happened, after some time."""
        self.counts["settled by an operator"] += 1
        if not self.truth.crashed:
            self.wrong("an effect is of unknown end although no server was lost")
        await asyncio.sleep(self.dice.choice((LEASE, TTL / 2, 3 * TTL)))
        number = int(key.removeprefix("act"))
        happened = bool(self.truth.effects[number])
        result = msgspec.json.encode(f"{self.plan.label}/{number}") if happened else None
        if not await self.soak.kept.store.settle_uncertain(call, key, result=result):
            self.wrong(f"{key} could not be settled")

    # --- the judgement -------------------------------------------------------------------------

    def _judge(self, step: RoundTrip) -> None:
        if step.is_error:
            self.wrong(f"failed: {step.text}")
            return
        if [block["text"] for block in step.content] != self.plan.result:
            self.wrong(f"gave {step.content}")
        if self.truth.effects != Counter(range(len(self.plan.words))):
            self.wrong(f"effects {dict(self.truth.effects)}")
        if self.plan.works_in >= 0 and not self.disturbed and self.truth.worked != 1:
            self.wrong(f"a long round was run {self.truth.worked} times")

    async def _send_again(self, steps: list[Token]) -> None:
        """Send a round of the finished call again, with the same answers and with others."""
        if self.dice.random() > 0.3 or len(steps) < 2:
            return
        place = self.dice.randrange(len(steps) - 1)
        old, told = steps[place], steps[place + 1]
        number = self.dice.randrange(len(AHEAD))
        start = self._now(number)
        self.counts["sent again when done"] += 1
        again = await self._send(old.step, number)
        if again.code == _REFUSED:
            if start + SKEW >= old.before and self._now(0) < told.asked + TTL:
                self.wrong("a recorded round was forgotten")
        elif again.is_error:
            self.wrong(f"a recorded round failed: {again.text}")
        elif again.result != told.step.result:
            self.wrong("a recorded round was told differently")
        else:
            self.counts["told the same again"] += 1
        others = await self._send(
            old.step, number, answers=self._answers(old.step, ("other",) * len(self.plan.words))
        )
        if others.code != _REFUSED:
            self.wrong("a spent round took other answers")
