"""What every client does: the calls, and how a person answers. Every peer can import it."""

import json
import sys
from importlib.metadata import version
from typing import Any

CALLS: list[tuple[str, dict[str, str]]] = [
    ("refund", {"order": "A1", "memo": 'x"\n• Amount: "0.01 EUR'}),
    ("refund_or_say", {"order": "A1"}),
    ("migrate", {}),
]
ANSWERS = {"reason": "late", "approve": True}


def answer(schema: dict[str, Any]) -> dict[str, Any]:
    """Fill a form as the person does."""
    return {name: ANSWERS[name] for name in schema["properties"]}


def text_of(result: Any, failed: bool) -> str:
    """What a tool's result says."""
    return ("error result: " if failed else "") + result.content[0].text


def problem(error: BaseException) -> str:
    """What an exception says, and which it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def say(package: str, protocol: str, asked: list[str], calls: dict[str, str]) -> None:
    """Print what was seen, for the page."""
    found = {"version": version(package), "protocol": protocol, "asked": asked, "calls": calls}
    print(json.dumps(found))


def arguments() -> tuple[str, bool]:
    """The URL, and whether the person can be asked."""
    url, mode = sys.argv[1:3]
    return url, mode == "asks"
