"""Random rules of a gateway, names and URIs, judged by the policy and by a reference beside it.

The reference knows nothing of the policy's own means. Names are matched by a few lines of its own.
A URI that passes is read as servers read it, in several ways, and none of them may open a file that
the rules keep back.
"""

import posixpath
import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from antiphon.apps.gateway.policy import Policy

Verb = Literal["allow", "deny", "approve"]

_PARTS = ["a", "b", "delete", "Delete", "DELETE", "order", "x", "_", "_", "-", "."]
_LOOK_ALIKES = {"e": "\u0435", "a": "\u0430", "d": "\uff44", "l": "\uff4c", "o": "\u043e"}
_FOLDERS = [
    "etc",
    "ETC",
    "srv",
    "public",
    "Public",
    "home",
    "..",
    ".",
    "",
    "%2e%2e",
    "%2E.",
    "e%74c",
]
_FILES = ["passwd", "x", "", "..", "%70asswd", "x?y", "x#y", "x;y", "a%2fb", "a%5cb", "%252e"]
_BEGINNINGS = [
    "file:///", "file:/", "FILE:///", "File:////", "file://localhost/", "file://LOCALHOST/",
    "file://127.0.0.1/", "file://[::1]/", "file://u@localhost/", "file:", "file://other/", "file:///%2f",
]  # fmt: skip


@dataclass
class PolicyVerdict:
    """What a run has found."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def summary(self, name: str, seconds: float) -> str:
        """Return one line of figures."""
        counts = ", ".join(f"{key} {count}" for key, count in sorted(self.outcomes.items()))
        return f"{name}: {counts} in {seconds:.0f} s; {len(self.wrong)} wrong"


def run_policies(count: int, seed: int) -> PolicyVerdict:
    """Judge random names and URIs by random rules."""
    chance, verdict = random.Random(seed), PolicyVerdict()
    for _ in range(count // 2):
        _judge_name(chance, verdict)
        _judge_uri(chance, verdict)
    return verdict


# --- names ---------------------------------------------------------------------------------------


def glob(pattern: str, text: str) -> bool:
    """Match `*` and `?`, by hand."""
    reached = {0}
    for char in pattern:
        if char == "*":
            reached = set(range(min(reached, default=len(text) + 1), len(text) + 1))
        else:
            reached = {
                at + 1 for at in reached if at < len(text) and (char == "?" or text[at] == char)
            }
    return len(text) in reached


def fold(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _name(chance: random.Random) -> str:
    text = "".join(chance.choices(_PARTS, k=chance.randint(1, 4)))
    if chance.random() < 0.2:
        at = chance.randrange(len(text))
        text = text[:at] + _LOOK_ALIKES.get(text[at], "\u200b") + text[at + 1 :]
    return text


def _pattern(chance: random.Random) -> str:
    mark = chance.choice(["", "", "", "tool:", "prompt:"])
    text = "".join(chance.choices([*_PARTS, "*", "*", "?"], k=chance.randint(1, 4)))
    return mark + text


def _expected(rules: dict[Verb, list[str]], default: str | None, kind: str, name: str) -> str:
    """Decide by the sentences of the documentation."""

    def of(verb: Verb) -> list[str]:
        found: list[str] = []
        for pattern in rules[verb]:
            mark, colon, rest = pattern.partition(":")
            if not colon or mark == kind:
                found.append(rest if colon else pattern)
        return [] if verb == "approve" and kind != "tool" else found

    closed = default or ("deny" if rules["allow"] else "allow")
    if closed == "allow" and not of("deny") and not of("approve"):
        return "passes"
    if not name.isascii() and not unicodedata.normalize("NFKC", name).isascii():
        return "denied"
    if any(glob(fold(pattern), fold(name)) for pattern in of("deny")):
        return "denied"
    allowed = any(glob(pattern, name) for pattern in of("allow"))
    asked = any(glob(fold(pattern), fold(name)) for pattern in of("approve"))
    hidden = closed == "deny" and bool(rules["allow"]) and not allowed
    if asked and not hidden:
        return "approval"
    if allowed or closed == "allow":
        return "passes"
    return "approval" if closed == "approve" and kind == "tool" else "denied"


def _judge_name(chance: random.Random, verdict: PolicyVerdict) -> None:
    rules: dict[Verb, list[str]] = {
        "allow": [_pattern(chance) for _ in range(chance.choice([0, 0, 1, 2]))],
        "deny": [_pattern(chance) for _ in range(chance.choice([0, 1, 2]))],
        "approve": [
            _pattern(chance).replace("prompt:", "tool:") for _ in range(chance.choice([0, 1, 2]))
        ],
    }
    default: Any = chance.choice([None, None, "allow", "approve", "deny"])
    kind: Any = chance.choice(["tool", "prompt"])
    name = _name(chance)
    found = Policy.read(**rules, default=default).judge(kind, name)
    said = "denied" if not found.passes else "passes" if found.approval is None else "approval"
    verdict.outcomes[f"name {said}"] += 1
    expected = _expected(rules, default, kind, name)
    if said != expected:
        verdict.wrong.append(
            f"{kind} {name!r} by {rules} default {default}: {said}, not {expected}"
        )


# --- URIs ----------------------------------------------------------------------------------------

READERS: tuple[Callable[[str], str], ...] = (
    lambda uri: unquote(urlsplit(uri).path),
    lambda uri: unquote(unquote(urlsplit(uri).path)),
    lambda uri: unquote(uri.partition(":")[2].partition("?")[0].partition("#")[0]),
    lambda uri: unquote(uri.partition(":")[2]).replace("\\", "/"),
    lambda uri: uri.partition(":")[2].removeprefix("//localhost"),
)
"""How servers make a path of a URI: by the book, decoding twice, by hand, on Windows, as it is."""


def opened(uri: str) -> set[str]:
    """Return the files that servers open for a URI, without case."""
    paths = {reader(uri) for reader in READERS}
    return {posixpath.normpath("/" + path.lstrip("/")).casefold() for path in paths}


def _uri(chance: random.Random) -> str:
    folders = chance.choices(_FOLDERS, k=chance.randint(1, 5))
    text = chance.choice(_BEGINNINGS) + "/".join([*folders, chance.choice(_FILES)])
    if chance.random() < 0.3:
        at = chance.randrange(len(text))
        put = chance.choice([f"%{ord(text[at]):02x}", "\\", "/", "\u2024", text[at].swapcase()])
        text = text[:at] + put + text[at + 1 :]
    return text


def _judge_uri(chance: random.Random, verdict: PolicyVerdict) -> None:
    uri, listed = _uri(chance), chance.random() < 0.5
    denying = chance.random() < 0.5
    if denying:
        policy = Policy.read(deny=["file:///etc/*"], allow=["file:*"])
    else:
        policy = Policy.read(allow=["file:///srv/public/*"])
    found, sent = policy.judge_uri(uri, listed=listed)
    verdict.outcomes[f"URI {'passes' if found.passes else 'denied'}"] += 1
    if not found.passes:
        return
    kept_back = _in_etc if denying else _out_of_public
    bad = [path for path in opened(sent) if kept_back(path)]
    if bad:
        verdict.wrong.append(f"{uri!r} was sent as {sent!r}, which opens {bad}")


def _in_etc(path: str) -> bool:
    return path.startswith("/etc/")


def _out_of_public(path: str) -> bool:
    return not f"{path}/".startswith("/srv/public/")
