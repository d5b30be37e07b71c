"""What docs/eras.md says, done."""

import httpx2

from docs_src import eras
from tests.legacy.wire import Old, old, serving


async def test_a_visit_is_asked_for_on_a_session_and_without_one() -> None:
    eras.signed_in.clear()

    def sign_in(_: object) -> dict[str, object]:
        eras.signed_in.add("ada")
        return {"result": {"action": "accept"}}

    async with serving(eras.server) as url, old(url) as client:
        client.answer = sign_in
        assert await client.text("link_account", user="ada") == "ada is linked."
    eras.signed_in.clear()
    async with serving(eras.server, stateless=True) as url, httpx2.AsyncClient(timeout=30) as http:
        http.headers["mcp-protocol-version"] = "2025-11-25"
        alone = Old(http, url, "2025-11-25")
        params = {"name": "link_account", "arguments": {"user": "ada"}}
        answer = await alone.call("tools/call", params)
        assert answer["error"]["code"] == -32042
        eras.signed_in.add("ada")
        assert await alone.text("link_account", user="ada") == "ada is linked."


async def test_a_report_comes_after_the_connection_was_let_go() -> None:
    async with serving(eras.server) as url, old(url) as client:
        async with client.stream(client.request("tools/call", {"name": "report"})) as messages:
            assert [message async for message in messages] == []
        async with client.listen(client.events[-1]["id"]) as resumed:
            answer = await client.follow(resumed)
        assert answer["result"]["content"][0]["text"] == "The report."
