"""Asks made ready: their keys and digests, their bytes on the wire, how their answers are read.

Owns the digest of a question, the shape checks of raw answers, what an author may use as a key and
which keys are derived.
"""

import inspect
import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, cast

import msgspec

from antiphon.errors import AmbiguousKey, AnswerInvalid, HandlerError, InvalidRequest
from antiphon.forms.form import Form, encoded_schema, of, of_encoded
from antiphon.protocol import results
from antiphon.protocol.asks import (
    Approval,
    Approve,
    Ask,
    Completion,
    Elicit,
    ElicitUrl,
    Kind,
    ListRoots,
    Opened,
    Outcome,
    RawAsk,
    Root,
    Sample,
    Status,
    seconds,
)
from antiphon.protocol.audit import RoundAudit
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.digest import canonical, short_digest
from antiphon.protocol.question_text import check_details, question_text
from antiphon.protocol.shapes import (
    ShapeError,
    check_model_preferences,
    check_number,
    check_request,
    check_sampling_result,
    check_text,
    check_tool_choice,
    sampling_messages,
    write_json,
)
from antiphon.protocol.text import preview, safe
from antiphon.protocol.web_url import web_host
from antiphon.seal.claims import APPROVAL, Pending

_STATUS: Mapping[str, Status] = {
    "accept": "accepted",
    "decline": "declined",
    "cancel": "cancelled",
    "expired": "expired",
    "unavailable": "unavailable",
}
_NO_ANSWER = frozenset({"decline", "cancel", "expired", "unavailable"})
EXPIRED = {"action": "expired"}
"""Stands in the journal where no answer came in time."""


class Question(msgspec.Struct, gc=False):
    """One ask, ready to be put, recalled and read."""

    kind: Kind
    base: str
    """From which a key is derived where the author gives none, such as the name of the form."""

    digest: bytes
    """Of what is asked: an answer in the journal counts only for a question with the same."""

    note: str
    """The start of the message, for error texts."""

    needs: tuple[Capability, ...]
    """What a client must have declared to be asked this."""

    ask: Ask
    form: Form[Any] | None = None
    _encoded: bytes = b""

    def body(self, reason: str = "") -> bytes:
        """Return the embedded request, encoded once; a reason tells why it is asked again."""
        if reason and not isinstance(self.ask, Sample):
            return self._encode(reason)
        if not self._encoded:
            self._encoded = self._encode("")
        return self._encoded

    @property
    def shown(self) -> bytes:
        """The form's schema, or the URL: what the person was shown beside the message."""
        if isinstance(self.ask, Approve):
            return APPROVAL
        if self.form is not None:
            return self.form.schema_json
        return self.ask.url.encode() if isinstance(self.ask, ElicitUrl) else b""

    def _encode(self, reason: str) -> bytes:
        ask = self.ask
        if isinstance(ask, Elicit | Approve):
            form = cast("Form[Any]", self.form)
            text = question_text(ask.message, ask.details, reason)
            return results.form_request(text, form.schema_json)
        if isinstance(ask, ElicitUrl):
            return results.url_request(question_text(ask.message, None, reason), ask.url)
        return results.ROOTS_REQUEST

    def read(self, raw: Mapping[str, Any], key: str) -> Outcome[Any]:
        """Turn a well-shaped raw answer into an outcome.

        Raises:
            AnswerInvalid: Accepted form content that does not fit the form.
        """
        if isinstance(self.ask, Approve):
            return read_approval(raw, key)
        outcome = read_answer(self.kind, raw, key, self.form)
        if outcome.value.__class__ is Opened:
            return Outcome(outcome.status, Opened(cast("ElicitUrl", self.ask).url), key)
        return outcome


class RawQuestion(Question, gc=False):
    """A request that is put as it is, and whose answer is handed on as it is."""

    schema: bytes = b""

    def body(self, reason: str = "") -> bytes:
        """Return the request as it was given, also when it is asked again."""
        return self._encoded

    @property
    def shown(self) -> bytes:
        """The schema or the URL, as it was given."""
        return self.schema

    def read(self, raw: Mapping[str, Any], key: str) -> Outcome[Any]:
        """Return the answer itself as the value, a refusal too."""
        return Outcome(_STATUS[raw.get("action", "accept")], dict(raw), key)


class Asked(msgspec.Struct, frozen=True, gc=False):
    """An ask that goes out in this round: to the client, or to people in the inbox."""

    question: Question
    tries: int = 0
    """How many answers to it were refused because they did not fit."""

    reason: str = ""
    """Why the last answer did not fit."""

    branch: bool = False
    """Whether a child task of the handler asks it."""

    def pending(
        self, key: str, now: float, before: Pending | None = None, native: bool = False
    ) -> Pending:
        """Return the ask as a token or a task's row remembers it.

        Args:
            key: Under which it is asked.
            now: Seconds since the epoch.
            before: The same ask as the round before put it: asking again does not start its time
                anew.
            native: Whether no re-run will ask again, so that the form must be remembered.
        """
        q, expires, timeout = self.question, 0.0, self.question.ask.timeout
        if before is not None and before.digest == q.digest and before.expires:
            expires = before.expires
        elif timeout is not None:
            expires = now + seconds(timeout)
        shown = q.shown if native else b""
        return Pending(
            key, q.kind, q.digest, q.note, self.tries, expires, shown, q.ask.secret, self.branch
        )


def note_asks(audit: RoundAudit, asks: Mapping[str, Asked]) -> None:
    """Note the questions of a round in its audit."""
    for key, asked in asks.items():
        note_question(audit, key, asked.question)


def note_question(audit: RoundAudit, key: str, put: Question) -> None:
    """Note one question of a round in its audit."""
    ask = put.ask
    text = ask.message if isinstance(ask, Elicit | Approve | ElicitUrl) else put.note
    audit.note_ask(key, put.kind, put.digest, text)


def question(ask: Ask) -> Question:
    """Prepare an ask. Forms are compiled once per model.

    Raises:
        HandlerError: It could not be sent; names what is wrong.
    """
    if isinstance(ask, Elicit):
        _check_message("Elicit", ask.message)
        form = of(ask.form)
        wording = (ask.identity or ask.message).encode("utf-8", "surrogatepass")
        details = _bound_details(ask.details)
        digest = short_digest(b"form", wording, form.digest, details)
        return Question("form", form.base, digest, preview(ask.message), ("form",), ask, form)
    if isinstance(ask, Approve):
        return _approval_question(ask)
    if isinstance(ask, ElicitUrl):
        _check_message("ElicitUrl", ask.message)
        _check_url(ask.url)
        wording = (ask.identity or ask.message).encode("utf-8", "surrogatepass")
        digest = short_digest(b"url", wording, ask.url.encode())
        return Question("url", "url", digest, preview(ask.message), ("url",), ask)
    if isinstance(ask, Sample):
        return _sample_question(ask)
    if isinstance(ask, ListRoots):
        return Question("roots", "roots", short_digest(b"roots"), "", ("roots",), ask)
    if isinstance(ask, RawAsk):
        return _raw_question(ask)
    if inspect.iscoroutine(ask):
        ask.close()  # it was never going to be awaited
        raise HandlerError(
            "ctx.elicit(...) and its like ask by themselves: give the ask instead, such as "
            "Elicit(message, Form)"
        )
    raise HandlerError(
        f"{type(ask).__name__} is not an ask: use Elicit, ElicitUrl, Sample or ListRoots"
    )


def _raw_question(raw: RawAsk) -> Question:
    """Prepare a request that is put as it is; `ask` holds what others need to know of it."""
    method = raw.method
    if method not in RAW_METHODS:
        raise HandlerError(
            f"{safe(str(method), 80)} is no request that a server may ask with; "
            f"known: {', '.join(RAW_METHODS)}"
        )
    try:
        # An optional member that is null counts as absent, as in requests to us.
        params = {name: value for name, value in raw.params.items() if value is not None}
        check_request(method, params)
        ask, needs, shown = _carrier(method, params, _options(raw))
        body: dict[str, Any] = {"method": method}
        if params or not isinstance(ask, ListRoots):
            body["params"] = params
        encoded = write_json(body, "params")
    except (ShapeError, AttributeError) as error:
        raise HandlerError(f"the params of {method} are not those of the protocol: {error}") from (
            error
        )
    digest = short_digest(b"raw", canonical(body))
    note = preview(ask.message) if isinstance(ask, Elicit | ElicitUrl) else ""
    kind = _KINDS[type(ask)]
    return RawQuestion(kind, kind, digest, note, needs, ask, None, encoded, shown)


RAW_METHODS = ("elicitation/create", "sampling/createMessage", "roots/list")
_KINDS: Mapping[type[Ask], Kind] = {
    Elicit: "form",
    ElicitUrl: "url",
    Sample: "sample",
    ListRoots: "roots",
}


def _carrier(
    method: str, params: Mapping[str, Any], options: dict[str, Any]
) -> tuple[Ask, tuple[Capability, ...], bytes]:
    """Return a request as an ask of ours, what it needs, and what the person is shown of it."""
    if method == "roots/list":
        return ListRoots(**options), ("roots",), b""
    if method == "sampling/createMessage":
        ask = Sample(
            params["messages"],
            include_context=params.get("includeContext"),
            tools=params.get("tools"),
            tool_choice=params.get("toolChoice"),
            **options,
        )
        return ask, _sample_needs(ask), b""
    if params.get("mode") == "url":
        url: str = params["url"]
        _check_url(url)
        return ElicitUrl(params["message"], url, **options), ("url",), url.encode()
    schema = params["requestedSchema"]
    form = Elicit(params["message"], schema, **options)
    return form, ("form",), msgspec.json.encode(schema)


def _options(raw: RawAsk) -> dict[str, Any]:
    return {"timeout": raw.timeout, "ttl": raw.ttl, "secret": raw.secret}


APPROVE = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve"}},
    "required": ["approve"],
}
DECIDED = "decided"
"""The member of a recorded answer that holds what people decided; no client can send it."""


def _approval_question(ask: Approve) -> Question:
    """Prepare an approval: a form with one box, and the rules of who may decide."""
    _check_message("Approve", ask.message)
    form = of(APPROVE)
    # What people decide in the inbox is bound to the words that they have read.
    named = None if ask.uses_inbox else ask.identity
    wording = (named or ask.message).encode("utf-8", "surrogatepass")
    details = _bound_details(ask.details)
    parts = [b"form", wording, form.digest, details]
    if ask.uses_inbox or ask.why:
        rules = [ask.why, ask.by, ask.need, ask.may_decide_self, ask.sure, list(ask.labels)]
        parts.append(canonical(rules))
    digest = short_digest(*parts)
    return Question("form", "approve", digest, preview(ask.message), ("form",), ask, form)


def read_approval(raw: Mapping[str, Any], key: str) -> Outcome[Any]:
    """Read the answer to an approval: how it ended, with the approval as its value."""
    if DECIDED in raw:
        approval = msgspec.convert(raw[DECIDED], Approval)
    else:
        outcome = read_answer("form", raw, key, of(APPROVE))
        status: Any = outcome.status
        if status == "accepted":
            content = cast("dict[str, Any]", outcome.value)
            status = "approved" if content.get("approve") is True else "declined"
        approval = Approval(status)
    status = "accepted" if approval else cast("Any", approval.outcome)
    return Outcome(status, approval, key)


_SHORT = 512
"""Characters of a message that is kept ready."""

_KEPT = 1_024
"""Questions kept ready."""


class MessageTooLong(Exception):
    """A question with this message is not kept ready: it would take too much memory."""


@lru_cache(maxsize=_KEPT)
def kept_question(message: str, form: type[Any]) -> Question:
    """Keep plain questions ready, because a replay asks the same ones in every round.

    Raises:
        MessageTooLong: It is not kept.
    """
    _check_message("Elicit", message)
    if len(message) > _SHORT:
        raise MessageTooLong
    return question(Elicit(message, form))


def plain_form(message: str, spec: Any) -> Question:
    """Make a form without options ready."""
    _check_message("Elicit", message)
    if len(message) <= _SHORT:
        if isinstance(spec, type):
            return kept_question(message, spec)  # pyright: ignore[reportUnknownArgumentType]
        if type(spec) is dict:
            return _kept_dict_question(message, encoded_schema(cast("dict[str, Any]", spec)))
    return question(Elicit(message, spec))


@lru_cache(maxsize=_KEPT // 8)
def _kept_dict_question(message: str, schema: bytes) -> Question:
    """Keep a plain question whose form is a schema, by the bytes of the schema."""
    return question(Elicit(message, of_encoded(schema)))


# --- answers -----------------------------------------------------------------------------------


def check_shape(kind: Kind, key: str, raw: object) -> dict[str, Any]:
    """Check that a raw answer has the shape of its kind (MRTR-S-13); unknown members are dropped.

    Raises:
        InvalidRequest: It has not; the token is not spent.
    """
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the answer to {key!r} must be an object")
    answer = cast("dict[str, Any]", raw)
    if kind == "form" or kind == "url":
        action = answer.get("action")
        if action != "accept" and action not in ("decline", "cancel"):
            raise InvalidRequest(
                f"the answer to {key!r} needs an action: accept, decline or cancel"
            )
        if kind == "url" or action != "accept":
            return {"action": action}
        content = answer.get("content", {})
        if not isinstance(content, dict):
            raise InvalidRequest(f"the content of the answer to {key!r} must be an object")
        return {"action": action, "content": content}
    if kind == "sample":
        return _sample_shape(key, answer)
    return _roots_shape(key, answer)


def _sample_shape(key: str, answer: dict[str, Any]) -> dict[str, Any]:
    try:
        check_sampling_result(answer)
    except ShapeError as error:
        raise InvalidRequest(f"the answer to {key!r} must be a sampling result: {error}") from None
    return {k: answer[k] for k in ("role", "content", "model", "stopReason") if k in answer}


def _roots_shape(key: str, answer: dict[str, Any]) -> dict[str, Any]:
    roots = answer.get("roots")
    if not isinstance(roots, list):
        raise InvalidRequest(f"the answer to {key!r} must hold a list of roots")
    kept: list[dict[str, Any]] = []
    for root in cast("list[Any]", roots):
        uri = root.get("uri") if isinstance(root, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not (isinstance(uri, str) and uri.startswith("file://")):
            raise InvalidRequest(f"each root in the answer to {key!r} needs a file:// uri")
        name = cast("dict[str, Any]", root).get("name")
        kept.append({"uri": uri, "name": name} if isinstance(name, str) else {"uri": uri})
    return {"roots": kept}


def unanswered(raw: object) -> bool:
    """Return whether an ask over a back channel, of any kind, ended without an answer."""
    if not isinstance(raw, dict) or len(cast("dict[str, Any]", raw)) != 1:
        return False
    return cast("dict[str, Any]", raw).get("action") in _NO_ANSWER


def read_answer(
    kind: Kind, raw: Mapping[str, Any], key: str, form: Form[Any] | None
) -> Outcome[Any]:
    """Read a well-shaped raw answer as an outcome; form content goes through its form."""
    if kind == "form" or kind == "url" or "action" in raw:
        status = _STATUS[raw["action"]]
        if status != "accepted":
            return Outcome(status, None, key)
        if kind == "url":
            return Outcome(status, Opened(raw.get("url", "")), key)
        content = raw.get("content", {})
        return Outcome(status, form.parse(content) if form is not None else content, key)
    if kind == "sample":
        value: Any = Completion(raw["role"], raw["content"], raw["model"], raw.get("stopReason"))
        return Outcome("accepted", value, key)
    return Outcome("accepted", [Root(r["uri"], r.get("name")) for r in raw["roots"]], key)


def reasons(error: AnswerInvalid, *, secret: bool = False) -> str:
    """Return why an answer is asked for again; a secret is not repeated in it."""
    return safe("; ".join(error.masked if secret else error.reasons), 1_000)


# --- parts -------------------------------------------------------------------------------------


def _bound_details(details: Mapping[str, Any] | None) -> bytes:
    """Return what the digest of a question holds of its details, if they can be shown."""
    if not details:
        return b""
    check_details(details)
    return canonical(dict(details))


def _check_message(what: str, message: object) -> None:
    try:
        check_text(message, f"the message of {what}")
    except ShapeError as error:
        raise HandlerError(str(error)) from None


def _check_url(url: str) -> None:
    try:
        web_host(check_text(url, "the url of ElicitUrl"))
    except ShapeError as error:
        raise HandlerError(str(error)) from None
    except ValueError as error:
        raise HandlerError(f"ElicitUrl needs an absolute http(s) URL: {error}") from error


def _sample_needs(ask: Sample) -> tuple[Capability, ...]:
    needs: list[Capability] = ["sampling"]
    if ask.tools is not None or ask.tool_choice is not None:
        needs.append("sampling.tools")
    if ask.include_context in ("thisServer", "allServers"):
        needs.append("sampling.context")
    return tuple(needs)


def _sample_question(ask: Sample) -> Question:
    """Prepare a sampling request; what the protocol has no place for is not sent."""
    try:
        params = _sample_params(ask)
        check_request("sampling/createMessage", params)
        encoded = results.sample_request(write_json(params, "the sampling request"))
    except ShapeError as error:
        raise HandlerError(f"the sampling request cannot be sent: {error}") from None
    _check_tool_results(params["messages"])
    wording = ask.identity.encode() if ask.identity else canonical(params)
    text = ask.messages if isinstance(ask.messages, str) else "a completion"
    digest = short_digest(b"sample", wording)
    needs = _sample_needs(ask)
    return Question("sample", "sample", digest, preview(text), needs, ask, None, encoded)


def _sample_params(ask: Sample) -> dict[str, Any]:
    """Return the params of a sampling request by the names of the protocol.

    Raises:
        ShapeError: An option is wrong; named as the author writes it.
    """
    if check_number(ask.max_tokens, "max_tokens=") < 1:
        raise ShapeError(f"max_tokens={ask.max_tokens} is less than one")
    if ask.temperature is not None:
        check_number(ask.temperature, "temperature=")
    if ask.model_preferences is not None:
        check_model_preferences(ask.model_preferences, "model_preferences")
    if ask.tool_choice is not None:
        check_tool_choice(ask.tool_choice, "tool_choice")
    params: dict[str, Any] = {
        "messages": sampling_messages(ask.messages),
        "maxTokens": ask.max_tokens,
    }
    optional = {
        "systemPrompt": ask.system_prompt,
        "temperature": ask.temperature,
        "stopSequences": ask.stop_sequences,
        "modelPreferences": ask.model_preferences,
        "includeContext": ask.include_context,
        "metadata": ask.metadata,
        "tools": ask.tools,
        "toolChoice": ask.tool_choice,
    }
    params.update((k, v) for k, v in optional.items() if v is not None)
    return params


def _check_tool_results(messages: Sequence[Mapping[str, Any]]) -> None:
    """Check that every tool use is answered by the next message, and by nothing else (SAMP-05)."""
    open_ids: set[str] = set()
    for message in messages:
        content = message.get("content")
        blocks = cast("list[Any]", content if isinstance(content, list) else [content])
        answered = {b.get("toolUseId") for b in blocks if b.get("type") == "tool_result"}
        if answered and (message.get("role") != "user" or len(answered) != len(blocks)):
            raise HandlerError("a message with tool results is a user message of nothing else")
        if answered != open_ids:
            raise HandlerError("every tool_use needs its tool_result in the very next message")
        open_ids = {b["id"] for b in blocks if b.get("type") == "tool_use"}
    if open_ids:
        raise HandlerError("every tool_use needs its tool_result in the very next message")


# --- keys --------------------------------------------------------------------------------------

_ORDINAL = re.compile(r"-\d+$|^\d+$")
_MAX_KEY = 128
_MAX_RAW_KEY = 1_024


def check_raw_key(key: str) -> str:
    """Check a key that another server chose: any text that can be kept."""
    if not key or len(key) > _MAX_RAW_KEY:
        raise HandlerError(f"the key of a raw ask is a text of 1 to {_MAX_RAW_KEY} characters")
    return key


@lru_cache(maxsize=_KEPT)
def check_key(key: str) -> str:
    """Check a key that an author chose."""
    if not key or len(key) > _MAX_KEY or not key.isprintable():
        raise HandlerError(f"a key is a short printable text of 1 to {_MAX_KEY} characters")
    if _ORDINAL.search(key):
        raise HandlerError(
            f"key {key!r} is a number or ends in one after a dash: that form is kept for keys the "
            "framework derives. Name what it is about."
        )
    return key


_ANY_NUMBER = 2**62
"""How many keys count as derived from a base of which a branch has derived one."""


class Keys(msgspec.Struct, eq=False):
    """The keys that one execution has derived so far."""

    _counts: dict[str, int] = {}
    _in_rounds: Set[str] = frozenset()
    """The keys of the asks before `ctx.detach`; those after it are a scope of their own."""

    def begin_scope(self, asked: Set[str]) -> None:
        """Let every key that was asked under so far be used once more."""
        self._in_rounds = self._in_rounds or asked

    def in_scope(self, key: str) -> str:
        """Return the key of an ask in the whole call: no author can choose one that ends in -1."""
        return f"{key}-1" if key in self._in_rounds else key

    def __contains__(self, base: str) -> bool:
        """Return whether a key was derived from this base."""
        return base in self._counts

    def derive(self, base: str, in_branch: bool = False) -> str:
        """Derive a key from a base; the second of that base gets a number.

        Raises:
            AmbiguousKey: Where one of them is asked in a branch.
        """
        if in_branch:
            if base in self._counts:
                raise AmbiguousKey(base)
            self._counts[base] = _ANY_NUMBER
            return base
        counts = self._counts
        number = counts.get(base, 0) + 1
        if number > _ANY_NUMBER:
            raise AmbiguousKey(base)  # branches run in any order: a number would say nothing
        counts[base] = number
        return base if number == 1 else f"{base}-{number}"

    def take_all(self, counts: Mapping[str, int]) -> None:
        """Count keys as derived: of code that ran in an earlier round and does not run now."""
        for base, number in counts.items():
            self._counts[base] = max(number, self._counts.get(base, 0))

    def take(self, key: str) -> None:
        """Count one key as derived, with those that stand before it."""
        base, dash, number = key.rpartition("-")
        self.take_all({base: int(number)} if dash and number.isdecimal() else {key: 1})

    def taken(self) -> dict[str, int]:
        """Return how many keys were derived from each base."""
        counts = self._counts.items()
        return {base: number for base, number in counts if number != _ANY_NUMBER}
