"""Every error Antiphon raises, whose fault it is and what to do. Imports nothing.

    AntiphonError
      CallerError          the peer broke a rule: a JSON-RPC error with `code`
        InvalidRequest       malformed envelope, arguments or answers
          ResourceNotFound     nothing is registered under the URI
        UrlRequired          legacy clients without a session: visit a URL, then call anew
        TokenRefused         one fixed answer for every reason; the reason is for the log
        CapabilityMissing    names the client capability that the ask needs
        InsufficientScope    the caller's credential does not allow this; names the scopes
        Unavailable          the round cannot be served now (store trouble, too many waiters)
          TooManyCalls         a limit of the tool is reached; says when to try again
      HandlerError         the handler broke a rule: the text names both sides and the cure
        Diverged             a re-run took another path than the journal recorded
        SwallowedAsk         the handler caught the end of its round
        AmbiguousKey         two branches asked under one derived key
        KeyReused            one effect or memo key twice in one run
        NestedEffect         a context call inside an effect or memo
        StateTooLarge        the journal outgrew its budget; names the largest entries
        TooManyRounds        the call outgrew its round budget
        UnsupportedForm      a form the protocol cannot carry; names the field
        CannotAsk            asking is not possible here (sync handler, dead context)
        HandlerTimeout       the handler did not end within its `timeout=`
      Refused              the person said no; a refusal is never an answer
        Declined · Cancelled · Expired
      EffectError          an effect did not end well
        EffectFailed         it raised; recorded, and raised again in every run
        EffectUncertain      it was started and its end is unknown; never repeated silently
      AnswerInvalid        an answer that does not fit its form; asked again with the reasons
      StoreError           the store failed; `retryable` says whether trying again can help
        StoreFull            the store has no space left
      ConfigError          wrong settings, found at start
      StartError           the server could not start: its lifespan failed

`ToolError` and `NotDone` are for handlers to raise.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, cast

__all__ = [
    "AmbiguousKey",
    "AnswerInvalid",
    "AntiphonError",
    "CallerError",
    "Cancelled",
    "CannotAsk",
    "CapabilityMissing",
    "ConfigError",
    "Declined",
    "Diverged",
    "EffectError",
    "EffectFailed",
    "EffectUncertain",
    "Expired",
    "HandlerError",
    "HandlerTimeout",
    "InsufficientScope",
    "InvalidRequest",
    "KeyReused",
    "MemoFailed",
    "NestedEffect",
    "NotDone",
    "Refused",
    "ResourceNotFound",
    "StateTooLarge",
    "StoreError",
    "StoreFull",
    "SwallowedAsk",
    "TokenRefused",
    "TooManyCalls",
    "TooManyRounds",
    "ToolError",
    "Unavailable",
    "UnsupportedForm",
    "UrlRequired",
]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
CAPABILITY_MISSING = -32021
VERSION_UNSUPPORTED = -32022
URL_REQUIRED = -32042
LEGACY_NOT_FOUND = -32002


class AntiphonError(Exception):
    """The root of every error raised by Antiphon."""


# --- the peer's fault -------------------------------------------------------------------------


class CallerError(AntiphonError):
    """The peer broke a rule. `code`, `message` and `data` are what it is told."""

    code = INVALID_PARAMS

    def __init__(self, message: str, *, data: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class InvalidRequest(CallerError):
    """A malformed request: envelope, target, arguments or the shape of answers."""

    def __init__(self, message: str, *, code: int = INVALID_PARAMS, data: object = None) -> None:
        super().__init__(message, data=data)
        self.code = code


class ResourceNotFound(InvalidRequest):
    """No resource has this URI. Older revisions have a code of their own for it."""


class UrlRequired(CallerError):
    """The client is to visit a URL and then to call anew: all that a legacy client without a
    session can be asked."""

    code = URL_REQUIRED

    def __init__(self, message: str, url: str, id: str) -> None:
        entry = {"mode": "url", "elicitationId": id, "url": url, "message": message}
        super().__init__(message, data={"elicitations": [entry]})


class TokenRefused(CallerError):
    """A token that is not worth what it claims. The wire hears one sentence for every reason."""

    MESSAGE = "Invalid or expired requestState. Start the call again without it."

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(self.MESSAGE)
        self.reason = reason
        """A short fixed code for the log. Never text from the token."""

        self.detail: str = detail or _REFUSALS.get(reason, reason)
        """The reason as the log says it."""


_REFUSALS = {
    "unknown-key": "this process does not have the key that sealed it (are ANTIPHON_KEYS the same "
    "in every process? was a key dropped too early?)",
    "forged": "it was changed after it was sealed",
    "malformed": "it is not a token",
    "shape": "it is not a token",
    "too-long": "it is longer than any token of this server",
    "format": "it is of a release that this one cannot read",
    "codec": "the codec of Seal(codec=...) could not open it",
    "outcome-unreadable": "its recorded outcome is of a release that this one cannot read",
    "method": "it was issued for another method",
    "target": "it was issued for another tool, prompt or resource",
    "handler": "it was issued for another handler",
    "arguments": "the arguments differ from those of the first round",
    "principal": "it was issued to another caller",
    "audience": "it was issued for another server (Seal(audience=...), or the server's name)",
}
"""What a reason means, where nothing more is known about the token."""


class CapabilityMissing(CallerError):
    """The ask needs a client capability that this request did not declare."""

    code = CAPABILITY_MISSING

    def __init__(
        self,
        required: Mapping[str, object],
        what: str = "this call",
        *,
        acted: bool = False,
        begun: bool = False,
    ) -> None:
        """Take what is missing, as a ClientCapabilities object, and for what it is needed.

        Args:
            required: What the client has to declare.
            what: What cannot go on.
            acted: Whether effects of the call have happened already.
            begun: Whether code of the handler has run, which may have done something else.
        """
        self.required = required
        self.what = what
        self.acted = acted
        self.done = "Nothing was done, and trying again will not help"
        if acted:
            self.done = "What was done before stays done, and calling again will not help"
        elif begun:
            self.done = (
                "The call stopped there, before any recorded effect, and trying again will not help"
            )
        super().__init__(
            f"{what} needs {needed(required)}, which this client did not declare. {self.done}. "
            "Enable it in the client, or use a client that has it.",
            data={"requiredCapabilities": dict(required)},
        )


def needed(required: Mapping[str, object]) -> str:
    """Return the capabilities of a client in words, each with its name."""
    words = [
        f"{_ABILITIES[name]} ({name})" if name in _ABILITIES else name
        for name in capability_names(required)
    ]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capability_names(required: Mapping[str, object]) -> list[str]:
    """Return the names of capabilities as paths: `elicitation.form`, `roots`."""
    names: list[str] = []
    for top, inner in required.items():
        below: list[str] = list(cast("Mapping[str, object]", inner))
        names += [f"{top}.{name}" for name in below] or [top]
    return names


TASKS_CAPABILITY = "extensions.io.modelcontextprotocol/tasks"

_ABILITIES = {
    "elicitation.form": "a person who fills a form",
    "elicitation.url": "a person who opens a page",
    "sampling": "a completion of the client's model",
    "sampling.tools": "tools in the client's model",
    "sampling.context": "the context of the client's model",
    "roots": "the folders of the workspace",
    TASKS_CAPABILITY: "tasks",
}


class InsufficientScope(CallerError):
    """The caller is known, and the credential of this request does not allow what it asks for.

    Over HTTP it is a 403 whose header names the scopes, so that a client can ask for more.
    """

    code = INVALID_REQUEST
    MESSAGE = "The access token does not have the scopes that this needs."

    def __init__(self, needed: frozenset[str]) -> None:
        super().__init__(self.MESSAGE)
        self.needed = needed
        """All the scopes that the request needs, those that it has included."""


class Unavailable(CallerError):
    """The round cannot be served now and nothing was run. Trying again may help."""

    code = INTERNAL_ERROR


class TooManyCalls(Unavailable):
    """A limit of the tool is reached, and nothing was done. `data` says when to try again."""

    def __init__(self, why: str, wait: float) -> None:
        seconds = -(-wait // 1)
        super().__init__(
            f"{why}; nothing was done. Try again in {seconds:.0f} s.",
            data={"retryAfterMs": int(-(-wait * 1000 // 1))},
        )


# --- the handler's fault ----------------------------------------------------------------------


class HandlerError(AntiphonError):
    """The handler broke a rule of the framework. The text names the cure."""

    place = ""
    """File and line in the author's code, for the log, where the traceback does not show it."""

    passing = False
    """Whether the same code may come further in another run; every other mistake stays."""

    @property
    def for_log(self) -> str:
        """The text without the words of a question."""
        return str(self)


class Diverged(HandlerError):
    """A re-run took another path than the journal recorded."""

    passing = True

    def __init__(
        self, *, recorded: str, now: str, cure: str, names: tuple[str, str] | None = None
    ) -> None:
        """Take both sides, and their `names` for the log where the sides show a question."""
        super().__init__(_divergence(recorded, now, cure))
        self.recorded = recorded
        self.now = now
        self.cure = cure
        self._names = names or (recorded, now)

    @property
    def for_log(self) -> str:
        """The text without the words of a question."""
        return _divergence(*self._names, self.cure)


def _divergence(recorded: str, now: str, cure: str) -> str:
    now = f"another {now}, by its words, form or arguments" if now == recorded else now
    return f"this re-run diverged: the call recorded {recorded}, the code now has {now}. {cure}"


class SwallowedAsk(HandlerError):
    """The handler caught the signal that ends a round."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the handler swallowed the end of the round at ask {key!r}: an `except "
            "BaseException`, a bare `except:` or a `return` in `finally` caught it. Catch "
            "`Exception` or the errors you mean, and let everything else pass."
        )
        self.key = key


class AmbiguousKey(HandlerError):
    """Two asks of concurrent branches would share one derived key."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"two concurrent branches ask under the derived key {key!r}, so their answers could be "
            "swapped. Give each ask its own `key=`. (`asyncio.wait_for` of Python 3.11 awaits in a "
            "branch: use `asyncio.timeout` in its place.)"
        )
        self.key = key


class KeyReused(HandlerError):
    """One key names two effects, memos or asks in one run."""

    def __init__(self, what: str, key: str) -> None:
        super().__init__(
            f"{what} key {key!r} is used twice in one run. Give each {what} a key of its own, for "
            "instance by adding the item it is about."
        )
        self.key = key


class NestedEffect(HandlerError):
    """A context call was made inside an effect or memo."""

    def __init__(self, key: str, call: str) -> None:
        super().__init__(
            f"ctx.{call} was called inside the effect or memo {key!r}. Do it before or after: what "
            "runs inside is not re-run, so it cannot ask, record or report."
        )
        self.key = key


class StateTooLarge(HandlerError):
    """The journal outgrew its budget."""

    def __init__(self, size: int, budget: int, largest: Sequence[tuple[str, int]]) -> None:
        named = ", ".join(f"{key} ({bytes_:,} B)" for key, bytes_ in largest)
        super().__init__(
            f"the state of this call is {size:,} B, over the budget of {budget:,} B; largest "
            f"entries: {named}. Keep large values elsewhere and record their name, raise "
            "Limits(state_bytes=...), or configure a store."
        )
        self.size = size
        self.budget = budget
        self.largest: tuple[tuple[str, int], ...] = tuple(largest)


class TooManyRounds(HandlerError):
    """The call outgrew its round budget."""

    def __init__(self, limit: int, what: str = "question rounds") -> None:
        super().__init__(
            f"the call used all of its {limit} {what}. A dialogue this long is a task; or raise "
            "the number in Limits."
        )
        self.limit = limit


WHOLE_FORM = "(form)"
"""Names the form itself, where no field of it is wrong."""


class UnsupportedForm(HandlerError):
    """A form that the protocol cannot carry, or must not."""

    def __init__(self, field: str, why: str, cure: str) -> None:
        what = "the form" if field == WHOLE_FORM else f"form field {field!r}"
        super().__init__(f"{what} {why}. {cure}")
        self.field = field


class CannotAsk(HandlerError):
    """Asking is not possible at this place."""


class HandlerTimeout(HandlerError):
    """The handler did not end within its `timeout=`."""

    passing = True

    def __init__(self, tool: str, limit: float) -> None:
        super().__init__(
            f"tool {tool!r} did not end within {limit:g} s and was stopped. What it had done by "
            "then is not undone."
        )


# --- the person's choice ----------------------------------------------------------------------


class Refused(AntiphonError):
    """The person did not give what was asked for. Unhandled, the model reads it as a tool error."""

    word = "refused"

    def __init__(self, key: str) -> None:
        super().__init__(f"The request for {key!r} was {self.word}.")
        self.key = key


class Declined(Refused):
    """An explicit no."""

    word = "declined"


class Cancelled(Refused):
    """Dismissed without a choice."""

    word = "cancelled"


class Expired(Refused):
    """No answer came within the `timeout=` of the ask."""

    word = "not answered in time"


# --- effects ----------------------------------------------------------------------------------


class EffectError(AntiphonError):
    """An effect did not end well."""


class EffectFailed(EffectError):
    """The effect raised. The failure is recorded and raised again in every run."""

    def __init__(self, key: str, error: str, *, guarded: bool = True) -> None:
        super().__init__(f"effect {key!r} failed: {error}")
        self.key = key
        self.error = error
        self.guarded = guarded
        """Whether an equal call of the same caller gets this failure and does not try again."""


class MemoFailed(EffectError):
    """The function of a memo raised what cannot be raised again in a later round."""

    def __init__(self, key: str, error: str) -> None:
        super().__init__(f"memo {key!r} failed: {error}")
        self.key = key
        self.error = error


UncertainReason = Literal["crashed", "raised", "running"]

_STARTED = "was started and its end is not known"

_WHY: dict[UncertainReason, str] = {
    "crashed": f"{_STARTED}: it may have happened",
    "raised": f"{_STARTED}: it may have happened",
    "running": f"{_STARTED} yet: an equal call of the same caller still runs it",
}

DO_NOT_REPEAT = "Do not call this tool again for it, and do not try another way."
"""What a model is told after an effect that may have happened."""


class EffectUncertain(EffectError):
    """The effect was started and its end is unknown. It is never repeated silently.

    The text is for the model: what may have happened, that it must not call again, what is next.
    """

    def __init__(
        self,
        call_id: str,
        key: str,
        *,
        reason: UncertainReason = "crashed",
        detail: str = "",
        guarded: bool = True,
    ) -> None:
        self.call_id = call_id
        self.key = key
        self.reason: UncertainReason = reason
        """`crashed`, `raised` or `running` (in an equal call)."""

        self.guarded = guarded
        """Whether an equal call of the same caller is kept from doing it again."""

        self.command: str = f"antiphon calls settle STORE {call_id} {shlex.quote(key)}"
        """What an operator gives to a shell, with `--done RESULT` or `--not-done`."""

        why = f"{_WHY[reason]} ({detail})" if detail else _WHY[reason]
        super().__init__(
            f"effect {key!r} of call {call_id} {why}. {DO_NOT_REPEAT} "
            f"An operator finds out whether it happened. {next_step(guarded)}"
        )


def next_step(guarded: bool) -> str:
    """Say what becomes of an equal call while an effect may have happened."""
    if guarded:
        return "Until then an equal call does not do it again; afterwards it gets the outcome."
    return (
        "This server does not know who its callers are, so that it cannot keep a second call from "
        "doing it again."
    )


class NotDone(Exception):
    """Raise inside an effect to say that nothing happened: the claim is freed."""


class OutcomeUnknown(Exception):
    """Raise inside an effect that cannot tell whether it happened: it is `EffectUncertain` then."""


# --- the rest ---------------------------------------------------------------------------------


class ToolError(AntiphonError):
    """Raise in a handler: the text becomes an error result that the model can read."""


class AnswerInvalid(AntiphonError):
    """An answer does not fit its form.

    The reasons are for the person who typed it: a validator of the author's may quote the answer.
    """

    def __init__(self, reasons: Sequence[str], *, masked: Sequence[str] | None = None) -> None:
        self.reasons: tuple[str, ...] = tuple(reasons)
        self.masked: tuple[str, ...] = self.reasons if masked is None else tuple(masked)
        """The reasons without what was typed."""
        super().__init__("; ".join(self.masked))


class StoreError(AntiphonError):
    """The store failed or cannot be reached."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class StoreFull(StoreError):
    """The store has no space left; what it keeps is not lost. Trying again helps with space."""


class ConfigError(AntiphonError):
    """Wrong settings, found at start. The text names the setting and the cure."""


class StartError(AntiphonError):
    """The server could not start, because its lifespan failed. The text names the cause."""


class ArgumentsInvalid(AntiphonError):
    """The arguments do not fit the signature. A tool tells the model; others refuse the request."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


DELIBERATE = (ToolError, Refused, EffectFailed)
"""Errors by which a round is over: recorded, and the same for every duplicate."""
