"""What can be done to a round on purpose, and the promises that are held against the outcome."""

from typing import Final

import msgspec

DISTURBANCES: Final[tuple[tuple[str, str], ...]] = (
    ("again", "Send again"),
    ("other", "Send with another answer"),
    ("tamper", "Tamper"),
    ("expire", "Expire"),
    ("somebody", "As somebody else"),
    ("kill", "Kill the server"),
    ("forget", "Forget the answer"),
)
TITLES: Final[dict[str, str]] = dict(DISTURBANCES)

REFUSED = (
    "A token is good for the request it was issued for only: unchanged, in time, for the same "
    "caller. Every refusal is the same error for the client; the reason is in the log only. The "
    "call itself is not harmed."
)
ONCE = (
    "A token is redeemed once. The same token with the same answers gets the recorded outcome, and "
    "no effect happens again; with other answers it is refused."
)
NEW = (
    "A request without a token is always a new call. What stands above its first question happens "
    "again: ask first, act afterwards, or use restarts=, scope= or anchor=."
)
HELD = (
    "A call that waits for somebody's decision is found again by the same caller with the same "
    "arguments, before its first line: nothing happens twice. A caller without a name cannot be "
    "recognised, so that its call is a new one."
)
KILLED = (
    "A process that dies changes nothing about the result of a call: what it knows is in its token "
    "and in the store. An effect that was cut in two is reported as uncertain and not repeated."
)
LATE = (
    "A round that was redeemed in time is answered with its recorded outcome also when its token "
    "has expired since; nothing runs again."
)
MISSING = "An answer that is missing is asked for again; nothing is guessed."


class Disturbance(msgspec.Struct, frozen=True):
    """What was done, what came of it, and what is promised."""

    what: str
    title: str
    came: str
    promise: str
    kept: bool
