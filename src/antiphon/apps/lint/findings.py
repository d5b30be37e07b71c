"""What the checks can find: an id, the reason and the cure, and where it was found."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rule:
    """A mistake that the checks know."""

    id: str
    reason: str
    cure: str


EFFECT_ABOVE_ASK = Rule(
    "effect-above-ask",
    "this looks like an effect, and the handler asks after it: every answer runs the line again",
    "wrap it: `await ctx.once(key, function, ...)`, or move it below the last question",
)
WRITE_ABOVE_ASK = Rule(
    "write-above-ask",
    "this changes something outside the handler, and the handler asks after it: every answer runs"
    " the line again, perhaps in another process",
    "keep it in a local variable, or do it with `ctx.once` or below the last question",
)
VOLATILE_QUESTION = Rule(
    "volatile-question",
    "the question contains a value that is new in every run, so the next round asks something else"
    " and the call fails as diverged",
    "take it from the call: `ctx.now()`, `ctx.uuid()`, `ctx.random()` or `await ctx.memo(...)`",
)
SWALLOWED_SUSPENSION = Rule(
    "swallowed-suspension",
    "this catches what ends a round at a question, so the handler goes on without an answer and"
    " the call fails",
    "catch `Exception` or something narrower, or raise again",
)
NOT_AWAITED = Rule(
    "not-awaited",
    "without `await` nothing is asked or done here, and the coroutine counts as true",
    "write `await` before it",
)
FRESH_GUARD = Rule(
    "fresh-guard",
    "this reads the world anew in every run and decides whether an effect is reached: after a crash"
    " it sees what the effect itself has done, and the handler ends before it",
    "read it through the call: `await ctx.memo(key, function, ...)`, or check inside the effect",
)
TIMEOUT_IN_EFFECT = Rule(
    "timeout-in-effect",
    "this effect can time out after it has happened, and nothing says how to find out: it is"
    " uncertain then, until an operator settles it",
    "give it `verify=` (look it up by its idempotency key) or `retry=True`",
)
FORM_REFUSED = Rule(
    "form-refused",
    "no form can ask for this: a nested model, a list of anything but fixed options, bytes, a value"
    " of any type, or a secret; the call fails when it gets there",
    "ask for the inner fields in a form of their own, and for secrets with `ctx.elicit_url`",
)

RULES = (
    EFFECT_ABOVE_ASK,
    WRITE_ABOVE_ASK,
    VOLATILE_QUESTION,
    SWALLOWED_SUSPENSION,
    NOT_AWAITED,
    FRESH_GUARD,
    TIMEOUT_IN_EFFECT,
    FORM_REFUSED,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a line of a handler breaks."""

    path: Path
    line: int
    column: int
    handler: str
    code: str
    rule: Rule

    def as_json(self) -> dict[str, object]:
        return {
            "path": str(self.path),
            "line": self.line,
            "column": self.column,
            "handler": self.handler,
            "code": self.code,
            "id": self.rule.id,
            "reason": self.rule.reason,
            "cure": self.rule.cure,
        }
