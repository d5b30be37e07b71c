"""What can be wrong with a call of several rounds, each with the cure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

ProblemId: TypeAlias = Literal[
    "story-fails",
    "runs-again",
    "starts-over",
    "needs-memory",
    "time-matters",
    "duplicate-differs",
    "tampered-accepted",
    "moved-accepted",
    "expired-accepted",
    "stranger-accepted",
    "other-answer-accepted",
    "unasked-accepted",
    "refusal-acts",
    "silence-acts",
]

CURES: dict[ProblemId, str] = {
    "story-fails": "mend the handler or the story: nothing else was tried",
    "runs-again": "put what has an effect into ctx.once, or below the last question",
    "starts-over": 'ask first and act afterwards, or set restarts="adopt" so that a call that its '
    "client begins anew goes on",
    "needs-memory": "keep nothing between rounds but what ctx.once, ctx.memo and answers bring "
    "back",
    "time-matters": "ask the same question in every round: take times and random values from "
    "ctx.memo, ctx.now or ctx.random",
    "duplicate-differs": "let a round that is sent twice act once: redeem its token in a store "
    "that all servers share, and act in ctx.once",
    "tampered-accepted": "authenticate the state, and refuse what was changed",
    "moved-accepted": "bind the state to the tool and the arguments that were asked about",
    "expired-accepted": "let the state expire",
    "stranger-accepted": "bind the state to the caller who was asked",
    "other-answer-accepted": "redeem a token once: whoever has it must not answer a second time",
    "unasked-accepted": "take only answers to what was asked in the round before",
    "refusal-acts": "act on an explicit yes only: ctx.approve is false for every other answer",
    "silence-acts": "act on answers only; what was not answered must be asked again",
}


@dataclass(frozen=True)
class Problem:
    """One thing that must not happen, and did."""

    id: ProblemId
    run: str
    """In which run it happened, in words."""

    detail: str

    @property
    def cure(self) -> str:
        """What helps."""
        return CURES[self.id]

    def __str__(self) -> str:
        """Tell it in a line, and the cure in another."""
        return f"{self.id} ({self.run}): {self.detail}\n    {self.cure}"
