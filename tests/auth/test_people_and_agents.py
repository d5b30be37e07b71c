"""Two people and an agent on one server: what belongs to one is of no use to the others.

The tokens come from a real authorization server; each test runs on our own HTTP server and on
uvicorn.
"""

import asyncio
import json
from typing import Any

import pytest

from antiphon import Accept, Client, StateRefused
from antiphon.ports import ItemFilter
from tests.auth.issuer import Issuer, Tokens
from tests.auth.shop import CAN, SERVERS, Web, holding_shop, open_shop, shop
from tests.legacy.wire import accept
from tests.transports.wire import mirrored, request

pytestmark = pytest.mark.parametrize("kind", SERVERS)

MEDIUM = {"action": "accept", "content": {"size": "M"}}
MAY = {"action": "accept", "content": {"month": "may"}}
NOBODY = "Invalid or expired requestState. Start the call again without it."


class People:
    """Carl, Dora, and an agent that acts for each."""

    def __init__(self, issuer: Issuer, scope: str = "mcp") -> None:
        self.carl = issuer.sign_in("carl", scope)
        self.dora = issuer.sign_in("dora", scope)
        self.agent_of_carl = issuer.act_for(self.carl)
        self.agent_of_dora = issuer.act_for(self.dora)

    @property
    def others(self) -> list[Tokens]:
        """Everybody but Carl in person."""
        return [self.dora, self.agent_of_carl, self.agent_of_dora]


@pytest.fixture
def people(issuer: Issuer) -> People:
    return People(issuer)


async def test_the_handler_learns_the_person_the_client_and_the_agent(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        assert await web.text("whoami", people.carl) == "carl/laptop/"
        assert await web.text("whoami", people.dora) == "dora/laptop/"
        agent = f"{issuer.url} agent"
        assert await web.text("whoami", people.agent_of_carl) == f"carl/agent/{agent}"
        old = await web.old(people.agent_of_carl).open()
        assert await old.text("whoami") == f"carl/agent/{agent}"


async def test_a_state_is_of_no_use_to_anybody_else_and_goes_on_with_a_refreshed_token(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        asked = await web.result("order", people.carl)
        ((key, _),) = asked["inputRequests"].items()
        round_two = {"requestState": asked["requestState"], "inputResponses": {key: MEDIUM}}
        for other in people.others:
            refused = (await web.call("order", other, **round_two)).json()
            assert refused["error"]["message"] == NOBODY
        fresh = issuer.refresh(people.carl)
        assert fresh.access != people.carl.access
        assert await web.text("order", fresh, **round_two) == "carl ordered M"


async def test_a_task_is_unknown_to_anybody_else_and_goes_on_with_a_refreshed_token(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        task = (await web.result("report", people.carl, can=CAN))["taskId"]
        key = await _asked(web, people.carl, task)
        for other in people.others:
            for method, more in _about(key):
                error = (await web.ask(method, other, taskId=task, **more)).json()["error"]
                assert error["message"] == "Unknown or expired task"
        fresh = issuer.refresh(people.carl)
        answered = await web.ask("tasks/update", fresh, taskId=task, inputResponses={key: MAY})
        assert "result" in answered.json()
        done = await _ended(web, fresh, task)
        assert done["result"]["content"][0]["text"] == "report of may"


async def test_a_task_of_somebody_else_is_left_out_of_what_is_listened_to(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        task = (await web.result("report", people.carl, can=CAN))["taskId"]
        assert await _accepted_by_listening(web, people.dora, task) == []
        assert await _accepted_by_listening(web, people.agent_of_carl, task) == []
        assert await _accepted_by_listening(web, people.carl, task) == [task]


async def test_a_session_is_found_by_its_owner_only_and_goes_on_with_a_refreshed_token(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        mine = await web.old(people.carl).open()
        ping = {"jsonrpc": "2.0", "id": 9, "method": "tools/list", "params": {}}
        for other in people.others:
            thief = web.old(other)
            thief.session = mine.session
            for method in ("POST", "GET", "DELETE"):
                body: dict[str, Any] = {"json": ping} if method == "POST" else {}
                answer = await web.http.request(method, web.url, headers=thief.headers(), **body)
                assert answer.status_code == 404, (method, answer.text)
        mine.tokens = issuer.refresh(people.carl)
        assert await mine.text("whoami") == "carl/laptop/"


async def test_an_ask_of_a_session_is_answered_by_its_owner_only(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        mine = await web.old(people.carl).open()
        refused: list[int] = []

        async def meddle(ask: Any) -> None:
            thief = web.old(people.dora)
            thief.session = mine.session
            said = accept(size="XXL")(ask)
            answer = {"jsonrpc": "2.0", "id": ask["id"], **(said or {})}
            sent = await web.http.post(web.url, json=answer, headers=thief.headers())
            refused.append(sent.status_code)
            await mine.send({"jsonrpc": "2.0", "id": ask["id"], **(accept(size="M")(ask) or {})})

        meddling: list[asyncio.Task[None]] = []

        def answer(ask: Any) -> None:
            meddling.append(asyncio.create_task(meddle(ask)))

        mine.answer = answer
        assert await mine.text("order") == "carl ordered M"
        await asyncio.gather(*meddling)
        assert refused == [404]


async def test_a_held_call_is_found_by_its_caller_only(
    issuer: Issuer, people: People, kind: str
) -> None:
    server = holding_shop(issuer)
    async with open_shop(server, kind) as web:
        arguments = {"amount": "120"}
        assert "Not done yet" in await web.text("payout", people.carl, arguments=arguments)
        store: Any = server._services.store  # pyright: ignore[reportPrivateUsage]
        assert await _items(store) == 1
        fresh = issuer.refresh(people.carl)
        assert "Not done yet" in await web.text("payout", fresh, arguments=arguments)
        assert await _items(store) == 1, "a refreshed token finds the held call"
        for number, other in enumerate(people.others, 2):
            assert "Not done yet" in await web.text("payout", other, arguments=arguments)
            assert await _items(store) == number, "for anybody else it is another call"


async def test_a_saved_call_is_resumed_by_its_caller_only(
    issuer: Issuer, people: People, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        async with Client(web.url, headers=people.carl.header) as client:
            begun = await client.begin("order", {})
        saved, answers = begun.dump(), {key: Accept({"size": "M"}) for key in begun.asks}
        for other in people.others:
            async with Client(web.url, headers=other.header) as client:
                with pytest.raises(StateRefused):
                    await client.resume(saved, answers)
        fresh = issuer.refresh(people.carl)
        async with Client(web.url, headers=fresh.header) as client:
            done: Any = (await client.resume(saved, answers)).result
        assert done.content[0].text == "carl ordered M"


# --- helpers ------------------------------------------------------------------------------------


def _about(key: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("tasks/get", {}),
        ("tasks/update", {"inputResponses": {key: MAY}}),
        ("tasks/cancel", {}),
    ]


async def _asked(web: Web, tokens: Tokens, task: str) -> str:
    found = await _until(web, tokens, task, "input_required")
    ((key, _),) = found["inputRequests"].items()
    return key


async def _ended(web: Web, tokens: Tokens, task: str) -> dict[str, Any]:
    return await _until(web, tokens, task, "completed")


async def _until(web: Web, tokens: Tokens, task: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            answer = await web.ask("tasks/get", tokens, taskId=task)
            found = answer.json()["result"]
            if found["status"] == status:
                return found
            await asyncio.sleep(0.02)


async def _accepted_by_listening(web: Web, tokens: Tokens, task: str) -> list[str]:
    meta = {"io.modelcontextprotocol/clientCapabilities": CAN}
    message = request("subscriptions/listen", meta=meta, notifications={"taskIds": [task]})
    headers = {name.decode(): value.decode() for name, value in mirrored(message, host=None)}
    headers |= tokens.header
    async with web.http.stream("POST", web.url, json=message, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                said = json.loads(line.removeprefix("data:"))
                return said["params"]["notifications"].get("taskIds", [])
    raise AssertionError("no acknowledgement")


async def _items(store: Any) -> int:
    return len(await store.items(ItemFilter("shop", open=True)))
