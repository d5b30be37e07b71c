"""Places for task runs: counted, limited, waited for and given back."""

import asyncio

from antiphon.tasks.places import Holder, Places

ADA, BOB, EVE = (Holder("tool", name) for name in ("ada", "bob", "eve"))


def some(number: int, *, per_tool: dict[str, int] | None = None, per_caller: int = 99) -> Places:
    return Places(number, per_tool=per_tool or {}, per_caller=per_caller)


async def taken(places: Places, *holders: Holder) -> list[bool]:
    return [await places.wait_for(holder, 0.0) for holder in holders]


async def test_the_last_quarter_is_for_callers_who_hold_less_than_half() -> None:
    places = some(8)
    assert await taken(places, *[ADA] * 7) == [True] * 6 + [False]
    assert await taken(places, BOB, EVE, BOB) == [True, True, False]
    assert places.free == 0


async def test_a_single_place_is_for_whoever_comes() -> None:
    places = some(1)
    assert await taken(places, ADA, BOB) == [True, False]
    places.give_back(ADA)
    assert await taken(places, ADA) == [True]


async def test_tools_and_callers_have_limits_of_their_own() -> None:
    places = some(8, per_tool={"heavy": 1}, per_caller=2)
    heavy = Holder("heavy", "bob")
    assert places.limited
    assert await taken(places, heavy, heavy, ADA, ADA, ADA) == [True, False, True, True, False]
    assert places.full_tools() == ["heavy"]
    places.give_back(heavy)
    assert places.full_tools() == []


async def test_a_place_goes_to_the_first_who_may_have_it_and_then_to_the_next() -> None:
    places = some(2)
    assert await taken(places, ADA, BOB) == [True, True]
    order: list[Holder] = []

    async def wait(holder: Holder) -> None:
        assert await places.wait_for(holder, 5.0)
        order.append(holder)
        places.give_back(holder)

    waiting = [asyncio.ensure_future(wait(holder)) for holder in (EVE, EVE, BOB, EVE)]
    await asyncio.sleep(0)
    assert places.anybody_waits
    places.give_back(ADA)
    await asyncio.gather(*waiting)
    assert order == [EVE, BOB, EVE, EVE], "callers take turns"
    assert not places.anybody_waits
    places.give_back(BOB)
    assert places.free == 2


async def test_whoever_waits_in_vain_leaves_nothing_behind() -> None:
    places = some(1)
    assert await taken(places, ADA) == [True]
    assert not await places.wait_for(BOB, 0.01)
    cancelled = asyncio.ensure_future(places.wait_for(BOB, 5.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert not places.anybody_waits
    places.give_back(ADA)
    assert places.free == 1


async def test_a_place_that_was_given_to_somebody_who_is_cancelled_is_free_again() -> None:
    places = some(1)
    assert await taken(places, ADA) == [True]
    waiting = asyncio.ensure_future(places.wait_for(BOB, 5.0))
    await asyncio.sleep(0)
    places.give_back(ADA)
    assert places.free == 0
    places.freed.clear()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert places.free == 1
    assert places.freed.is_set()


async def test_a_place_is_passed_on_to_those_who_may_have_it() -> None:
    places = some(8, per_tool={"heavy": 1}, per_caller=2)
    heavy, nobody = Holder("heavy", "bob"), Holder("", "")
    assert await taken(places, heavy, ADA, ADA) == [True] * 3
    places.take(nobody)
    assert not places.pass_on(nobody, Holder("heavy", "eve"))
    assert not places.pass_on(nobody, ADA)
    assert places.free == 4
    assert places.pass_on(nobody, EVE)
    assert places.free == 4
    assert (places.held_by(""), places.held_by("eve")) == (0, 1)
    places.take(nobody)
    places.close()
    assert not places.pass_on(nobody, BOB), "the worker ends"


async def test_nobody_gets_a_place_of_a_worker_that_ends() -> None:
    places = some(1)
    assert await taken(places, ADA) == [True]
    waiting = asyncio.ensure_future(places.wait_for(BOB, 5.0))
    await asyncio.sleep(0)
    places.close()
    assert not await waiting
    places.give_back(ADA)
    assert await taken(places, ADA) == [False]
