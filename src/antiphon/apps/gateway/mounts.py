"""The mounts of one server: open while any of its transports runs. Most servers have none."""

import asyncio
import logging
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from antiphon.errors import ConfigError, StartError
from antiphon.protocol.failures import log_failure
from antiphon.protocol.text import folded, safe

_log = logging.getLogger("antiphon.gateway")

_NAMES_NOTHING = "%s: the rule %r names nothing that is listed"
MAX_OWNED = 20_000
"""Names and URIs that one server can have had since the start; its later ones are left out."""

_TOLD = 200
"""Lines of the table that are logged when lists have changed."""


@dataclass(frozen=True, slots=True)
class UnmatchedRule:
    """A rule that names nothing that a server lists."""

    text: str
    shared: bool = False
    """Whether it is for several servers."""

    lenient: bool = False
    """Whether that is only logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountReport:
    """What the rules of a mount make of what its server offers."""

    name: str
    lines: tuple[tuple[str, str, str], ...]
    """Kind, name and verdict of each entry."""

    unmatched: tuple[UnmatchedRule, ...] = ()
    matched: frozenset[str] = frozenset()
    """Rules that name something."""


class Owners:
    """Who had a name first keeps it, also while its server lists nothing."""

    def __init__(self) -> None:
        """Nobody has a name yet."""
        self._names: dict[tuple[str, str], object] = {}
        self._counts: Counter[object] = Counter()
        self._uris: dict[object, OwnedUris] = {}

    def claim(self, kind: str, name: str, owner: object) -> bool:
        """Return whether a tool or prompt may have this name, and note whose it is."""
        key = (kind, folded(name))
        if key not in self._names:
            if not self._may_have_more(owner):
                return False
            self._names[key] = owner
        return self._names[key] is owner

    def claim_uris(self, uri: str, owner: object, *, template: bool) -> bool:
        """Return whether a resource or the resources of a template may be of this server."""
        beginning = uri.partition("{")[0].lower() if template else uri.lower()
        own = self._uris.setdefault(owner, OwnedUris())
        for whose, uris in self._uris.items():
            if whose is not owner and uris.overlap(beginning, template=template):
                return False
        if own.has(beginning, template=template):
            return True
        if not self._may_have_more(owner):
            return False
        own.add(beginning, template=template)
        return True

    def is_of_another(self, uri: str, owner: object) -> bool:
        """Return whether a URI belongs to another server, listed at present or not."""
        return any(
            uris.overlap(uri.lower(), template=False)
            for whose, uris in self._uris.items()
            if whose is not owner
        )

    def _may_have_more(self, owner: object) -> bool:
        self._counts[owner] += 1
        return self._counts[owner] <= MAX_OWNED


class OwnedUris:
    """The URIs of one server: whole ones, and beginnings that its templates have."""

    def __init__(self) -> None:
        """There are none yet."""
        self._whole: list[str] = []
        self._beginnings: list[str] = []
        self._lengths: set[int] = set()

    def has(self, uri: str, *, template: bool) -> bool:
        """Return whether exactly this one is known."""
        return _found(self._beginnings if template else self._whole, uri)

    def add(self, uri: str, *, template: bool) -> None:
        """Add a whole URI, or a beginning."""
        insort(self._beginnings if template else self._whole, uri)
        if template:
            self._lengths.add(len(uri))

    def overlap(self, uri: str, *, template: bool) -> bool:
        """Return whether a URI, or one that begins so, can be one of these."""
        if any(_found(self._beginnings, uri[:length]) for length in self._lengths):
            return True
        if not template:
            return _found(self._whole, uri)
        return _begins(self._whole, uri) or _begins(self._beginnings, uri)


def _found(ordered: list[str], text: str) -> bool:
    at = bisect_left(ordered, text)
    return at < len(ordered) and ordered[at] == text


def _begins(ordered: list[str], beginning: str) -> bool:
    at = bisect_left(ordered, beginning)
    return at < len(ordered) and ordered[at].startswith(beginning)


class Mounted(Protocol):
    """A server behind ours; `Mount` in `mount.py`, which needs the official SDK."""

    @property
    def name(self) -> str:
        """How logs call it."""
        ...

    @property
    def needs_console(self) -> bool:
        """Whether somebody has to approve some of its calls in the inbox."""
        ...

    @property
    def report(self) -> MountReport:
        """What becomes of everything it offers, and which rules name nothing."""
        ...

    async def start(self) -> None:
        """Connect, register what there is, and follow its changes."""
        ...

    async def stop(self) -> None:
        """Unregister everything, and end every connection."""
        ...


class Mounts:
    """The mounts of one server: open while any of its transports runs."""

    def __init__(self) -> None:
        """There are none yet."""
        self.owners: Owners = Owners()
        self._mounts: list[Mounted] = []
        self._users = 0
        self._moving = asyncio.Lock()

    def add(self, mount: Mounted) -> None:
        """Mount a server when the first transport starts.

        Raises:
            ConfigError: One runs already.
        """
        if self._users:
            raise ConfigError("mount servers before this one starts")
        self._mounts.append(mount)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep every mount open meanwhile."""
        async with self._moving:
            if not self._users:
                await self._open_all()
            self._users += 1
        try:
            yield
        finally:
            async with self._moving:
                self._users -= 1
                if not self._users:
                    await self._close_all(self._mounts)

    async def _open_all(self) -> None:
        started: list[Mounted] = []
        try:
            for mount in self._mounts:
                started.append(mount)
                await mount.start()
            check_rules([mount.report for mount in self._mounts])
        except BaseException:
            await self._close_all(started)
            raise

    async def _close_all(self, mounts: Sequence[Mounted]) -> None:
        for mount in reversed(mounts):
            try:
                await mount.stop()
            except Exception as error:  # noqa: BLE001 - the others are left all the same
                log_failure(_log, error, "%s could not be left in order", mount.name)


def check_rules(reports: Sequence[MountReport]) -> None:
    """Show what becomes of everything, and refuse rules that name nothing.

    Raises:
        StartError: There is such a rule.
    """
    table = policy_table(reports)
    for line in table:
        _log.info("%s", line)
    unmatched = unmatched_rules(reports)
    for name, rule in unmatched:
        if rule.lenient:
            _log.warning(_NAMES_NOTHING, name, rule.text)
    strict = [f"{rule.text!r} ({name})" for name, rule in unmatched if not rule.lenient]
    if strict:
        offered = "\n  ".join(table) or "nothing"
        raise StartError(
            f"These rules name nothing, so they keep nothing back: {', '.join(strict)}. Write the "
            f'names as the server does, or set unmatched="warn". It offers:\n  {offered}'
        )


def unmatched_rules(reports: Sequence[MountReport]) -> list[tuple[str, UnmatchedRule]]:
    """Return the rules that name nothing, by mount; one for several servers may name it at any."""
    matched = frozenset[str]().union(*(report.matched for report in reports))
    found: dict[tuple[str, str], UnmatchedRule] = {}
    for report in reports:
        for rule in report.unmatched:
            if not rule.shared:
                found[report.name, rule.text] = rule
            elif rule.text not in matched:
                known = found.get(("every server", rule.text), rule)
                found["every server", rule.text] = rule if rule.lenient else known
    return [(name, rule) for (name, _), rule in found.items()]


def tell_changes(before: MountReport, after: MountReport) -> None:
    """Log what a server has changed in its lists, and warn if a rule names nothing any more."""
    new = [line for line in after.lines if line not in before.lines]
    for line in policy_table([replace(after, lines=tuple(new[:_TOLD]))]):
        _log.info("now %s", line)
    lost = [rule.text for rule in after.unmatched if rule.text in before.matched]
    for text in lost:
        _log.warning(_NAMES_NOTHING, after.name, text)
    if lost:
        table = policy_table([replace(after, lines=after.lines[:_TOLD])])
        _log.warning("%s offers now: %s", after.name, "; ".join(table) or "nothing")


def policy_table(reports: Sequence[MountReport]) -> list[str]:
    """Return a line for each entry: its mount, kind, name, and what becomes of it."""
    return [
        f"{report.name}: {kind} {safe(name, 100)}: {verdict}"
        for report in reports
        for kind, name, verdict in report.lines
    ]
