"""What happened, from the files that the servers wrote, held against what the clients were told."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.failpoints import POINTS, Points

KEYS = ("one", "two", "three")


@dataclass
class Heard:
    """What all clients together were told."""

    done: dict[str, str] = field(default_factory=dict[str, str])
    """Final texts by label."""

    uncertain: list[str] = field(default_factory=list[str])
    """Effects of unknown end, as call and key."""

    words: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The answers that were given, by label."""

    lost: list[str] = field(default_factory=list[str])
    """Calls that ended without their result."""

    differing: list[str] = field(default_factory=list[str])
    """Copies and replays of a round that were told something else."""

    taken: list[str] = field(default_factory=list[str])
    """Spent rounds that took other answers."""

    unsettled: list[str] = field(default_factory=list[str])
    """Effects of unknown end that one command did not settle."""

    settled: set[str] = field(default_factory=set[str])
    """Labels of calls in which an operator settled an effect."""

    counts: Counter[str] = field(default_factory=Counter[str])


class Truth:
    """What happened, from the files that the servers wrote."""

    def __init__(self, folder: Path) -> None:
        self.effects: Counter[tuple[str, str]] = Counter()
        self.nonces: dict[tuple[str, str], str] = {}
        for line in (folder / "effects").read_text().splitlines():
            label, key, nonce, _ = line.split()
            self.effects[label, key] += 1
            self.nonces[label, key] = nonce
        begun = _lines(folder / "begun") - _lines(folder / "refused")
        self._begun = {line.split(" ", 1)[1] for line in begun}
        self._open = self._begun - _lines(folder / "settled")
        self._killed = Points.killed(folder)
        self.pauses = Points.paused(folder)
        self.hits = Points.hits(folder)

    def cut_by(self, effect: str) -> set[str]:
        """Return where the processes were killed that had begun an effect and not settled it."""
        killed = {point for pid, point in self._killed.items() if f"{pid} {effect}" in self._open}
        stopped = any(f"{pid} {effect}" in self._begun for pid in self.pauses)
        return killed or ({"a pause"} if stopped else set())


def _lines(path: Path) -> set[str]:
    return set(path.read_text().splitlines())


@dataclass(frozen=True)
class Verdict:
    """The figures of one run."""

    name: str
    heard: Heard
    truth: Truth
    restarts: int
    seconds: float
    unlisted: list[str]

    @property
    def repeated(self) -> dict[tuple[str, str], int]:
        """Effects that happened more than once."""
        return {effect: times for effect, times in self.truth.effects.items() if times > 1}

    @property
    def mixed(self) -> list[str]:
        """Results that hold another answer or another effect than those of their call."""
        return [
            label
            for label, text in self.heard.done.items()
            if text.split()
            != [
                part
                for word, key in zip(self.heard.words[label], KEYS, strict=True)
                for part in (word, self.truth.nonces.get((label, key), "none"))
            ]
        ]

    @property
    def row(self) -> list[str]:
        """The figures as a row of the table."""
        heard, counts = self.heard, self.heard.counts
        went_on = len(heard.settled & set(heard.done))
        return [
            self.name,
            f"{sum(self.truth.hits.values())} / {len(self.truth.pauses)} / {self.restarts}",
            str(counts["rounds sent"]),
            str(len(heard.words)),
            str(len(heard.done)),
            str(len(heard.uncertain)),
            str(len(heard.lost)),
            f"{len(self.repeated)} / {sum(self.truth.effects.values())}",
            str(len(self.mixed)),
            f"{len(heard.differing)} / {counts['rounds replayed']}",
            f"{len(heard.taken)} / {counts['other answers sent']}",
            f"{went_on} / {len(heard.settled)}",
        ]

    def details(self) -> list[str]:
        """What the table does not say."""
        causes: Counter[str] = Counter()
        for effect in self.heard.uncertain:
            causes.update(self.truth.cut_by(effect) or {"no kill"})
        kills = ", ".join(f"{point} {self.truth.hits[point]}" for point in POINTS)
        return [
            f"{len(self.heard.words)} calls in {self.seconds:.0f} s; kills: {kills}",
            "of unknown end because of: "
            + (", ".join(f"{point} {count}" for point, count in causes.items()) or "nothing"),
            *(f"{name}: {count}" for name, count in sorted(self.heard.counts.items())),
            *(f"lost: {call}" for call in self.heard.lost),
            *(f"not settled: {call}" for call in self.heard.unsettled),
            *(f"differing: {call}" for call in self.heard.differing[:10]),
            *(f"taken: {call}" for call in self.heard.taken[:10]),
        ]

    def check(self, *, kills: int) -> None:
        """Hold the promises, with processes dying at every step."""
        heard = self.heard
        assert self.repeated == {}, "an effect happened twice"
        assert self.mixed == [], "an answer or a result was lost"
        assert heard.differing == []
        assert heard.taken == []
        assert heard.unsettled == []
        assert heard.lost == [], "a call did not end as it should"
        assert set(heard.done) == set(heard.words), "a call did not end"
        assert self.unlisted == [], "an operator was not shown an effect of unknown end"
        assert self.truth.hits == dict.fromkeys(POINTS, kills)
        assert set(self.truth.effects) == {(label, key) for label in heard.done for key in KEYS}
        if not self.restarts:
            unexplained = [one for one in heard.uncertain if not self.truth.cut_by(one)]
            assert unexplained == [], "of unknown end although nobody died inside it"


HEAD = [
    "run", "kills / pauses / restarts", "rounds sent", "calls", "complete", "uncertain", "lost",
    "effects > 1", "mixed", "replays differ", "other answers taken", "settled and went on",
]  # fmt: skip
EARLIER = """
0.1.0, SQLite hard;41 / 19 / 0;24450;320;310;10;0;0 / 949;0;0 / 280;0 / 160;36 / 46 *
0.1.0, PostgreSQL hard;24 / 16 / 0;16533;320;266;44;10;0 / 899;0;0 / 295;0 / 135;*
0.1.0, Redis hard;28 / 11 / 0;12342;320;309;11;0;0 / 948;0;0 / 302;0 / 177;*
0.1.0, PostgreSQL steady;9 / 2 / 0;4219;320;315;5;0;0 / 949;0;0 / 505;0 / 285;*
"""
"""What 0.1.0 did under another load of 320 calls, as rows of the table."""


def table(verdicts: list[Verdict]) -> str:
    """Lay the figures out beside those of an earlier version."""
    earlier = [line.split(";") for line in EARLIER.strip().splitlines()]
    rows = [HEAD, *earlier, *(verdict.row for verdict in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([*lines, "* all runs of 0.1.0 together"])
