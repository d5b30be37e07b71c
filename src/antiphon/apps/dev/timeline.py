"""What a page shows of a call: its rounds, journal, effects, claims, and which lines ran in which.

Reads the wire as any client could, tokens with the keys, effects from the store, and lines from the
records of the server's process.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from antiphon.apps.dev.advice import SourceReading, read_source
from antiphon.apps.dev.call import DevCall
from antiphon.apps.dev.records import RoundRecord, RunBegan
from antiphon.apps.dev.wire import Exchange
from antiphon.apps.lint.findings import Rule
from antiphon.client.read_asks import ASKABLE as CALL_METHODS
from antiphon.engine.environment import Environment
from antiphon.errors import AntiphonError, StoreError
from antiphon.ports import EffectRow
from antiphon.protocol.journal import Entry, Journal
from antiphon.seal.claims import Claims, decode_journal

SHOWN_SOURCE = 400
DEEPEST = 40
"""Blanks before a line that are shown."""

SOON = 5.0
"""Seconds within which a request that was sent is begun."""


class Round(msgspec.Struct, frozen=True):
    """One request of a call and its reply."""

    number: int
    exchange: Exchange
    asked: tuple[str, ...]
    answered: dict[str, str]
    """By key: what the request said to what had been asked before."""

    outcome: str
    token: str
    """The token of the reply; empty without one."""

    claims: Claims | None = None
    journal: Journal | None = None

    @property
    def params(self) -> dict[str, Any]:
        """The params of the request."""
        return cast("dict[str, Any]", self.exchange.message.get("params") or {})

    @property
    def redeemed(self) -> str:
        """The token of the request; empty for the first round."""
        return str(self.params.get("requestState") or "")


class JournalLine(msgspec.Struct, frozen=True):
    """An entry of the journal, and the round whose token first had it; 0 in a task."""

    entry: Entry
    round: int
    value: str


class ShownLine(msgspec.Struct, frozen=True):
    """A line of the author's code."""

    number: int
    indent: str
    text: str
    ran: tuple[int, ...]
    """By run: how often."""

    rule: Rule | None = None
    """What is wrong with it."""

    again: bool = False
    """Whether what is wrong is that it ran in several runs."""

    asks: bool = False
    instead: str = ""
    """How it could be written, if that is known."""


class ShownFile(msgspec.Struct, frozen=True):
    """The functions of one file that ran."""

    name: str
    rounds: tuple[int, ...]
    lines: tuple[ShownLine, ...]

    @property
    def marked(self) -> int:
        """How many of its lines are marked."""
        return sum(1 for line in self.lines if line.rule is not None)


class Edited(msgspec.Struct, frozen=True):
    """A file that was saved while the call waited."""

    name: str
    changes: str


class CodeVersions:
    """The author's files as they were when lines of them ran."""

    def __init__(self, texts: Mapping[tuple[str, int], str]) -> None:
        """Take the files by name and start of the server."""
        self._texts = texts
        self._readings: dict[str, SourceReading] = {}

    def text(self, file: str, start: int) -> str:
        """Return a file as it was."""
        return self._texts.get((file, start), "")

    def reading(self, text: str) -> SourceReading:
        """Return what a file says about its lines."""
        if text not in self._readings:
            self._readings[text] = read_source(text)
        return self._readings[text]


RunKey: TypeAlias = tuple[int, str, float]
"""Start of the server, call, and when the run began."""


class CallRecords:
    """The records of one call: which runs of the handler belong to it."""

    def __init__(self, versions: CodeVersions) -> None:
        self._versions = versions
        self._runs: dict[RunKey, RoundRecord] = {}
        self.call: str = ""

    @property
    def runs(self) -> list[tuple[int, RoundRecord]]:
        """Start of the server and newest record of each run, the first run first."""
        found = [(key[0], record) for key, record in self._runs.items()]
        return sorted(found, key=lambda one: (one[0], one[1].began))

    def take(
        self,
        call: DevCall,
        ids: set[str],
        begun: Iterable[RunBegan],
        found: dict[RunKey, RoundRecord],
    ) -> None:
        """Take the runs that belong to this call from those that nobody has taken.

        A token names its call. Where there is none, it is the one that began first after the
        request was sent.
        """
        if not self.call:
            sent = [one.began for one in call.wire if one.method in CALL_METHODS]
            named = (one for one in begun if sent and _could_be(one, call, sent[0]))
            first = min(named, key=lambda one: one.at, default=None)
            self.call = next(iter(ids), first.call if first is not None else "")
        for key in [key for key in found if self.call and key[1] == self.call]:
            self._runs[key] = found.pop(key)

    @property
    def raised(self) -> str:
        """What the handler raised in its last run; empty for nothing."""
        runs = self.runs
        return runs[-1][1].error if runs else ""

    @property
    def diverged(self) -> tuple[str, str, str] | None:
        """Both sides of a divergence, and the cure."""
        for _, record in self.runs:
            if record.diverged is not None:
                return record.diverged
        return None

    def edited(self, starts: int) -> list[Edited]:
        """Return the files that changed between two runs of the handler, or since the last one.

        `starts` is the start of the server that is current while the call goes on.
        """
        changed: list[Edited] = []
        for file in sorted({name for _, record in self.runs for name in record.lines}):
            seen = [start for start, record in self.runs if file in record.lines]
            versions = (self._versions.text(file, start) for start in [*seen, starts])
            texts = [text for text in versions if text]
            for before, after in pairwise(texts):
                if before != after:
                    lines = difflib.unified_diff(
                        before.splitlines(), after.splitlines(), "before", "now", n=2, lineterm=""
                    )
                    changed.append(Edited(Path(file).name, "\n".join(list(lines)[:200])))
        return changed

    def files(self) -> list[ShownFile]:
        """Return the author's code with the rounds in which each line ran, the newest version."""
        shown: list[ShownFile] = []
        names = {name for _, record in self.runs for name in record.lines}
        for file in sorted(names):
            last = max(start for start, record in self.runs if file in record.lines)
            text = self._versions.text(file, last)
            runs = [
                record
                for start, record in self.runs
                if file not in record.lines or self._versions.text(file, start) == text
            ]
            if text and runs:
                shown.append(self._file(file, text, runs))
        return shown

    def _file(self, file: str, text: str, runs: Sequence[RoundRecord]) -> ShownFile:
        reading = self._versions.reading(text)
        counts: list[dict[int, int]] = []
        for record in runs:
            by_statement: dict[int, int] = {}
            for line, number in record.lines.get(file, {}).items():
                first = reading.first_line.get(line, line)
                by_statement[first] = max(by_statement.get(first, 0), number)
            counts.append(by_statement)
        ran = {line for each in counts for line in each}
        lines = [
            self._line(reading, number, counts) for number in _around(reading, ran)[:SHOWN_SOURCE]
        ]
        return ShownFile(Path(file).name, tuple(record.round for record in runs), tuple(lines))

    def _line(
        self, reading: SourceReading, number: int, counts: Sequence[dict[int, int]]
    ) -> ShownLine:
        ran = tuple(each.get(number, 0) for each in counts)
        again = sum(1 for each in ran if each) > 1
        rule = reading.wrong.get(number) if any(ran) else None
        repeated = rule is None and again and number in reading.again
        if repeated:
            rule = reading.again[number]
        text = reading.text[number - 1] if number <= len(reading.text) else ""
        instead = reading.instead.get(number, "") if repeated else ""
        code = text.expandtabs(4).lstrip(" ")
        indent = " " * min(len(text.expandtabs(4)) - len(code), DEEPEST)
        return ShownLine(number, indent, code, ran, rule, repeated, number in reading.asks, instead)


def _could_be(begun: RunBegan, call: DevCall, sent: float) -> bool:
    wanted = call.wanted
    named = begun.name == wanted.name or wanted.kind == "resource"
    return named and begun.kind == wanted.kind and sent - 0.01 <= begun.at < sent + SOON


def _around(reading: SourceReading, ran: set[int]) -> list[int]:
    """Return the lines of every function of which a line ran."""
    wanted: set[int] = set()
    for first, last, _ in reading.functions:
        if any(first < line <= last for line in ran):
            wanted.update(range(first, last + 1))
    return sorted(wanted | ran)


# --- rounds ---------------------------------------------------------------------------------------


class Timeline:
    """Reads rounds, journals and effects of a call."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def rounds(self, exchanges: Sequence[Exchange]) -> list[Round]:
        """Return the rounds of a call."""
        found: list[Round] = []
        for exchange in list(exchanges):
            if exchange.method in CALL_METHODS:
                found.append(await self._round(len(found) + 1, exchange))
        return found

    async def _round(self, number: int, exchange: Exchange) -> Round:
        message = exchange.message
        params = cast("dict[str, Any]", message.get("params") or {})
        answered = {
            key: str(cast("dict[str, Any]", answer).get("action", "answered"))
            for key, answer in cast("dict[str, Any]", params.get("inputResponses") or {}).items()
            if isinstance(answer, dict)
        }
        reply = exchange.reply
        result = cast("dict[str, Any]", (reply or {}).get("result") or {})
        asks = cast("dict[str, Any]", result.get("inputRequests") or {})
        token = str(result.get("requestState") or "")
        claims = await self.claims(token) if token else None
        journal = await self.journal(claims) if claims is not None else None
        return Round(
            number, exchange, tuple(asks), answered, _outcome(exchange, reply, result), token,
            claims, journal,
        )  # fmt: skip

    async def claims(self, token: str) -> Claims | None:
        """Open a token with the keys; None when it cannot be opened."""
        try:
            return await self._environment.sealer.inspect(token)
        except AntiphonError:
            return None

    async def journal(self, claims: Claims) -> Journal | None:
        """Return the journal of a token, from the store where it is kept there."""
        if claims.journal is not None or claims.handle is None:
            return claims.journal
        handle = claims.handle
        try:
            data = await self._environment.store.fetch(claims.call, handle.round, handle.digest)
            if data is None:
                return None
            place = f"journal {claims.call} {handle.round}"
            return decode_journal(await self._environment.reveal(data, place))
        except AntiphonError:
            return None

    async def effects(self, call: str) -> Sequence[EffectRow]:
        """Return the effects of a call."""
        if not call:
            return ()
        try:
            return await self._environment.store.effects(call)
        except StoreError:
            return ()

    def journal_lines(
        self, rounds: Sequence[Round], task: Journal | None, *, reveal: bool
    ) -> list[JournalLine]:
        """Return the entries of the newest journal, each with the round that made it.

        That of a task is in the store, and does not say in which of its runs it grew.
        """
        made: dict[tuple[str, str], int] = {}
        newest: Journal | None = None
        for one in rounds:
            if one.journal is not None:
                newest = one.journal
                for entry in newest.entries:
                    made.setdefault(_place(entry), one.number)
        newest = task or newest
        if newest is None:
            return []
        return [
            JournalLine(
                entry, made.get((entry.kind, entry.key), 0), _value(entry) if reveal else ""
            )
            for entry in newest.entries
        ]


def claims_of(rounds: Sequence[Round]) -> dict[str, str]:
    """Return what the newest token says, in words; no answers."""
    claims = next((one.claims for one in reversed(rounds) if one.claims is not None), None)
    if claims is None:
        return {}
    principal = claims.principal
    who = f"{principal.issuer} {principal.subject}".strip() or "anonymous"
    if principal.actor:
        who = f"{who} through {principal.actor}"
    return {
        "call": claims.call,
        "redeemed in round": str(claims.round),
        "method": claims.method,
        "target": claims.target,
        "handler": claims.handler + (f" (version {claims.version})" if claims.version else ""),
        "caller": f"{who} over {principal.transport}",
        "audience": claims.audience,
        "issued": moment(claims.issued),
        "expires": moment(claims.expires),
        "call ends": moment(claims.deadline),
        "waits for": ", ".join(f"{one.key} ({one.kind})" for one in claims.pending) or "nothing",
        "journal": "in the store" if claims.handle is not None else "in the token",
    }


def moment(at: float) -> str:
    """Return a point in time, to the second, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _place(entry: Entry) -> tuple[str, str]:
    return entry.kind, entry.key


def _value(entry: Entry) -> str:
    try:
        return msgspec.json.encode(entry.value()).decode()[:2_000]
    except (msgspec.DecodeError, TypeError, ValueError):
        return ""


def _outcome(exchange: Exchange, reply: dict[str, Any] | None, result: dict[str, Any]) -> str:
    if reply is None:
        if not exchange.over:
            return "running"
        return f"HTTP {exchange.status}" if exchange.status else "lost"
    if "error" in reply:
        return f"error {cast('dict[str, Any]', reply['error']).get('code')}"
    if result.get("isError"):
        return "error result"
    return str(result.get("resultType", "complete"))
