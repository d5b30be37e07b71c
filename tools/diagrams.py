"""Draws the diagrams of the documentation as SVG: `python -m tools.diagrams`.

A diagram is a list of lanes and of steps between them, so that changing one is changing a line. A
test holds the files in step with what is written here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images"

WIDTH = 900
TOP = 64
ROW = 34
INK, QUIET, FAINT = "#1f2933", "#52606d", "#9aa5b1"
PAPER, NOTE, STOP = "#ffffff", "#fff6db", "#fde3e3"


@dataclass(frozen=True)
class Arrow:
    """A message from one lane to another."""

    start: int
    end: int
    text: str
    dashed: bool = False


@dataclass(frozen=True)
class Box:
    """What happens in a lane."""

    lane: int
    text: str
    colour: str = NOTE


@dataclass(frozen=True)
class Gap:
    """Something that takes time, or a boundary, across all lanes."""

    text: str


@dataclass(frozen=True)
class Diagram:
    """Lanes, and what happens between them, from the top down."""

    title: str
    about: str
    lanes: Sequence[str]
    steps: Sequence[Arrow | Box | Gap] = field(default_factory=tuple)

    def svg(self) -> str:
        """Draw it."""
        height = TOP + ROW * (len(self.steps) + 1)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-labelledby="title about" font-family="sans-serif" font-size="13">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="about">{escape(self.about)}</desc>',
            f'<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" '
            f'orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="{INK}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
        ]
        for number, name in enumerate(self.lanes):
            x = self._x(number)
            parts.append(
                f'<line x1="{x}" y1="44" x2="{x}" y2="{height - 12}" stroke="{FAINT}"/>'
                f'<text x="{x}" y="30" text-anchor="middle" font-weight="bold" '
                f'fill="{INK}">{escape(name)}</text>'
            )
        parts += [
            self._step(step, TOP + ROW * number + 14) for number, step in enumerate(self.steps)
        ]
        return "\n".join([*parts, "</svg>", ""])

    def _x(self, lane: int) -> int:
        each = WIDTH // len(self.lanes)
        return each * lane + each // 2

    def _step(self, step: Arrow | Box | Gap, y: int) -> str:
        if isinstance(step, Gap):
            return (
                f'<line x1="24" y1="{y}" x2="{WIDTH - 24}" y2="{y}" stroke="{FAINT}" '
                f'stroke-dasharray="2 5"/>{_label(WIDTH // 2, y + 4, step.text, QUIET, PAPER)}'
            )
        if isinstance(step, Box):
            return _label(self._x(step.lane), y + 4, step.text, INK, step.colour, framed=True)
        x1, x2 = self._x(step.start), self._x(step.end)
        x2 += -4 if x2 > x1 else 4
        dash = ' stroke-dasharray="5 4"' if step.dashed else ""
        middle = (x1 + x2) // 2
        return (
            f'<line x1="{x1}" y1="{y + 6}" x2="{x2}" y2="{y + 6}" stroke="{INK}"{dash} '
            f'marker-end="url(#head)"/>{_label(middle, y, step.text, INK, PAPER)}'
        )


def _label(x: int, y: int, text: str, ink: str, paper: str, *, framed: bool = False) -> str:
    width = int(len(text) * 6.7) + 14
    edge = f' stroke="{FAINT}"' if framed else ""
    height = 19 if framed else 16
    return (
        f'<rect x="{x - width // 2}" y="{y - 14}" width="{width}" height="{height}" rx="4" '
        f'fill="{paper}"{edge}/><text x="{x}" y="{y}" text-anchor="middle" '
        f'fill="{ink}">{escape(text)}</text>'
    )


ONE_CALL = Diagram(
    "One call in three rounds",
    "The client calls a tool; the handler asks, and the round ends with a sealed token. The client "
    "answers with the token, perhaps to another process; the handler runs again from its first "
    "line, reads the recorded answer, and asks for approval. In the third round the effect happens "
    "and the call completes.",
    ("person", "client", "any process", "store"),
    (
        Arrow(1, 2, "tools/call"),
        Box(2, "line 1: ctx.elicit(...) ends the round"),
        Arrow(2, 1, "input_required + sealed token", dashed=True),
        Arrow(1, 0, "the form"),
        Gap("minutes or days; nothing is kept for this call"),
        Arrow(0, 1, "the answer"),
        Arrow(1, 2, "tools/call + token + answer"),
        Arrow(2, 3, "redeem the token, once"),
        Box(2, "from line 1 again; the answer is known"),
        Box(2, "line 2: ctx.approve(...) ends the round"),
        Arrow(2, 1, "input_required + the next token", dashed=True),
        Arrow(0, 1, "yes"),
        Arrow(1, 2, "tools/call + token + yes"),
        Arrow(2, 3, "claim the effect"),
        Box(2, "line 3: ctx.once(...) acts"),
        Arrow(2, 3, "record the effect and the outcome"),
        Arrow(2, 1, "complete", dashed=True),
    ),
)

HELD = Diagram(
    "A call that somebody else decides",
    "The handler asks for approval by a role. The call waits in the store, and the client is told "
    "so. Somebody of that role signs in to the console and approves. A task run goes on from "
    "there, and the effect happens once, whether or not the client comes back.",
    ("client", "server", "store", "somebody of finance"),
    (
        Arrow(0, 1, "tools/call refund"),
        Box(1, 'ctx.approve(by="finance")'),
        Arrow(1, 2, "the journal, and a question"),
        Arrow(1, 0, "a task, a link, or: not done yet", dashed=True),
        Gap("up to eight hours"),
        Arrow(3, 1, "signs in; the question is shown"),
        Arrow(3, 1, "Approve"),
        Arrow(1, 2, "the decision, in the chain"),
        Box(2, "the call is due"),
        Arrow(2, 1, "any worker claims the run"),
        Box(1, "from line 1 again; the yes is known"),
        Arrow(1, 2, "claim, act, record: once"),
        Arrow(0, 1, "tasks/get, or the same call again"),
        Arrow(1, 0, "Refunded.", dashed=True),
    ),
)

REPLAY = Diagram(
    "What a re-run reads",
    "In every round the handler runs from its first line. What the journal holds is read and "
    "compared by key and by the question that was shown; the first thing that it does not hold "
    "is done or asked. Code that takes another path ends the call with Diverged.",
    ("the handler", "the journal", "the world"),
    (
        Arrow(0, 1, "elicit 'placement': the same question?"),
        Arrow(1, 0, "the answer of round 1", dashed=True),
        Arrow(0, 1, "memo 'price': known?"),
        Arrow(1, 0, "the value of round 1", dashed=True),
        Arrow(0, 1, "once 'reserve': the same arguments?"),
        Arrow(1, 0, "its result; it does not run again", dashed=True),
        Arrow(0, 1, "approve: not known"),
        Box(0, "the round ends here"),
        Gap("the next round comes this far, knows the yes, and goes on"),
        Arrow(0, 2, "once 'pay': claimed in the store, then called"),
        Arrow(2, 1, "its result is recorded before the reply", dashed=True),
        Gap("other code, another question under a known key"),
        Box(0, "Diverged: both sides are named", STOP),
    ),
)

DIAGRAMS = {"one-call.svg": ONE_CALL, "held-call.svg": HELD, "replay.svg": REPLAY}


def main() -> None:
    """Write every diagram."""
    for name, diagram in DIAGRAMS.items():
        (FOLDER / name).write_text(diagram.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
