"""What passes through a mount, and what somebody has to approve first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from antiphon.core.asks import Approve
from antiphon.core.question_text import MAX_DETAILS
from antiphon.errors import ConfigError

_URI = "://"


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Which tools need an approval, and whose."""

    pattern: str
    role: str = ""
    """The role whose holders decide in the inbox; empty: whoever called."""

    @classmethod
    def parse(cls, text: str) -> "ApprovalRule":
        """Read `PATTERN` or `PATTERN=ROLE`.

        Raises:
            ConfigError: It has no pattern, or no role behind the sign.
        """
        pattern, sign, role = (part.strip() for part in text.partition("="))
        if not pattern or (sign and not role):
            raise ConfigError(f"an approval is TOOL or TOOL=ROLE, such as 'delete_*=ops': {text!r}")
        return cls(pattern, role)

    def ask(self, tool: str, arguments: Mapping[str, Any]) -> Approve:
        """Return the question for one call."""
        return Approve(
            f"Allow this call of {tool}?", details=_details(arguments), by=self.role or None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Patterns of names, `*` and `?` as in a shell; those with `://` are of resources."""

    allow: tuple[str, ...] = ()
    """Only what matches one of these passes; of resources only if one of these is a URI."""

    deny: tuple[str, ...] = ()
    """What matches one of these never passes."""

    approve: tuple[ApprovalRule, ...] = ()
    """The first that matches a tool counts."""

    @classmethod
    def read(
        cls,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
    ) -> "Policy":
        """Read patterns; approvals as texts `TOOL=ROLE`, or as a mapping from tool to role.

        Raises:
            ConfigError: An approval cannot be read.
        """
        for patterns in (allow, deny, approve):
            if isinstance(patterns, str):
                raise ConfigError(f"patterns are given as a list, not as the text {patterns!r}")
        if isinstance(approve, Mapping):
            roles = cast("Mapping[str, str]", approve)
            rules = [ApprovalRule(tool, role) for tool, role in roles.items()]
        else:
            rules = [ApprovalRule.parse(text) for text in approve]
        return cls(allow=tuple(allow), deny=tuple(deny), approve=tuple(rules))

    def passes(self, name: str) -> bool:
        """Return whether a tool, prompt or resource may be seen and used."""
        uri = _URI in name
        allow = [pattern for pattern in self.allow if (_URI in pattern) == uri]
        if any(fnmatchcase(name, pattern) for pattern in self.deny):
            return False
        return not allow or any(fnmatchcase(name, pattern) for pattern in allow)

    def approval(self, tool: str) -> ApprovalRule | None:
        """Return what a call of a tool needs first."""
        return next((rule for rule in self.approve if fnmatchcase(tool, rule.pattern)), None)


def _details(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as somebody is shown them who approves; the call is bound to all of them."""
    if len(arguments) <= MAX_DETAILS:
        return dict(arguments)
    names = list(arguments)
    shown = {name: arguments[name] for name in names[: MAX_DETAILS - 1]}
    rest = {name: arguments[name] for name in names[MAX_DETAILS - 1 :]}
    return {**shown, f"and {len(rest)} more": rest}
