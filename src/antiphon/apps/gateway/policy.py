"""What passes through a mount, what somebody has to approve first, and what is denied.

Tools, prompts and resources have a list of rules each; the kind of a request decides which one
counts, never the look of a name. Rules that restrict compare names without case and after NFKC, and
URIs in their normal form. What no rule names has a default, and a rule that names nothing is an
error: a misspelt one would keep nothing back.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast
from urllib.parse import unquote

from antiphon.apps.gateway.uris import NoNormalForm, normal_pattern, normal_uri
from antiphon.errors import ConfigError
from antiphon.protocol.asks import Approve
from antiphon.protocol.question_text import MAX_DETAILS
from antiphon.protocol.text import folded

RuleKind = Literal["tool", "prompt", "resource"]
Default = Literal["allow", "approve", "deny"]
Verb = Literal["allow", "deny", "approve"]

_KINDS: Mapping[str, tuple[RuleKind, ...]] = {
    "tool:": ("tool",),
    "prompt:": ("prompt",),
    "resource:": ("resource",),
}
_PLAIN_NAME = re.compile(r"[!-~]+")
"""Names without blanks, controls and letters of other scripts, which imitate others."""

_WILD = re.compile(r"[*?\[]")


class SharedPattern(str):
    """A pattern for several servers: it has to match something at one of them."""

    __slots__ = ()


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
        return cls(SharedPattern(pattern) if isinstance(text, SharedPattern) else pattern, role)

    def ask(self, tool: str, arguments: Mapping[str, Any]) -> Approve:
        """Return the question for one call."""
        return Approve(
            f"Allow this call of {tool}?", details=_details(arguments), by=self.role or None
        )


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One pattern as it was written, and the kinds it is for."""

    verb: Verb
    text: str
    kinds: tuple[RuleKind, ...]
    pattern: str
    approval: ApprovalRule | None = None

    @property
    def shared(self) -> bool:
        """Whether it is for several servers."""
        return isinstance(self.text, SharedPattern)

    @classmethod
    def read(cls, verb: Verb, text: str, approval: ApprovalRule | None = None) -> "PolicyRule":
        """Read a pattern; `tool:`, `prompt:` or `resource:` before it says what it is for.

        Without one of these, a pattern with a colon is of resources, and any other of tools and
        prompts, which have no colon in their names. One that denies and begins with a star is of
        everything.

        Raises:
            ConfigError: It is empty, could match no URI, or approves something other than tools.
        """
        mark = next((mark for mark in _KINDS if text.startswith(mark)), "")
        pattern = text.removeprefix(mark)
        if not pattern:
            raise ConfigError(f"the pattern {text!r} is empty")
        kinds = _KINDS.get(mark) or _unmarked(verb, pattern)
        if verb == "approve":
            if "tool" not in kinds:
                raise ConfigError(f"only tools can be approved: {text!r}")
            kinds = ("tool",)
        if kinds == ("resource",):
            try:
                pattern = normal_pattern(pattern)
            except NoNormalForm as error:
                raise ConfigError(f"the pattern {text!r} matches no URI: {error}") from None
        return cls(verb, text, kinds, pattern, approval)

    def matches(self, kind: RuleKind, names: Iterable[str]) -> bool:
        """Return whether the rule is about one of the names of an entry."""
        if kind not in self.kinds:
            return False
        if self.verb == "allow":
            return any(fnmatchcase(name, self.pattern) for name in names)
        read = _folded_uri if kind == "resource" else folded
        return any(fnmatchcase(read(name), read(self.pattern)) for name in names)

    def may_match(self, template: str) -> bool:
        """Return whether it may be about a URI of a template."""
        mine, theirs = _WILD.split(self.pattern)[0], template.partition("{")[0]
        return "resource" in self.kinds and (mine.startswith(theirs) or theirs.startswith(mine))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an entry: it passes, needs an approval, or is denied."""

    passes: bool
    approval: ApprovalRule | None = None
    why: str = ""
    denied_by_rule: bool = False

    @property
    def words(self) -> str:
        """The verdict, as the table shows it."""
        if not self.passes:
            return f"denied ({self.why})"
        if self.approval is None:
            return "passes"
        return f"needs approval by {self.approval.role or 'the caller'}"


_PASSES = Verdict(passes=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one mount, and what holds where there is none."""

    rules: tuple[PolicyRule, ...] = ()
    default: Default = "allow"

    @classmethod
    def read(
        cls,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        approve: Iterable[str] | Mapping[str, str] = (),
        default: Default | None = None,
    ) -> "Policy":
        """Read patterns; approvals as texts `TOOL=ROLE`, or as a mapping from tool to role.

        Without a default, what no rule names passes if nothing is allowed by name, and is denied
        otherwise.

        Raises:
            ConfigError: A rule cannot be read, or there is no such default.
        """
        for patterns in (allow, deny, approve):
            if isinstance(patterns, str):
                raise ConfigError(f"patterns are given as a list, not as the text {patterns!r}")
        if isinstance(approve, Mapping):
            roles = cast("Mapping[str, str]", approve)
            approvals = [ApprovalRule(tool, role) for tool, role in roles.items()]
        else:
            approvals = [ApprovalRule.parse(text) for text in approve]
        rules = [
            *(PolicyRule.read("deny", text) for text in deny),
            *(PolicyRule.read("approve", rule.pattern, rule) for rule in approvals),
            *(PolicyRule.read("allow", text) for text in allow),
        ]
        allows = any(rule.verb == "allow" for rule in rules)
        if default is None:
            # An approval does not make visible what nobody has allowed.
            return cls(rules=tuple(rules), default="deny" if allows else "allow")
        if default not in ("allow", "approve", "deny"):
            raise ConfigError(f"default={default!r} is none of 'allow', 'approve', 'deny'")
        return cls(rules=tuple(rules), default=default)

    @property
    def needs_console(self) -> bool:
        """Whether somebody with a role has to approve something."""
        return any(rule.approval is not None and rule.approval.role for rule in self.rules)

    def restricts(self, kind: RuleKind) -> bool:
        """Return whether there is anything of this kind that may not pass as it is."""
        return self.default != "allow" or any(
            kind in rule.kinds and rule.verb != "allow" for rule in self.rules
        )

    def judge(self, kind: RuleKind, *names: str) -> Verdict:
        """Return what becomes of a tool or prompt, by its names here and at its server."""
        if not self.restricts(kind):
            return _PASSES
        if not all(_PLAIN_NAME.fullmatch(unicodedata.normalize("NFKC", name)) for name in names):
            return Verdict(passes=False, why="its name has letters that can imitate others")
        return self._judge(kind, names)

    def judge_uri(self, uri: str, *, listed: bool) -> tuple[Verdict, str]:
        """Return what becomes of a resource, and the URI that was judged, which is to be sent.

        One that nobody lists passes only where a rule allows it.
        """
        if not self.restricts("resource"):
            return _PASSES, uri
        try:
            normal = normal_uri(uri)
        except NoNormalForm as error:
            return Verdict(passes=False, why=str(error)), uri
        verdict = self._judge("resource", (normal,))
        if verdict.passes and not listed and not self._allows("resource", (normal,)):
            return Verdict(passes=False, why="nobody lists it, and no rule allows it"), normal
        return verdict, normal

    def judge_template(self, template: str) -> Verdict:
        """Return whether a template is listed; each URI that is read is judged for itself."""
        if not self.restricts("resource"):
            return _PASSES
        verdict = self._judge("resource", (template,))
        if verdict.denied_by_rule or verdict.passes:
            return verdict
        allowed = any(rule.verb == "allow" and rule.may_match(template) for rule in self.rules)
        return _PASSES if allowed else verdict

    def _judge(self, kind: RuleKind, names: Iterable[str]) -> Verdict:
        names = tuple(names)
        allowed = self._allows(kind, names)
        for rule in self.rules:
            if rule.verb == "allow" or not rule.matches(kind, names):
                continue
            if rule.verb == "deny":
                return Verdict(passes=False, why=f"by {str(rule.text)!r}", denied_by_rule=True)
            if allowed or not self._closed:
                return Verdict(passes=True, approval=rule.approval)
        if allowed or self.default == "allow":
            return _PASSES
        if self.default == "approve" and kind == "tool":
            return Verdict(passes=True, approval=ApprovalRule("*"))
        return Verdict(passes=False, why="no rule allows it")

    def _allows(self, kind: RuleKind, names: tuple[str, ...]) -> bool:
        return any(rule.verb == "allow" and rule.matches(kind, names) for rule in self.rules)

    @property
    def _closed(self) -> bool:
        """Whether only what is allowed by name is seen at all."""
        return self.default == "deny" and any(rule.verb == "allow" for rule in self.rules)


def _unmarked(verb: Verb, pattern: str) -> tuple[RuleKind, ...]:
    """Return what a pattern is for that does not say so."""
    if ":" in pattern:
        return ("resource",)
    if verb == "deny" and pattern.startswith("*"):
        return ("tool", "prompt", "resource")
    return ("tool", "prompt")


def _folded_uri(uri: str) -> str:
    return folded(unquote(uri))


def _details(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as somebody is shown them who approves; the call is bound to all of them."""
    if len(arguments) <= MAX_DETAILS:
        return dict(arguments)
    names = list(arguments)
    shown = {name: arguments[name] for name in names[: MAX_DETAILS - 1]}
    rest = {name: arguments[name] for name in names[MAX_DETAILS - 1 :]}
    return {**shown, f"and {len(rest)} more": rest}
