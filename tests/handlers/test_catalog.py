"""Lists that change while a client reads their pages."""

from typing import Any

import pytest

from antiphon import Limits, Server
from tests.requirements.demo_server import Peer


@pytest.fixture
def server() -> Server:
    server = Server("pages", limits=Limits(page=2), environ={})
    for name in "abcdef":
        server.tool(name=name)(lambda: "x")
    return server


class Reader:
    """A client that reads one page after the other."""

    def __init__(self, server: Server) -> None:
        self._peer = Peer(server.asgi())
        self._cursor: dict[str, Any] | None = {}

    async def page(self) -> str:
        assert self._cursor is not None
        result = (await self._peer.ask("tools/list", **self._cursor)).result
        next_ = result.get("nextCursor")
        self._cursor = None if next_ is None else {"cursor": next_}
        return "".join(tool["name"] for tool in result["tools"])

    async def rest(self) -> str:
        read = ""
        while self._cursor is not None:
            read += await self.page()
        return read


@pytest.mark.parametrize(("removed", "rest"), [("a", "cdef"), ("b", "cdef"), ("c", "def")])
async def test_removing_an_entry_between_two_pages_skips_no_other(
    server: Server, removed: str, rest: str
) -> None:
    reader = Reader(server)
    assert await reader.page() == "ab"
    server.remove("tool", removed)
    assert await reader.rest() == rest


async def test_what_is_added_between_two_pages_comes_last(server: Server) -> None:
    reader = Reader(server)
    assert await reader.page() == "ab"
    server.remove("tool", "a")
    server.tool(name="a")(lambda: "again")
    server.tool(name="g")(lambda: "x")
    assert await reader.rest() == "cdefag"


async def test_a_cursor_behind_the_end_gives_an_empty_page(server: Server) -> None:
    reader = Reader(server)
    assert await reader.page() + await reader.page() == "abcd"
    for name in "ef":
        server.remove("tool", name)
    assert await reader.rest() == ""


async def test_a_second_handler_for_old_clients_keeps_the_place_in_the_list() -> None:
    server = Server("pages", limits=Limits(page=2), environ={})

    @server.tool
    async def first() -> str:
        return "x"

    @server.tool
    async def second() -> str:
        return "x"

    @first.legacy
    async def old() -> str:
        return "x"

    assert await Reader(server).page() == "firstsecond"
