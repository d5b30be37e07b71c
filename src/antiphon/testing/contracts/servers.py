"""Servers that share a store leave each other's rows alone, whatever names they share."""

from antiphon.ports import Busy, Claimed, Effect, Finished, Started, Store, Uncertain
from antiphon.testing.contracts.parts import (
    LONG,
    Contract,
    apart,
    begun_of,
    effect_of,
    mine_of,
    name,
    redeem,
    start,
)


async def the_same_round_of_two_servers_is_two_rounds(a: Store, b: Store) -> None:
    one, _, _ = apart(a, b)
    other, _, _ = apart(a, b)
    call = name()
    mine = await mine_of(one, call)
    assert isinstance(await redeem(other, call), Claimed)
    assert await one.renew(call, 2, mine.fence, lease=LONG)


async def the_same_effect_of_two_servers_is_two_effects(a: Store, b: Store) -> None:
    one, _, _ = apart(a, b)
    other, _, _ = apart(a, b)
    shared = Effect("shared/same", name(), "charge", "pay", b"args")
    begun = await begun_of(one, shared)
    assert isinstance(await start(other, shared), Started)
    assert await one.settle(shared.id, begun.fence, result=b"receipt", error=None)
    assert await start(other, shared) == Busy()
    assert await start(one, shared) == Finished(b"receipt", shared.call)


async def an_uncertain_effect_of_another_server_is_neither_seen_nor_settled(
    a: Store, b: Store
) -> None:
    bank, bank_again, _ = apart(a, b)
    cafeteria, _, _ = apart(a, b)
    call = name()
    await start(bank, effect_of(call), lease=0.0)
    assert await cafeteria.calls(uncertain=True) == []
    assert await cafeteria.count_calls(uncertain=True) == 0
    assert await cafeteria.calls() == []
    assert await cafeteria.effects(call) == []
    assert not await cafeteria.settle_uncertain(call, "charge", result=None)
    assert not await cafeteria.settle_uncertain(call, "charge", result=b"7")
    assert await start(bank_again, effect_of(call)) == Uncertain(call)
    assert await bank.settle_uncertain(call, "charge", result=b"7")
    assert not await cafeteria.unsettle(call, "charge", result=b"7")
    assert await start(bank_again, effect_of(call)) == Finished(b"7", call)


async def a_segment_of_another_server_is_not_given(a: Store, b: Store) -> None:
    one, again, _ = apart(a, b)
    other, _, _ = apart(a, b)
    call = name()
    assert await one.keep(call, 1, b"digest", b"data", owner="me", quota=4, ttl=LONG)
    assert await other.fetch(call, 1, b"digest") is None
    assert await other.keep(call, 1, b"digest", b"more", owner="me", quota=4, ttl=LONG)
    assert await again.fetch(call, 1, b"digest") == b"data"


async def a_store_names_the_servers_that_have_called(a: Store, b: Store) -> None:
    one, again, server = apart(a, b)
    await again.open()
    await mine_of(one, name())
    assert server in await again.servers()
    assert one.server == again.server == server
    assert one.for_server(server).server == server


SERVER_CONTRACTS: tuple[Contract, ...] = (
    the_same_round_of_two_servers_is_two_rounds,
    the_same_effect_of_two_servers_is_two_effects,
    an_uncertain_effect_of_another_server_is_neither_seen_nor_settled,
    a_segment_of_another_server_is_not_given,
    a_store_names_the_servers_that_have_called,
)
