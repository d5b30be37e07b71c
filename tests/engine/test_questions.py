"""Asks made ready, the shape of answers, how answers are read, and tool results in messages."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from antiphon import Completion, Elicit, ElicitUrl, ListRoots, Opened, Root, Sample
from antiphon.engine.questions import (
    Asked,
    check_shape,
    plain_form,
    question,
    read_answer,
    reasons,
    unanswered,
)
from antiphon.errors import AnswerInvalid, HandlerError, InvalidRequest

URL = "https://example.org/pay"
LONGEST = 8_192
"""Characters of a message."""


class Place(BaseModel):
    region: str


class Plan(BaseModel):
    region: str


FORM = {"type": "object", "properties": {"region": {"type": "string"}}, "required": ["region"]}


def sent(ask: Any, reason: str = "") -> Any:
    return json.loads(question(ask).body(reason))


# --- questions -----------------------------------------------------------------------------------


def test_every_kind_of_ask_knows_its_base_its_needs_and_what_it_shows() -> None:
    form, url = question(Elicit("Where?", Place)), question(ElicitUrl("Pay", URL))
    sample, roots = question(Sample("Say hi")), question(ListRoots())
    assert [(q.kind, q.base, q.needs) for q in (form, url, sample, roots)] == [
        ("form", "place", ("form",)),
        ("url", "url", ("url",)),
        ("sample", "sample", ("sampling",)),
        ("roots", "roots", ("roots",)),
    ]
    assert [q.note for q in (form, url, sample, roots)] == ["Where?", "Pay", "Say hi", ""]
    assert json.loads(form.shown)["properties"].keys() == {"region"}
    assert url.shown == URL.encode()
    assert sample.shown == roots.shown == b""
    asked = Sample([{"role": "user", "content": {"type": "text", "text": "Hi"}}])
    assert question(asked).note == "a completion"
    with pytest.raises(HandlerError, match="int is not an ask"):
        question(5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Elicit("Where?", Place), Elicit("Whither?", Place)),
        (Elicit("Where?", Place), Elicit("Where?", Plan, details={"a": 1})),
        (Elicit("Where?", Place, details={"a": 1}), Elicit("Where?", Place, details={"a": 2})),
        (Elicit("Where?", Place, identity="a"), Elicit("Where?", Place, identity="b")),
        (ElicitUrl("Pay", URL), ElicitUrl("Pay now", URL)),
        (ElicitUrl("Pay", URL), ElicitUrl("Pay", URL + "2")),
        (ElicitUrl("Pay", URL, identity="a"), ElicitUrl("Pay", URL, identity="b")),
        (Sample("Say hi"), Sample("Say ho")),
        (Sample("Say hi"), Sample("Say hi", temperature=0.5)),
        (Sample("Say hi", identity="a"), Sample("Say hi", identity="b")),
    ],
)
def test_questions_that_differ_in_what_they_say_have_other_digests(one: Any, other: Any) -> None:
    assert question(one).digest == question(one).digest
    assert question(one).digest != question(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Elicit("1 left", Place, identity="x"), Elicit("2 left", Place, identity="x")),
        (ElicitUrl("1 left", URL, identity="x"), ElicitUrl("2 left", URL, identity="x")),
        (Sample("1 left", identity="x"), Sample("2 left", identity="x")),
    ],
)
def test_an_identity_stands_for_wording_that_changes(one: Any, other: Any) -> None:
    assert question(one).digest == question(other).digest


@pytest.mark.parametrize("spec", [Place, FORM])
@pytest.mark.parametrize("length", [10, 512, 513, 9000])
def test_a_plain_question_is_the_same_as_one_with_options(spec: Any, length: int) -> None:
    message = "w" * length
    plain, full = plain_form(message, spec), question(Elicit(message, spec))
    assert (plain.digest, plain.base, plain.body()) == (full.digest, full.base, full.body())
    assert (plain_form(message, spec) is plain) is (length <= 512)


def test_what_goes_out_is_the_request_of_its_kind() -> None:
    form = sent(Elicit("Where?", Place))
    assert (form["method"], form["params"]["message"]) == ("elicitation/create", "Where?")
    assert form["params"]["requestedSchema"]["required"] == ["region"]
    url = sent(ElicitUrl("Pay", URL))
    assert (url["params"]["mode"], url["params"]["url"]) == ("url", URL)
    assert sent(Sample("Say hi"))["method"] == "sampling/createMessage"
    assert sent(ListRoots())["method"] == "roots/list"


def test_a_question_is_encoded_once_and_anew_with_a_reason() -> None:
    ready = question(Elicit("Where?", Place))
    assert ready.body() is ready.body()
    told = json.loads(ready.body("region: too long"))["params"]["message"]
    assert told == "Where?\n\nThe last answer did not fit: region: too long"
    assert json.loads(ready.body())["params"]["message"] == "Where?"
    visit = sent(ElicitUrl("Pay", URL), "gone")["params"]["message"]
    assert visit.endswith("did not fit: gone")


def test_a_message_shows_what_could_hide_in_it() -> None:
    text = sent(Elicit("Pay\u202e\u0007?", Place))["params"]["message"]
    assert text != "Pay\u202e\u0007?"
    assert "\u202e" not in text
    assert "\u0007" not in text


def test_details_are_lines_below_the_message() -> None:
    details = {"Amount": 5, "To": "ACME", "odd\u202e": {"a": [1]}}
    text = sent(Elicit("Pay?", Place, details=details))["params"]["message"]
    head, blank, amount, to, odd = text.split("\n")
    assert (head, blank) == ("Pay?", "")
    assert "Amount: 5" in amount
    assert "ACME" in to
    assert '{"a":[1]}' in odd
    assert "\u202e" not in odd


@pytest.mark.parametrize("extra", [0, 1])
def test_a_message_is_cut_above_its_longest(extra: int) -> None:
    text = sent(Elicit("w" * (LONGEST + extra), Place))["params"]["message"]
    assert (text == "w" * (LONGEST + extra)) is (extra == 0)
    assert text.count("w") <= LONGEST + 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org", "https://", "https:example.org", "/pay", "https://exa mple.org/",
        "https://example.org/a b", "https://example.org/\n", "https://[", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_url_that_a_person_could_not_visit_safely_is_refused(url: str) -> None:
    with pytest.raises(HandlerError, match="absolute http"):
        question(ElicitUrl("Pay", url))


@pytest.mark.parametrize("url", ["http://example.org", "https://example.org:8443/pay?x=1#y"])
def test_an_absolute_url_is_taken(url: str) -> None:
    assert question(ElicitUrl("Pay", url)).shown == url.encode()


# --- sampling ------------------------------------------------------------------------------------

TOOL = {"name": "add", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, ()),
        ({"tools": [TOOL]}, ("sampling.tools",)),
        ({"tool_choice": {"mode": "auto"}}, ("sampling.tools",)),
        ({"include_context": "thisServer"}, ("sampling.context",)),
        ({"include_context": "allServers"}, ("sampling.context",)),
        ({"include_context": "none"}, ()),
    ],
)
def test_a_completion_needs_what_it_uses(options: dict[str, Any], needs: tuple[str, ...]) -> None:
    assert question(Sample("Say hi", **options)).needs == ("sampling", *needs)


def test_only_what_was_said_of_a_completion_is_sent() -> None:
    params = sent(Sample("Say hi", max_tokens=9, system_prompt="Be kind.", temperature=0.0))
    message = {"role": "user", "content": {"type": "text", "text": "Say hi"}}
    assert params["params"] == {
        "messages": [message],
        "maxTokens": 9,
        "systemPrompt": "Be kind.",
        "temperature": 0.0,
    }


def use(*ids: str) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": "add", "input": {}} for id in ids]
    return {"role": "assistant", "content": blocks if len(blocks) > 1 else blocks[0]}


def result(*ids: str, role: str = "user", more: tuple[Any, ...] = ()) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "toolUseId": id, "content": []} for id in ids]
    return {"role": role, "content": [*blocks, *more]}


TEXT = {"type": "text", "text": "and"}
SAID = {"role": "user", "content": TEXT}


@pytest.mark.parametrize(
    "messages",
    [
        [SAID],
        [SAID, use("a"), result("a")],
        [SAID, use("a", "b"), result("b", "a"), use("c"), result("c"), SAID],
    ],
)
def test_tool_uses_that_are_answered_next_are_sent(messages: list[Any]) -> None:
    assert sent(Sample(messages))["params"]["messages"] == messages


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([SAID, use("a")], "every tool_use needs"),
        ([SAID, use("a"), SAID], "every tool_use needs"),
        ([SAID, use("a"), result("b")], "every tool_use needs"),
        ([SAID, use("a", "b"), result("a")], "every tool_use needs"),
        ([SAID, result("a")], "every tool_use needs"),
        ([SAID, use("a"), result("a", role="assistant")], "a user message of nothing else"),
        ([SAID, use("a"), result("a", more=(TEXT,))], "a user message of nothing else"),
    ],
)
def test_tool_uses_that_are_not_answered_next_are_refused(messages: list[Any], told: str) -> None:
    with pytest.raises(HandlerError, match=told):
        question(Sample(messages))


# --- answers -------------------------------------------------------------------------------------

COMPLETION = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}


@pytest.mark.parametrize(
    ("kind", "raw", "kept"),
    [
        ("form", {"action": "accept", "content": {"a": 1}, "x": 1}, "action content"),
        ("form", {"action": "accept"}, "action content"),
        ("form", {"action": "decline", "content": {"a": 1}}, "action"),
        ("form", {"action": "cancel"}, "action"),
        ("url", {"action": "accept", "content": {"a": 1}}, "action"),
        ("url", {"action": "decline"}, "action"),
        ("sample", {**COMPLETION, "x": 1}, "role content model"),
        ("sample", {**COMPLETION, "stopReason": "endTurn"}, "role content model stopReason"),
        ("sample", {**COMPLETION, "stopReason": None}, "role content model stopReason"),
        ("sample", {**COMPLETION, "role": "user", "content": [TEXT, TEXT]}, "role content model"),
        ("roots", {"roots": [], "x": 1}, "roots"),
    ],
)
def test_an_answer_keeps_the_members_of_its_kind(kind: Any, raw: Any, kept: str) -> None:
    checked = check_shape(kind, "k", raw)
    assert list(checked) == kept.split()
    assert {**raw, "content": raw.get("content", {})}.items() >= checked.items()


@pytest.mark.parametrize(
    ("kind", "raw", "told"),
    [
        ("form", [], "must be an object"),
        ("form", {}, "needs an action"),
        ("form", {"action": "expired"}, "needs an action"),
        ("url", {"action": "maybe"}, "needs an action"),
        ("form", {"action": "accept", "content": []}, "content of the answer to 'k'"),
        ("sample", {}, "sampling result"),
        ("sample", {"action": "decline"}, "sampling result"),
        ("sample", {**COMPLETION, "role": "system"}, "sampling result"),
        ("sample", {**COMPLETION, "model": 5}, "sampling result"),
        ("sample", {**COMPLETION, "stopReason": 5}, "sampling result"),
        ("sample", {**COMPLETION, "content": "hi"}, "sampling result"),
        ("sample", {**COMPLETION, "content": [TEXT, "hi"]}, "sampling result"),
        ("sample", {**COMPLETION, "content": [{"text": "hi"}]}, "sampling result"),
        ("roots", {}, "a list of roots"),
        ("roots", {"roots": {}}, "a list of roots"),
        ("roots", {"roots": ["file:///a"]}, "a file:// uri"),
        ("roots", {"roots": [{"uri": "https://a"}]}, "a file:// uri"),
        ("roots", {"roots": [{"uri": 5}]}, "a file:// uri"),
    ],
)
def test_an_answer_of_another_shape_is_refused(kind: Any, raw: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_shape(kind, "k", raw)


def test_a_root_keeps_its_name_if_it_is_a_text() -> None:
    roots = [{"uri": "file:///a", "name": "A", "x": 1}, {"uri": "file:///b", "name": 5}]
    kept = check_shape("roots", "k", {"roots": roots})
    assert kept == {"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]}
    assert read_answer("roots", kept, "k", None).value == [
        Root("file:///a", "A"),
        Root("file:///b", None),
    ]


@pytest.mark.parametrize("action", ["decline", "cancel", "expired", "unavailable"])
def test_any_kind_of_ask_may_end_without_an_answer(action: str) -> None:
    assert unanswered({"action": action}) is True
    outcome = read_answer("sample", {"action": action}, "k", None)
    assert (outcome.status[:6], outcome.value) == (action[:6], None)


@pytest.mark.parametrize(
    "raw", [{"action": "accept"}, {}, [], "decline", {"action": "decline", "content": {}}]
)
def test_an_answer_is_not_taken_for_its_absence(raw: Any) -> None:
    assert unanswered(raw) is False


def test_an_answer_is_read_as_its_kind_says() -> None:
    form = question(Elicit("Where?", Place))
    accepted = {"action": "accept", "content": {"region": "eu"}}
    assert form.read(accepted, "k").value == Place(region="eu")
    assert form.read(accepted, "k").status == "accepted"
    assert form.read({"action": "decline"}, "k").status == "declined"
    assert read_answer("form", accepted, "k", None).value == {"region": "eu"}
    assert question(ElicitUrl("Pay", URL)).read({"action": "accept"}, "k").value == Opened(URL)
    assert read_answer("url", {"action": "accept", "url": URL}, "k", None).value == Opened(URL)
    assert read_answer("url", {"action": "accept"}, "k", None).value == Opened("")
    done = question(Sample("Say hi")).read({**COMPLETION, "stopReason": "endTurn"}, "k")
    assert done.value == Completion("assistant", COMPLETION["content"], "m", "endTurn")
    bare: Any = read_answer("sample", COMPLETION, "k", None).value
    assert bare.stop_reason is None
    with pytest.raises(AnswerInvalid) as refused:
        form.read({"action": "accept", "content": {"region": 5}}, "k")
    assert "region" in reasons(refused.value)


def test_reasons_are_bounded() -> None:
    assert len(reasons(AnswerInvalid(["r" * 2000]))) <= 1000
    assert reasons(AnswerInvalid(["one", "two"])) == "one; two"


# --- asks that go out ----------------------------------------------------------------------------


def test_an_ask_that_goes_out_is_remembered_with_what_it_shows_only_where_no_rerun_asks_it() -> (
    None
):
    ready = question(Elicit("Where?", Place, secret=True))
    asked = Asked(ready, 2, "too long", True)
    pending = asked.pending("place", 100.0)
    assert (pending.key, pending.kind, pending.digest) == ("place", "form", ready.digest)
    assert (pending.note, pending.tries, pending.expires) == ("Where?", 2, 0.0)
    assert (pending.secret, pending.branch, pending.schema) == (True, True, b"")
    assert asked.pending("place", 100.0, native=True).schema == ready.shown
    plain = Asked(question(ListRoots()))
    assert (plain.tries, plain.reason, plain.branch) == (0, "", False)


def test_asking_the_same_again_does_not_start_its_time_anew() -> None:
    ready, other = question(Elicit("Where?", Place, timeout=30)), question(Elicit("Who?", Place))
    first = Asked(ready).pending("place", 100.0)
    assert first.expires == 130.0
    assert Asked(ready).pending("place", 120.0, before=first).expires == 130.0
    changed = question(Elicit("Whither?", Place, timeout=30))
    assert Asked(changed).pending("place", 120.0, before=first).expires == 150.0
    assert Asked(other).pending("place", 120.0, before=first).expires == 0.0
    endless = Asked(other).pending("place", 100.0)
    assert Asked(other).pending("place", 120.0, before=endless).expires == 0.0
    untimed = question(Elicit("Where?", Place))
    assert untimed.digest == ready.digest
    before = Asked(untimed).pending("place", 100.0)
    assert Asked(ready).pending("place", 120.0, before=before).expires == 150.0
