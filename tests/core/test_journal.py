"""A journal that is being read: what a replay knows, has read and must still read."""

import pytest

from antiphon.errors import Diverged, KeyReused
from antiphon.protocol.journal import Entry, Journal, Replay, encode_value
from antiphon.protocol.journal_index import PATCHED
from antiphon.seal.claims import Pending


def ask(key: str, **more: object) -> Entry:
    return Entry("ask", key, encode_value("yes"), **more)  # pyright: ignore[reportArgumentType]


def effect(key: str, **more: object) -> Entry:
    return Entry("effect", key, encode_value(1), **more)  # pyright: ignore[reportArgumentType]


def test_a_new_entry_has_no_property_that_nobody_gave_it():
    entry = ask("place")
    given = (entry.secret, entry.retry, entry.carried, entry.branch, entry.reused)
    assert given == (False,) * 5
    assert entry.outcome == "ok"


def test_an_ask_that_is_out_and_a_journal_begin_with_nothing():
    pending = Pending("place", "form", b"")
    assert (pending.tries, pending.expires) == (0, 0.0)
    assert (pending.secret, pending.branch, pending.schema, pending.note) == (False, False, b"", "")
    journal = Journal(b"seed")
    assert (journal.asked, journal.pauses, journal.native, journal.state) == (0, 0, False, None)
    assert journal.entries == []


def replaying(entries: list[Entry], strict: bool = True) -> Replay:
    return Replay(entries, strict, entries[::-1] if strict else [])


def test_every_reader_gets_a_value_of_its_own():
    entry = Entry("memo", "basket", encode_value(["a"]))
    entry.value().append("b")
    assert entry.value() == ["a"]


def test_a_key_that_was_recorded_is_used():
    replay = replaying([])
    replay.record(ask("place"))
    assert replay.used("ask", "place")
    with pytest.raises(KeyReused):
        replay.recall("ask", "place", b"", "")


def test_what_need_not_be_read_does_not_hide_what_must_be():
    with pytest.raises(Diverged, match="ask 'place'"):
        replaying([Entry("memo", "price", b""), ask("place")]).check_end(
            branches_cut=False, later=set()
        )


def test_a_replay_knows_an_entry_without_reading_it():
    replay = replaying([ask("place")])
    assert replay.peek("ask", "place") is not None
    assert replay.peek("ask", "plan") is None
    assert replay.peek("effect", "place") is None
    assert replay.unread


def test_a_key_is_used_once():
    replay = replaying([ask("place")])
    assert replay.recall("ask", "place", b"", "") == ask("place")
    assert not replay.unread
    assert replay.used("ask", "place")
    with pytest.raises(KeyReused):
        replay.recall("ask", "place", b"", "")


@pytest.mark.parametrize("outcome", ["not-done", "cut"])
def test_only_a_try_that_came_to_nothing_is_followed_by_another_under_its_key(outcome: str):
    replay = replaying([])
    assert replay.recall("effect", "pay", b"", "") is None
    replay.record(effect("pay", outcome=outcome))
    assert replay.recall("effect", "pay", b"", "") is None
    replay.record(effect("pay"))
    with pytest.raises(KeyReused):
        replay.recall("effect", "pay", b"", "")
    assert [entry.key for entry in replay.entries()] == ["pay", "pay\n2"]
    again = replaying(replay.entries())
    found = [again.recall("effect", "pay", b"", "") for _ in range(2)]
    assert [entry.outcome for entry in found if entry is not None] == [outcome, "ok"]
    assert not again.unread


def test_each_try_of_a_key_has_a_number_of_its_own_which_every_release_must_know():
    replay = replaying([])
    for _ in range(3):
        replay.recall("effect", "pay", b"", "")
        replay.record(effect("pay", outcome="not-done"))
    assert [entry.key for entry in replay.entries()] == ["pay", "pay\n2", "pay\n3"]


@pytest.mark.parametrize("outcome", ["ok", "failed", "uncertain"])
def test_a_key_whose_effect_may_have_happened_is_taken(outcome: str):
    replay = replaying([])
    replay.recall("effect", "pay", b"", "")
    replay.record(effect("pay", outcome=outcome))
    with pytest.raises(KeyReused):
        replay.recall("effect", "pay", b"", "")


def test_a_handler_ends_only_after_it_has_read_its_asks_and_effects():
    for entry in (ask("place"), effect("pay")):
        with pytest.raises(Diverged, match="the end of the handler before it"):
            replaying([entry]).check_end(branches_cut=False, later=set())
    with pytest.raises(Diverged, match="something else"):
        replaying([ask("place")]).check_end(branches_cut=False, later=set(), now="something else")
    replaying([Entry("memo", "price", b"")]).check_end(branches_cut=False, later=set())


def test_effects_that_run_after_the_handler_may_be_unread_at_its_end():
    replaying([effect("pay")]).check_end(branches_cut=False, later={"pay"})
    with pytest.raises(Diverged):
        replaying([ask("pay")]).check_end(branches_cut=False, later={"pay"})
    with pytest.raises(Diverged):
        replaying([effect("ship")]).check_end(branches_cut=False, later={"pay"})


def test_branches_that_were_cancelled_may_not_have_come_to_their_entries():
    replaying([ask("place", branch=True)]).check_end(branches_cut=True, later=set())
    for cut, branch in ((False, True), (True, False)):
        with pytest.raises(Diverged):
            replaying([ask("place", branch=branch)]).check_end(branches_cut=cut, later=set())


def test_something_new_waits_for_what_the_handler_itself_has_to_read():
    with pytest.raises(Diverged):
        replaying([ask("place")]).check_new("ask", "plan", "What?")
    replaying([ask("place", branch=True)]).check_new("ask", "plan", "What?")
    replaying([ask("place", carried=True)]).check_new("ask", "plan", "What?")
    replaying([ask("place")], strict=False).check_new("ask", "plan", "What?")


def test_a_forgotten_entry_is_asked_for_again():
    replay = replaying([ask("place")])
    replay.forget("ask", "place")
    assert not replay.unread
    assert replay.recall("ask", "place", b"", "") is None
    assert replay.entries() == []


def test_what_an_execution_learned_is_kept_apart_from_what_it_read():
    replay = replaying([ask("old")])
    assert not replay.fresh
    replay.record(effect("pay"))
    replay.record(ask("plan"))
    assert replay.fresh == [effect("pay"), ask("plan")]
    assert replay.entries() == [ask("old"), effect("pay"), ask("plan")]


def test_looking_at_an_entry_does_not_read_it_and_the_other_ways_do():
    replay = replaying([ask("a"), ask("b")])
    assert replay.peek("ask", "a") == ask("a")
    assert replay.peek("ask", "c") is None
    assert replay.seen("ask", "a") == replay.seen("ask", "a") == ask("a")
    assert not replay.used("ask", "a")
    assert replay.unread
    replay.skip("ask", "b")
    assert replay.used("ask", "b")
    assert not replay.unread


def test_what_is_recorded_is_given_back_as_it_is_kept():
    replay = replaying([])
    assert replay.record(ask("place")) == ask("place")
    assert replay.entries() == replay.fresh == [ask("place")]


def test_a_mark_of_a_patch_may_be_gone_but_no_other_patch():
    replaying([Entry("patch", f"{PATCHED}new", b"")]).check_new("ask", "plan", "What?")
    with pytest.raises(Diverged):
        replaying([Entry("patch", "now", b"")]).check_new("ask", "plan", "What?")


def test_a_divergence_names_both_sides_with_their_notes():
    replay = replaying([ask("place", digest=b"one", note="Where?"), effect("pay")])
    with pytest.raises(Diverged) as found:
        replay.recall("ask", "place", b"two", "Whither?")
    assert "ask 'place' (Where?)" in str(found.value)
    assert "ask 'place' (Whither?)" in str(found.value)
