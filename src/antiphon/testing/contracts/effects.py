"""Effects that happen once, and what an operator sees of them."""

import asyncio
import time

import msgspec

from antiphon.ports import (
    About,
    Busy,
    Claimed,
    Effect,
    FailedEffect,
    Finished,
    LeasedRound,
    LeaseLost,
    Mismatch,
    Recorded,
    Started,
    Store,
    Uncertain,
)
from antiphon.testing.contracts.parts import (
    ARGS,
    LONG,
    TTL,
    YES,
    Contract,
    assert_spent,
    begun_of,
    effect_of,
    mine_of,
    name,
    record,
    redeem,
    start,
    store_passes,
)


async def an_effect_is_begun_once_and_its_result_given_ever_after(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    assert await start(b, effect) == Busy()
    assert await a.settle(effect.id, begun.fence, result=b"receipt", error=None)
    assert await start(b, effect) == Finished(b"receipt", effect.call)
    assert await start(a, effect, retry=True) == Finished(b"receipt", effect.call)


async def many_begins_of_one_effect_have_one_winner(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begins = await asyncio.gather(*(start(store, effect) for store in (a, b) * 12))
    assert sum(isinstance(begin, Started) for begin in begins) == 1, begins
    assert sum(begin == Busy() for begin in begins) == 23, begins


async def an_empty_result_is_a_result(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    assert await a.settle(effect.id, begun.fence, result=b"", error=None)
    assert await start(b, effect) == Finished(b"", effect.call)


async def a_failed_effect_stays_failed(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    assert await a.settle(effect.id, begun.fence, result=None, error="ValueError: no")
    assert await start(b, effect) == FailedEffect("ValueError: no")
    assert await start(b, effect, retry=True) == FailedEffect("ValueError: no")


async def an_effect_whose_holder_vanished_is_uncertain(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, lease=0.0)
    assert await start(b, effect) == Uncertain(effect.call)
    assert await start(b, effect) == Uncertain(effect.call)
    assert await a.settle(effect.id, begun.fence, result=b"late", error=None)
    assert await start(b, effect) == Finished(b"late", effect.call)


async def a_retry_takes_over_and_fences_the_old_holder(a: Store, b: Store) -> None:
    effect = effect_of(name())
    old = await begun_of(a, effect, lease=0.0)
    new = await begun_of(b, effect, retry=True)
    assert new.fence > old.fence
    assert await start(a, effect, retry=True) == Busy()
    assert not await a.hold(effect.id, old.fence, lease=LONG)
    assert not await a.settle(effect.id, old.fence, result=b"old", error=None)
    await a.abandon(effect.id, old.fence)
    assert await b.settle(effect.id, new.fence, result=b"new", error=None)
    assert await start(a, effect) == Finished(b"new", effect.call)


async def a_held_effect_stays_busy(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, lease=0.0)
    assert await a.hold(effect.id, begun.fence, lease=LONG)
    assert await start(b, effect) == Busy()
    assert await start(b, effect, retry=True) == Busy()


async def an_abandoned_effect_is_begun_anew(a: Store, b: Store) -> None:
    effect = effect_of(name())
    old = await begun_of(a, effect)
    await a.abandon(effect.id, old.fence)
    assert await a.effects(effect.call) == []
    new = await begun_of(b, effect)
    assert new.fence > old.fence
    assert not await a.settle(effect.id, old.fence, result=b"old", error=None)


async def a_settled_effect_cannot_be_changed(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    assert await a.settle(effect.id, begun.fence, result=b"first", error=None)
    assert not await a.settle(effect.id, begun.fence, result=b"second", error=None)
    assert not await a.hold(effect.id, begun.fence, lease=LONG)
    await a.abandon(effect.id, begun.fence)
    assert await start(b, effect) == Finished(b"first", effect.call)


async def another_function_or_other_arguments_do_not_match(a: Store, b: Store) -> None:
    call = name()
    begun = await begun_of(a, effect_of(call))
    assert await start(b, effect_of(call, function="refund")) == Mismatch("pay")
    assert await start(b, effect_of(call, args=b"others")) == Mismatch("pay")
    assert await a.settle(f"{call}/charge", begun.fence, result=b"ok", error=None)
    assert await start(b, effect_of(call, args=b"others"), retry=True) == Mismatch("pay")


async def a_window_ends_and_the_effect_is_begun_anew(a: Store, b: Store) -> None:
    first = effect_of(name())
    begun = await begun_of(a, first)
    assert await a.settle(first.id, begun.fence, result=b"one", error=None)
    other = Effect(id=first.id, call=name(), key=first.key, function=first.function, arguments=ARGS)
    assert await start(b, other, window=600.0) == Finished(b"one", first.call)
    again = await begun_of(b, other, window=0.0)
    assert again.fence > begun.fence
    assert await b.settle(first.id, again.fence, result=b"two", error=None)
    assert await start(a, first, window=600.0) == Finished(b"two", other.call)


async def a_failure_ends_with_its_window_too(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    assert await a.settle(effect.id, begun.fence, result=None, error="no")
    assert await start(b, effect, window=600.0) == FailedEffect("no")
    again = await begun_of(b, effect, window=0.0)
    assert await b.settle(effect.id, again.fence, result=b"yes", error=None)
    assert await start(a, effect, window=600.0) == Finished(b"yes", effect.call)


async def a_shared_effect_that_failed_is_tried_again_by_another_call(a: Store, b: Store) -> None:
    first = effect_of(name())
    begun = await begun_of(a, first, window=600.0)
    assert await a.settle(first.id, begun.fence, result=None, error="no")
    assert await start(b, first, window=600.0) == FailedEffect("no")
    other = Effect(id=first.id, call=name(), key=first.key, function=first.function, arguments=ARGS)
    again = await begun_of(b, other, window=600.0)
    assert again.fence > begun.fence
    assert await b.settle(first.id, again.fence, result=b"yes", error=None)
    assert await start(a, first, window=600.0) == Finished(b"yes", other.call)


async def an_effect_under_a_lost_round_is_fenced_off(a: Store, b: Store) -> None:
    call = name()
    old = await mine_of(a, call, lease=0.0)
    new = await mine_of(b, call)
    effect = effect_of(call)
    assert await start(a, effect, under=LeasedRound(call, 2, old.fence, b"old")) == LeaseLost()
    assert await start(a, effect, under=LeasedRound(call, 3, 1)) == LeaseLost()
    assert await a.effects(call) == []
    begun = await begun_of(b, effect, under=LeasedRound(call, 2, new.fence))
    assert await b.settle(effect.id, begun.fence, result=b"ok", error=None)
    assert await record(b, call, 2, new.fence)
    late = effect_of(call, "late")
    assert await start(b, late, under=LeasedRound(call, 2, new.fence)) == LeaseLost()


async def every_effect_keeps_the_prefix_of_its_round(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    for key, prefix in (("one", b"first"), ("two", b"second"), ("three", None)):
        under = LeasedRound(call, 2, mine.fence, prefix)
        assert await begun_of(a, effect_of(call, key), under=under)
    await a.release(call, 2, mine.fence)
    again = await redeem(b, call)
    assert isinstance(again, Claimed)
    assert again.prefix == b"second"
    await b.release(call, 2, again.fence)
    third = await redeem(a, call)
    assert isinstance(third, Claimed)
    assert third.prefix == b"second"


async def a_claim_whose_reply_was_lost_is_the_same_claim(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, nonce=b"nonce-1")
    assert await start(a, effect, nonce=b"nonce-1") == begun
    assert await start(b, effect, nonce=b"nonce-2") == Busy()
    assert await start(b, effect) == Busy()
    assert await a.settle(effect.id, begun.fence, result=b"done", error=None)
    assert await start(a, effect, nonce=b"nonce-1") == Finished(b"done", effect.call)


async def a_lost_reply_is_known_after_the_lease_too(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, lease=0.0, nonce=b"nonce-1")
    assert await start(b, effect, nonce=b"nonce-2") == Uncertain(effect.call)
    assert await start(a, effect, nonce=b"nonce-1") == begun
    assert await start(b, effect, nonce=b"nonce-2") == Busy()
    taken = effect_of(name())
    old = await begun_of(a, taken, lease=0.0, nonce=b"nonce-1")
    new = await begun_of(b, taken, retry=True, nonce=b"nonce-2")
    assert new.fence > old.fence
    assert await start(a, taken, nonce=b"nonce-1") == Busy()


async def a_round_with_effects_lives_as_long_as_they_do(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call, ttl=0.05)
    await begun_of(a, effect_of(call), under=LeasedRound(call, 2, mine.fence, b"prefix"))
    await a.release(call, 2, mine.fence)
    await store_passes(b, 0.1)
    again = await redeem(b, call, ttl=-1.0)
    assert isinstance(again, Claimed)
    assert again.prefix == b"prefix"


async def the_effects_of_an_ended_call_live_until_its_last_token_has_expired(
    a: Store, b: Store
) -> None:
    call = name()
    mine = await mine_of(a, call)
    done = await settled_in(a, call, "done", under=LeasedRound(call, 2, mine.fence))
    vanished = effect_of(call, "vanished")
    await begun_of(a, vanished, lease=0.0)
    assert await record(a, call, 2, mine.fence, ttl=0.2, final=True)
    assert await start(b, done) == Finished(b"1", call)
    await store_passes(b, 0.3)
    await b.end_call(call, ttl=0.0)
    assert [row.key for row in await b.effects(call)] == ["vanished"]


async def a_call_that_ended_in_its_first_round_keeps_no_effect(a: Store, b: Store) -> None:
    call = name()
    await settled_in(a, call, "one")
    shared = await settled_in(a, call, "shared", window=600.0)
    await a.end_call(call, ttl=0.0)
    assert [row.key for row in await b.effects(call)] == ["shared"]
    assert await start(b, shared, window=600.0) == Finished(b"1", call)


async def settled_in(
    store: Store,
    call: str,
    key: str,
    *,
    under: LeasedRound | None = None,
    window: float | None = None,
) -> Effect:
    """Run an effect to its end."""
    effect = effect_of(call, key)
    begun = await begun_of(store, effect, under=under, window=window)
    assert await store.settle(effect.id, begun.fence, result=b"1", error=None)
    return effect


async def a_round_ends_with_its_outcome_and_not_with_its_prefix(a: Store, b: Store) -> None:
    call = name()
    mine = await mine_of(a, call)
    await begun_of(a, effect_of(call), under=LeasedRound(call, 2, mine.fence, b"prefix"))
    assert await record(a, call, 2, mine.fence, b"outcome")
    assert await redeem(b, call) == Recorded(b"outcome")


async def effects_of_a_call_are_listed_oldest_first_with_their_state(a: Store, b: Store) -> None:
    call = name()
    done = await begun_of(a, effect_of(call, "done"))
    assert await a.settle(f"{call}/done", done.fence, result=b"1", error=None)
    failed = await begun_of(a, effect_of(call, "failed"))
    assert await a.settle(f"{call}/failed", failed.fence, result=None, error="no")
    await begun_of(a, effect_of(call, "vanished"), lease=0.0)
    await begun_of(a, effect_of(call, "running"))
    await begun_of(a, effect_of(name(), "foreign"))
    rows = await b.effects(call)
    assert [(row.key, row.state) for row in rows] == [
        ("done", "done"),
        ("failed", "failed"),
        ("vanished", "uncertain"),
        ("running", "started"),
    ]
    assert all(row.call == call and row.function == "pay" for row in rows)
    assert [row.started for row in rows] == sorted(row.started for row in rows)
    assert abs(rows[0].started - time.time()) < 60
    assert [row.settled is not None for row in rows] == [True, True, False, False]


async def an_operator_settles_an_uncertain_effect(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, lease=0.0)
    assert await b.settle_uncertain(effect.call, effect.key, result=b"paid")
    assert not await a.settle(effect.id, begun.fence, result=b"late", error=None)
    assert await start(a, effect) == Finished(b"paid", effect.call)
    assert not await b.settle_uncertain(effect.call, effect.key, result=b"again")


async def what_an_operator_gave_is_taken_back_when_it_is_of_no_use(a: Store, b: Store) -> None:
    effect = effect_of(name())
    await begun_of(a, effect, lease=0.0)
    assert await b.settle_uncertain(effect.call, effect.key, result=b"wrong")
    assert not await a.unsettle(effect.call, effect.key, result=b"other")
    assert not await a.unsettle(effect.call, "other", result=b"wrong")
    assert await a.unsettle(effect.call, effect.key, result=b"wrong")
    assert not await a.unsettle(effect.call, effect.key, result=b"wrong")
    assert await start(a, effect) == Uncertain(effect.call)
    [row] = await b.effects(effect.call)
    assert (row.state, row.settled) == ("uncertain", None)
    uncertain = await b.calls(limit=1000, uncertain=True)
    assert effect.call in {call.call for call in uncertain}
    assert await b.settle_uncertain(effect.call, effect.key, result=b"right")
    assert await start(a, effect) == Finished(b"right", effect.call)


async def what_ran_is_never_taken_back(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect, nonce=b"nonce")
    assert await a.settle(effect.id, begun.fence, result=b"paid", error=None)
    assert not await b.unsettle(effect.call, effect.key, result=b"paid")
    assert await start(b, effect) == Finished(b"paid", effect.call)


async def an_operator_frees_an_effect_that_did_not_happen(a: Store, b: Store) -> None:
    effect = effect_of(name())
    old = await begun_of(a, effect, lease=0.0)
    assert await b.settle_uncertain(effect.call, effect.key, result=None)
    assert not await a.settle(effect.id, old.fence, result=b"late", error=None)
    assert not await a.hold(effect.id, old.fence, lease=LONG)
    assert (await begun_of(a, effect)).fence > old.fence


async def an_operator_decides_nothing_that_is_not_uncertain(a: Store, b: Store) -> None:
    effect = effect_of(name())
    assert not await b.settle_uncertain(effect.call, effect.key, result=b"x")
    begun = await begun_of(a, effect)
    assert not await b.settle_uncertain(effect.call, effect.key, result=b"x")
    assert await a.settle(effect.id, begun.fence, result=b"y", error=None)
    assert not await b.settle_uncertain(effect.call, effect.key, result=None)
    assert await start(a, effect) == Finished(b"y", effect.call)


async def what_an_operator_decides_lets_the_call_be_tried_again(a: Store, b: Store) -> None:
    call = name()
    claim = await redeem(a, call, ttl=0.3, tries=0)
    assert isinstance(claim, Claimed)
    effect = effect_of(call)
    await begun_of(a, effect, lease=0.0, under=LeasedRound(call, 2, claim.fence))
    await a.release(call, 2, claim.fence, counts=True)
    assert_spent(await redeem(b, call, tries=0), "tries")
    assert await b.settle_uncertain(call, effect.key, result=b"paid")
    await store_passes(b, 0.4)
    again = await redeem(b, call, ttl=-1.0, tries=0)
    assert isinstance(again, Claimed), again


async def what_an_effect_is_called_with_is_kept_until_nobody_has_to_settle_it(
    a: Store, b: Store
) -> None:
    async def shown(effect: Effect) -> list[bytes]:
        return [row.shown for row in await b.effects(effect.call)]

    done, freed, settled, retried = (
        msgspec.structs.replace(effect_of(name()), shown=b"sealed \0\xff arguments")
        for _ in range(4)
    )
    begun = await begun_of(a, done)
    assert await shown(done) == [done.shown]
    assert await a.settle(done.id, begun.fence, result=b"paid", error=None)
    assert await shown(done) == [b""]

    begun = await begun_of(a, freed)
    await a.abandon(freed.id, begun.fence)
    assert b"".join(await shown(freed)) == b""
    await begun_of(b, msgspec.structs.replace(freed, shown=b"other arguments"))
    assert await shown(freed) == [b"other arguments"]

    await begun_of(a, settled, lease=0.0)
    assert await b.settle_uncertain(settled.call, settled.key, result=b"7")
    assert await b.unsettle(settled.call, settled.key, result=b"7")
    assert await shown(settled) == [settled.shown], "it has to be settled again"
    assert await b.settle_uncertain(settled.call, settled.key, result=None)
    assert b"".join(await shown(settled)) == b""

    await begun_of(a, retried, lease=0.0)
    await begun_of(b, msgspec.structs.replace(retried, shown=b"later"), retry=True)
    assert await shown(retried) == [b"later"]


async def uncertain_calls_are_found_behind_any_number_of_others(a: Store, b: Store) -> None:
    waiting = [name() for _ in range(3)]
    for call in waiting:
        await a.begin(
            effect_of(call),
            lease=0.0,
            ttl=TTL,
            under=None,
            retry=False,
            about=About("deploy", "somebody"),
        )
    for _ in range(20):
        await settled_in(a, name(), "later")
    rows = await b.calls(limit=1000, uncertain=True)
    found = {row.call: row for row in rows}
    assert set(waiting) <= set(found)
    assert all(row.uncertain or row.blocking for row in rows)
    row = found[waiting[0]]
    assert (row.tool, row.caller, row.uncertain) == ("deploy", "somebody", 1)
    assert abs(row.started - time.time()) < 60
    # Leases of other tests' effects may end meanwhile: the store may be shared.
    counted = await b.count_calls(uncertain=True)
    assert len(rows) <= counted <= len(await b.calls(limit=1000, uncertain=True))
    assert len(await b.calls(limit=2, uncertain=True)) == 2
    assert await b.settle_uncertain(waiting[0], "charge", result=b"1")
    assert waiting[0] not in {row.call for row in await a.calls(limit=1000, uncertain=True)}
    for call in waiting[1:]:
        assert await b.settle_uncertain(call, "charge", result=None)


async def calls_are_listed_with_the_round_at_their_mark(a: Store, b: Store) -> None:
    far = 86_400.0
    states = {"running": name(), "recorded": name(), "released": name(), "spent": name()}
    for ahead, (state, call) in enumerate(states.items()):
        first = await mine_of(a, call, 2)
        assert await record(a, call, 2, first.fence)
        ttl = far + 100 * ahead
        claim = await a.claim(
            call, 4, YES, lease=LONG, ttl=ttl, tries=5, about=About("deploy", "somebody")
        )
        assert isinstance(claim, Claimed)
        if state == "recorded":
            assert await record(a, call, 4, claim.fence, ttl=ttl)
        elif state != "running":
            await a.release(call, 4, claim.fence, spend=state == "spent")
    rows = await b.calls(limit=1000)
    assert [row.expires for row in rows] == sorted((row.expires for row in rows), reverse=True)
    seen = {row.call: row for row in rows}
    for ahead, (state, call) in enumerate(states.items()):
        row = seen[call]
        assert (row.mark, row.state, row.uncertain) == (4, state, 0), row
        assert abs(row.expires - time.time() - far - 100 * ahead) < 60
        if state == "running":
            assert (row.tool, row.caller) == ("deploy", "somebody")
            assert abs(row.started - time.time()) < 60
    assert len(await b.calls(limit=2)) == 2
    assert await b.count_calls() >= 4


async def a_call_that_has_only_effects_is_listed_until_it_is_redeemed(a: Store, b: Store) -> None:
    effect = effect_of(name())
    begun = await begun_of(a, effect)
    seen = {row.call: row for row in await b.calls(limit=1000)}
    assert (seen[effect.call].mark, seen[effect.call].state) == (1, "unredeemed")
    assert await a.settle(effect.id, begun.fence, result=b"paid", error=None)
    await mine_of(a, effect.call, 2)
    seen = {row.call: row for row in await b.calls(limit=1000)}
    assert (seen[effect.call].mark, seen[effect.call].state) == (2, "running")


EFFECT_CONTRACTS: tuple[Contract, ...] = (
    an_effect_is_begun_once_and_its_result_given_ever_after,
    many_begins_of_one_effect_have_one_winner,
    an_empty_result_is_a_result,
    a_failed_effect_stays_failed,
    an_effect_whose_holder_vanished_is_uncertain,
    a_retry_takes_over_and_fences_the_old_holder,
    a_held_effect_stays_busy,
    an_abandoned_effect_is_begun_anew,
    a_settled_effect_cannot_be_changed,
    another_function_or_other_arguments_do_not_match,
    a_window_ends_and_the_effect_is_begun_anew,
    a_failure_ends_with_its_window_too,
    a_shared_effect_that_failed_is_tried_again_by_another_call,
    an_effect_under_a_lost_round_is_fenced_off,
    every_effect_keeps_the_prefix_of_its_round,
    a_claim_whose_reply_was_lost_is_the_same_claim,
    a_lost_reply_is_known_after_the_lease_too,
    a_round_with_effects_lives_as_long_as_they_do,
    the_effects_of_an_ended_call_live_until_its_last_token_has_expired,
    a_call_that_ended_in_its_first_round_keeps_no_effect,
    a_round_ends_with_its_outcome_and_not_with_its_prefix,
    effects_of_a_call_are_listed_oldest_first_with_their_state,
    an_operator_settles_an_uncertain_effect,
    what_an_operator_gave_is_taken_back_when_it_is_of_no_use,
    what_ran_is_never_taken_back,
    an_operator_frees_an_effect_that_did_not_happen,
    an_operator_decides_nothing_that_is_not_uncertain,
    what_an_operator_decides_lets_the_call_be_tried_again,
    what_an_effect_is_called_with_is_kept_until_nobody_has_to_settle_it,
    uncertain_calls_are_found_behind_any_number_of_others,
    calls_are_listed_with_the_round_at_their_mark,
    a_call_that_has_only_effects_is_listed_until_it_is_redeemed,
)
"""Effects and what an operator sees of them."""
