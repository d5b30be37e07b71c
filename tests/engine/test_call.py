"""One call in one round: its names, what it takes of the answers, and what goes on to the next."""

from typing import Any

import pytest

from antiphon import Context
from antiphon.engine.call import Call, Rejected
from antiphon.errors import InvalidRequest
from antiphon.ports import ROUNDS_PER_START
from antiphon.protocol.journal import Entry, Journal, encode_value
from antiphon.seal.claims import Handle, Pending
from antiphon.testing.doubles import CountingEntropy
from tests.linear.one_tool_server import serving

SCHEMA = encode_value(
    {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
)
NOW = 100.0


def call(*pending: Pending, **more: Any) -> Call:
    settings: dict[str, Any] = {
        "id": "c1",
        "number": 2,
        "deadline": 500.0,
        "journal": Journal(b"seed"),
        "entropy": CountingEntropy(),
        **more,
    }
    return Call.of(pending=pending, **settings)


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def learned(call: Call) -> dict[str, Any]:
    return {entry.key: entry.value() for entry in call.entries}


def test_id_and_seed_are_drawn_when_needed_and_then_stay() -> None:
    drawn: list[int] = []

    def entropy(size: int) -> bytes:
        drawn.append(size)
        return bytes(range(len(drawn), len(drawn) + size))

    new = call(id="", journal=Journal(b""), entropy=entropy)
    assert drawn == []
    assert (new.id, new.seed) == (new.id, new.seed)
    assert len(new.id) == 32
    assert len(new.seed) == 16
    assert len(drawn) == 1
    assert call(id="", journal=Journal(b""), entropy=entropy).seed
    kept = call(entropy=entropy)
    assert (kept.id, kept.seed) == ("c1", b"seed")
    assert len(drawn) == 2


def test_a_call_with_a_seed_and_no_id_keeps_its_seed() -> None:
    begun = call(id="")
    assert begun.id
    assert begun.seed == b"seed"


def test_a_call_with_an_id_and_no_seed_draws_its_seed_before_it_is_used() -> None:
    one = call(Pending("place", "form", b""), journal=Journal(b""))
    digest = one.accept({"place": accepted(region="eu")}, NOW)
    same = call(Pending("place", "form", b""), journal=Journal(one.seed))
    assert same.accept({"place": accepted(region="eu")}, NOW) == digest


def test_rounds_are_counted_from_the_last_start() -> None:
    over = call(number=2 * ROUNDS_PER_START + 3)
    assert (over.round, over.generation) == (3, 2)
    assert (call().round, call().generation) == (2, 0)


def test_an_answer_is_taken_with_what_was_asked() -> None:
    asked = Pending("place", "form", b"digest", "Where?", secret=True, branch=True)
    one = call(asked)
    digest = one.accept({"place": {**accepted(region="eu"), "extra": 1}, "other": {}}, NOW)
    payload = encode_value(accepted(region="eu"))
    assert one.entries == [
        Entry("ask", "place", payload, b"digest", "Where?", secret=True, branch=True)
    ]
    assert list(one.timed) == []
    assert digest
    other = call(asked)
    assert other.accept({"place": accepted(region="us")}, NOW) != digest
    again = call(asked)
    assert again.accept({"place": accepted(region="eu")}, NOW) == digest
    elsewhere = call(asked, journal=Journal(b"other seed"))
    assert elsewhere.accept({"place": accepted(region="eu")}, NOW) != digest


@pytest.mark.parametrize("answers", [None, {}])
def test_an_answer_that_did_not_come_is_left_out_and_digests_to_nothing(answers: Any) -> None:
    one = call(Pending("place", "form", b""))
    assert one.accept(answers, NOW) == b""
    assert one.entries == []


@pytest.mark.parametrize(("expires", "late"), [(NOW, True), (NOW - 1, True), (NOW + 1, False)])
def test_an_answer_is_late_from_its_time_on_and_another_try_sees_the_same(
    expires: float, late: bool
) -> None:
    answered = call(Pending("place", "form", b"", expires=expires))
    answered.accept({"place": accepted(region="eu")}, NOW)
    raw = {"action": "expired"} if late else accepted(region="eu")
    assert learned(answered) == {"place": raw}
    assert list(answered.timed) == answered.entries
    silent = call(Pending("place", "form", b"", expires=expires))
    assert silent.accept({}, NOW) == b""
    assert learned(silent) == ({"place": {"action": "expired"}} if late else {})


def test_answers_come_after_what_is_known() -> None:
    before = Entry("memo", "price", b"5")
    one = call(Pending("place", "form", b""), journal=Journal(b"seed", [before]))
    one.accept({"place": accepted(region="eu")}, NOW)
    assert [entry.key for entry in one.entries] == ["price", "place"]
    assert one.journal.entries == [before]


def test_an_answer_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'place' must be an object"):
        call(Pending("place", "form", b"")).accept({"place": 5}, NOW)
    with pytest.raises(InvalidRequest, match="inputResponses must be an object"):
        call().accept([], NOW)


def test_content_that_no_rerun_reads_is_held_to_the_schema_it_was_asked_with() -> None:
    asked = Pending("size", "form", b"", tries=1, schema=SCHEMA)
    one = call(asked)
    assert one.accept({"size": accepted(size="large")}, NOW)
    assert one.entries == []
    rejected = one.rejected["size"]
    assert isinstance(rejected, Rejected)
    assert rejected.tries == 2
    assert "size" in rejected.reason
    good = call(asked)
    good.accept({"size": accepted(size=5)}, NOW)
    assert learned(good) == {"size": accepted(size=5)}
    assert good.rejected == {}
    refused = call(asked)
    refused.accept({"size": {"action": "decline"}}, NOW)
    assert learned(refused) == {"size": {"action": "decline"}}
    linear = call(Pending("size", "form", b""))
    linear.accept({"size": accepted(size="large")}, NOW)
    assert learned(linear) == {"size": accepted(size="large")}


def test_an_answer_that_is_missing_or_does_not_fit_does_not_stop_those_after_it() -> None:
    asked = [Pending("a", "form", b"", schema=SCHEMA), Pending("b", "form", b"", schema=SCHEMA)]
    for first in ({}, {"a": accepted(size="large")}):
        one = call(*asked)
        one.accept({**first, "b": accepted(size=5)}, NOW)
        assert learned(one) == {"b": accepted(size=5)}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ({"action": "accept"}, {"action": "accept", "url": "https://example.org"}),
        ({"action": "decline"}, {"action": "decline"}),
    ],
)
def test_a_visit_that_was_accepted_keeps_its_url(answer: Any, kept: Any) -> None:
    asked = Pending("pay", "url", b"", schema=b"https://example.org")
    one = call(asked)
    one.accept({"pay": answer}, NOW)
    assert learned(one) == {"pay": kept}
    plain = call(Pending("pay", "url", b""))
    plain.accept({"pay": answer}, NOW)
    assert learned(plain) == {"pay": answer}


def test_over_a_back_channel_an_ask_of_any_kind_may_end_without_an_answer() -> None:
    asks = [Pending("model", "sample", b"d1"), Pending("pay", "url", b"", schema=b"https://x.org")]
    one = call(*asks)
    one.accept_pushed({"model": {"action": "unavailable"}, "pay": {"action": "accept"}}, NOW)
    assert learned(one) == {
        "model": {"action": "unavailable"},
        "pay": {"action": "accept", "url": "https://x.org"},
    }
    assert {entry.key: entry.digest for entry in one.entries}["model"] == b"d1"
    with pytest.raises(InvalidRequest):
        call(*asks).accept_pushed({"model": {"action": "unavailable", "more": 1}}, NOW)


def test_the_next_round_of_a_call_is_the_same_call() -> None:
    one = call(trace="00-trace")
    one.began_effect = True
    journal = Journal(b"seed", [Entry("memo", "price", b"5")])
    following = one.next(journal, (Pending("place", "form", b""),))
    assert (following.id, following.number, following.deadline) == ("c1", 3, 500.0)
    assert (following.trace, following.journal) == ("00-trace", journal)
    assert list(following.pending) == ["place"]
    assert following.began_effect
    assert not call().next(journal, ()).began_effect


def test_a_journal_that_was_fetched_comes_below_what_the_round_brought() -> None:
    one = call(Pending("place", "form", b""), journal=Journal(b""))
    one.handle = Handle(2, b"digest", b"seed")
    one.accept({"place": accepted(region="eu")}, NOW)
    stored = Journal(b"stored", [Entry("memo", "price", b"5")])
    one.take_journal(stored)
    assert one.handle is None
    assert one.journal is stored
    assert one.seed == b"stored"
    assert [entry.key for entry in one.entries] == ["price", "place"]


def test_a_call_that_another_version_begins_again_has_no_answers() -> None:
    one = call(Pending("size", "form", b"", schema=SCHEMA))
    one.accept({"size": accepted(size="large")}, NOW)
    carried = Journal(b"seed", [Entry("effect", "pay", b"1", carried=True)])
    one.restart(carried)
    assert (one.journal, one.entries) == (carried, carried.entries)
    assert not one.pending
    assert one.rejected == {}


def test_answers_that_nobody_asked_for_are_kept_for_a_tool_that_wants_them() -> None:
    one = call()
    one.take_unasked({"place": {"region": "eu"}}, keep=True)
    assert one.unasked == {"place": encode_value({"region": "eu"})}
    with pytest.raises(InvalidRequest, match="'place' must be an object"):
        call().take_unasked({"place": "eu"}, keep=True)
    other = call()
    other.take_unasked({"place": "eu"}, keep=False)
    assert not other.unasked
    with pytest.raises(InvalidRequest, match="inputResponses must be an object"):
        other.take_unasked([], keep=False)


async def test_a_call_without_effects_asks_the_store_for_nothing(rounds: Any) -> None:
    async def order(ctx: Context) -> str:
        return "done"

    async def acting(ctx: Context) -> str:
        return await ctx.once("pay", lambda: "paid")

    class Listening:
        durable = shared = False

        def __init__(self, store: Any) -> None:
            self._store = store

        def for_server(self, server: str) -> Any:
            self._store = self._store.for_server(server)
            return self

        def __getattr__(self, name: str) -> Any:
            operation = getattr(self._store, name)
            if not callable(operation):
                return operation
            used.append(name)
            return operation

    used: list[str] = []
    world = rounds(serving(order, acting))
    server = world.make(store=Listening(world.store))
    used.clear()
    assert (await world.begin("order", server=server)).text == "done"
    assert [name for name in used if name not in ("open", "close")] == []
    assert (await world.begin("acting", server=server)).text == "paid"
    assert "end_call" in used
