"""Conversations kept as files: what calls in flight will meet when they meet today's code.

A conversation is every request of a story with its token and what came back. Replayed, each of
its tokens is brought to a server made by today's code, as by a client that was asked before the
code was changed. A file holds the answers of its story, and tokens that the key of the tests opens.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from antiphon.protocol.request import Principal
from antiphon.testing.doubles import FakeClock, Tally
from antiphon.testing.harness import EVERYTHING, Factory, Rounds, RoundTrip
from antiphon.testing.story_world import Plan, StoryWorld
from antiphon.testing.what_if import Story

_FORMAT = 1
_DIVERGED = "this re-run diverged"


class KeptRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of a conversation, and what came back."""

    method: str
    params: dict[str, Any]
    at: float
    """When it was sent, by the clock of the world."""

    asks: dict[str, str] = {}
    """What came back: questions, by key."""

    text: str = ""
    """What came back: a result."""

    error: bool = False
    needs_store: bool = False
    """Whether its token is worth nothing without the store that it was made with."""

    @property
    def token(self) -> bool:
        """Whether it brings a token."""
        return "requestState" in self.params

    @property
    def came(self) -> tuple[dict[str, str], str, bool]:
        """What came back."""
        return self.asks, self.text, self.error


class Conversation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Every request of a story."""

    requests: list[KeptRequest]
    capabilities: dict[str, Any]
    principal: Principal
    format: int = _FORMAT

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, in a form that version control shows line by line."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=1)
        Path(path).write_bytes(text + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Conversation":
        """Read it from a file.

        Raises:
            ValueError: It holds no conversation, or one of a later release.
        """
        text = Path(path).read_bytes()
        try:
            format = msgspec.json.decode(text, type=_Format).format
            if format > _FORMAT:
                raise ValueError(f"{path} was written by a later release (format {format})")
            read = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} holds no conversation: {error}") from None
        if not any(one.token for one in read.requests):
            raise ValueError(f"{path} holds no conversation: no request brings a token")
        return read


class _Format(msgspec.Struct):
    format: int = _FORMAT


@dataclass(frozen=True)
class Continuation:
    """What a client that waits since the recording gets from today's code."""

    request: int
    """Its number in the conversation, from 1."""

    before: str
    now: str
    diverged: bool = False
    failed: bool = False
    """Whether the call fails now, and did not."""

    def __str__(self) -> str:
        """Tell both sides."""
        word = "Diverged" if self.diverged else "broken" if self.failed else "changed"
        return f"request {self.request}: {word}: {self.now} (recorded: {self.before})"


@dataclass(frozen=True)
class ConversationReport:
    """How calls in flight fare with today's code."""

    replayed: int
    """How many requests with a token were brought."""

    broken: tuple[Continuation, ...] = ()
    """Calls that fail now, and did not."""

    changed: tuple[Continuation, ...] = ()
    """Calls that are asked or told something else, and go on."""

    left_out: tuple[int, ...] = ()
    """Requests that need the store they were made with: those about tasks, and some tokens."""

    def check(self) -> None:
        """Fail a test when a call in flight would be broken.

        Raises:
            AssertionError: It lists them.
        """
        if self.broken:
            lines = "\n".join(map(str, self.broken))
            raise AssertionError(
                f"{len(self.broken)} of {self.replayed} calls in flight would be broken\n{lines}\n"
                "Keep what they come past as it was, or change it with ctx.patched(...) or "
                "version=; then record the conversation anew."
            )


async def record(
    make_server: Factory,
    story: Story,
    *,
    capabilities: Mapping[str, Any] = EVERYTHING,
    principal: Principal | None = None,
) -> Conversation:
    """Run a story, and keep its conversation.

    Raises:
        ValueError: The story sends no request with a token.
    """
    nowhere = Tally(os.devnull)
    world = StoryWorld(
        make_server, nowhere, Plan(), (), capabilities=capabilities, principal=principal
    )
    async with world:
        await story(world)
    kept = [
        KeptRequest(sent.method, dict(sent.params), sent.at, *_came(sent.step))
        for sent in world.sent
    ]
    if not any(one.token for one in kept):
        raise ValueError(
            "the story has no round after a question: there is nothing to replay. What a task has "
            "asked lies in the store, and cannot be kept in a file"
        )
    made = Conversation(kept, world.capabilities, world.principal)
    report = await replay(make_server, made)
    lost = {one.request for one in report.broken}
    requests = [
        msgspec.structs.replace(one, needs_store=number in lost)
        for number, one in enumerate(kept, 1)
    ]
    return msgspec.structs.replace(made, requests=requests)


async def replay(make_server: Factory, conversation: Conversation) -> ConversationReport:
    """Bring every token of a conversation to a server of its own made by today's code."""
    broken: list[Continuation] = []
    changed: list[Continuation] = []
    left_out: list[int] = []
    count = 0
    for number, kept in enumerate(conversation.requests, 1):
        if not kept.token and kept.method != "tasks/update":
            continue
        if kept.needs_store or not kept.token:
            left_out.append(number)
            continue
        count += 1
        async with Rounds(
            make_server,
            clock=FakeClock(kept.at),
            capabilities=conversation.capabilities,
            principal=conversation.principal,
        ) as world:
            step = await world.send(kept.method, kept.params)
        came = _came(step)
        if came != kept.came:
            failed, diverged = came[2] and not kept.error, _DIVERGED in step.text
            one = Continuation(number, _told(*kept.came), _told(*came), diverged, failed)
            (broken if failed else changed).append(one)
    return ConversationReport(count, tuple(broken), tuple(changed), tuple(left_out))


def _came(step: RoundTrip) -> tuple[dict[str, str], str, bool]:
    """Return what of a reply is compared. Tokens are new every time."""
    asks = {key: ask.message or ask.method for key, ask in step.asks.items()}
    return asks, "" if asks else step.text, step.is_error


def _told(asks: Mapping[str, str], text: str, error: bool) -> str:
    if asks:
        return f"asks {', '.join(f'{key!r} ({message})' for key, message in asks.items())}"
    return f"{'fails with' if error else 'ends with'} {text!r}"
