"""Tests of the example of docs/services.md, with another function in place of a dependency."""

from antiphon.testing import Rounds
from docs_src.services import Orders, orders_of_caller, server


class FakeOrders(Orders):
    def __init__(self) -> None:
        self.items = ["tea"]

    def all(self) -> list[str]:
        return self.items


async def test_orders_are_listed() -> None:
    async with Rounds(server) as rounds:
        with server.override(orders_of_caller, FakeOrders):
            done = await rounds.call("ordered")
    assert done.structured == {"result": ["tea"]}
