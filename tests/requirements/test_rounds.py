"""Multi round trips (MRTR-S): what a round that asks looks like and what a retry is worth."""

import json
from datetime import timedelta
from typing import Any

import pytest

from antiphon import Context, Elicit, InputRequired, Limits, Seal, Server
from antiphon.errors import TokenRefused
from tests.requirements.demo_server import (
    EVERYTHING,
    KEY,
    OTHER_KEY,
    SERVER_INFO,
    Peer,
    Room,
    accept,
    make_server,
)

OAK = {"room": accept(room="Oak")}
DAY = {"day": "Monday"}


@pytest.mark.requirement("MRTR-S-01", "MRTR-S-03", "MRTR-S-04", "MRTR-S-05", "MRTR-S-06")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "book", "arguments": DAY}),
        ("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}),
        ("resources/read", {"uri": "house://rooms/oak"}),
    ],
)
async def test_the_three_methods_ask_and_complete_with_the_answer(
    peer: Peer, method: str, params: dict[str, Any]
) -> None:
    asked = (await peer.ask(method, **params)).result
    assert asked["resultType"] == "input_required"
    assert list(asked["inputRequests"]) == ["room"]
    assert asked["inputRequests"]["room"]["method"] == "elicitation/create"
    answer = await peer.ask(
        method, **params, inputResponses=OAK, requestState=asked["requestState"], id=2
    )
    again = method == "tools/call"
    assert answer.result["resultType"] == ("input_required" if again else "complete")


@pytest.mark.requirement("MRTR-S-02")
@pytest.mark.parametrize(
    "method",
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"],
)
async def test_other_methods_never_ask_whatever_they_are_sent(peer: Peer, method: str) -> None:
    answer = await peer.ask(method, inputResponses=OAK, requestState="anything")
    assert answer.result["resultType"] == "complete"


@pytest.mark.requirement("MRTR-S-05", "MRTR-S-06", "MRTR-S-08", "ELICIT-01", "ROOT-01")
async def test_several_kinds_are_asked_at_once_under_keys_of_their_own(peer: Peer) -> None:
    asks = (await peer.call("everything")).result["inputRequests"]
    assert {key: ask["method"] for key, ask in asks.items()} == {
        "room": "elicitation/create",
        "visit": "elicitation/create",
        "haiku": "sampling/createMessage",
        "where": "roots/list",
    }
    assert all(set(ask) <= {"method", "params"} for ask in asks.values())


@pytest.mark.requirement("MRTR-S-07", "CAP-01", "CAP-02", "MRTR-S-12")
async def test_a_retry_is_gated_on_its_own_capabilities(peer: Peer) -> None:
    first = await peer.call("book", DAY)
    state = first.result["requestState"]
    fewer = await peer.call(
        "book", DAY, inputResponses=OAK, requestState=state, capabilities={"roots": {}}
    )
    assert (fewer.status, fewer.error["code"]) == (400, -32021)
    assert fewer.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert "requestState" in (await peer.again(first, "book", DAY, OAK)).result


@pytest.mark.requirement("MRTR-S-09", "CANCEL-07")
async def test_calls_that_are_never_continued_leave_nothing_behind(
    server: Server, peer: Peer
) -> None:
    for _ in range(100):
        assert (await peer.call("book", DAY)).result["resultType"] == "input_required"
    assert set(server.stats().values()) == {0}


@pytest.mark.requirement("MRTR-S-10", "MRTR-S-12", "MRTR-S-37", "WIRE-06", "WIRE-07", "WIRE-09")
async def test_every_round_may_land_on_another_process_with_the_same_keys() -> None:
    first = await Peer(make_server().asgi()).call("book", DAY)
    second = await Peer(make_server().asgi()).again(first, "book", DAY, OAK)
    assert list(second.result["inputRequests"]) == ["sure"]
    assert second.result["requestState"] != first.result["requestState"]
    third = await Peer(make_server().asgi()).again(second, "book", DAY, {"sure": accept(sure=True)})
    assert third.result["content"] == [{"type": "text", "text": "Oak for 2 on Monday"}]


@pytest.mark.requirement("MRTR-S-37", "MRTR-S-32")
async def test_a_process_with_other_keys_refuses_the_round() -> None:
    first = await Peer(make_server().asgi()).call("book", DAY)
    other = Peer(make_server(seal=Seal(keys=[OTHER_KEY])).asgi())
    answer = await other.again(first, "book", DAY, OAK)
    assert answer.error == {"code": -32602, "message": TokenRefused.MESSAGE}


@pytest.mark.requirement("MRTR-S-36")
async def test_a_state_of_an_old_key_is_good_while_the_key_is_kept() -> None:
    first = await Peer(make_server().asgi()).call("book", DAY)
    rotated = Peer(make_server(seal=Seal(keys=[OTHER_KEY, KEY])).asgi())
    assert list((await rotated.again(first, "book", DAY, OAK)).result["inputRequests"]) == ["sure"]


@pytest.mark.requirement("MRTR-S-36", "MRTR-S-30")
async def test_a_state_shows_nothing_of_what_it_carries(peer: Peer) -> None:
    first = await peer.call("book", {"day": "sentinel-day"})
    second = await peer.again(
        first, "book", {"day": "sentinel-day"}, {"room": accept(room="sentinel-room")}
    )
    assert "sentinel" not in second.result["requestState"]


@pytest.mark.requirement("MRTR-S-11", "HTTP-07", "PROG-02")
async def test_nothing_follows_a_result_that_asks(peer: Peer) -> None:
    first = await peer.call("book", DAY)
    state = first.result["requestState"]
    second = await peer.call(
        "book", DAY, inputResponses=OAK, requestState=state, meta={"progressToken": 7}
    )
    *told, last = second.events
    assert [note["params"]["progressToken"] for note in told] == [7]
    assert last["result"]["resultType"] == "input_required"


@pytest.mark.requirement("MRTR-S-13", "MRTR-S-14", "MRTR-S-31", "ROOT-01", "SAMP-02")
@pytest.mark.parametrize(
    "answers",
    [
        [],
        "text",
        {"room": []},
        {"room": {}},
        {"room": {"action": "shrug"}},
        {"room": {"action": "accept", "content": "Oak"}},
        {"where": {"roots": "everywhere"}},
        {"where": {"roots": [{"uri": "https://example.com/"}]}},
        {"haiku": {"role": "assistant", "content": {"type": "text", "text": "x"}}},
        {"haiku": {"role": "ghost", "model": "m", "content": {"type": "text", "text": "x"}}},
    ],
)
async def test_answers_of_the_wrong_shape_are_an_error_and_spend_nothing(
    peer: Peer, answers: Any
) -> None:
    first = await peer.call("everything")
    refused = await peer.again(first, "everything", None, answers)
    assert (refused.status, refused.error["code"]) == (400, -32602)
    second = await peer.again(first, "everything", None, OAK)
    assert set(second.result["inputRequests"]) == {"visit", "haiku", "where"}


@pytest.mark.requirement("MRTR-S-15", "MRTR-S-16")
async def test_answers_nobody_asked_for_are_ignored_and_missing_ones_asked_for_again(
    peer: Peer,
) -> None:
    first = await peer.call("book", DAY)
    second = await peer.again(first, "book", DAY, {"sure": accept(sure=True), "x": 5})
    assert second.result["inputRequests"] == first.result["inputRequests"]
    third = await peer.again(second, "book", DAY, OAK)
    assert list(third.result["inputRequests"]) == ["sure"]


@pytest.mark.requirement("MRTR-S-16")
async def test_a_retry_without_answers_is_asked_again(peer: Peer) -> None:
    first = await peer.call("book", DAY)
    again = await peer.call("book", DAY, requestState=first.result["requestState"])
    assert again.result["inputRequests"] == first.result["inputRequests"]


@pytest.mark.requirement("MRTR-S-17")
async def test_answers_on_a_first_request_are_no_answers(peer: Peer) -> None:
    early = {"room": accept(room="Oak"), "sure": accept(sure=True)}
    answer = await peer.call("book", DAY, inputResponses=early)
    assert list(answer.result["inputRequests"]) == ["room"]
    refused = await peer.call("book", DAY, inputResponses=["no", "map"])
    assert (refused.status, refused.error["code"]) == (400, -32602)


@pytest.mark.requirement("MRTR-S-18", "MRTR-S-04")
async def test_a_round_may_end_with_a_state_alone(peer: Peer) -> None:
    first = await peer.call("leg")
    assert set(first.result) == {"resultType", "requestState", "_meta"}
    second = await peer.call("leg", requestState=first.result["requestState"])
    assert second.result["content"] == [{"type": "text", "text": "round 2"}]


@pytest.mark.requirement("MRTR-S-19", "CACHE-01", "CACHE-03")
async def test_a_read_that_asks_has_no_hints_and_its_last_result_has_both(peer: Peer) -> None:
    asked = await peer.ask("resources/read", uri="house://rooms/oak")
    assert set(asked.result) == {"resultType", "inputRequests", "requestState", "_meta"}
    state = asked.result["requestState"]
    read = await peer.ask(
        "resources/read", uri="house://rooms/oak", inputResponses=OAK, requestState=state
    )
    assert (read.result["ttlMs"], read.result["cacheScope"]) == (0, "private")


@pytest.mark.requirement("MRTR-S-20")
async def test_an_effect_above_a_question_happens_once_over_all_rounds() -> None:
    server, made = Server("once", seal=Seal(keys=[KEY])), list[str]()

    @server.tool
    async def order(ctx: Context) -> str:
        number = await ctx.once("order", lambda: (made.append("order"), len(made))[1])
        room = await ctx.elicit("Which room?", Room)
        return f"order {number} to {room.room}"

    peer = Peer(server.asgi())
    first = await peer.call("order")
    last = await peer.again(first, "order", None, OAK)
    assert last.result["content"][0]["text"] == "order 1 to Oak"
    assert made == ["order"]


@pytest.mark.requirement("MRTR-S-33", "MRTR-S-36")
async def test_a_state_ends_with_its_time_and_clocks_may_differ_a_little() -> None:
    now = [1_000_000.0]
    server = make_server(clock=lambda: now[0], seal=Seal(keys=[KEY], ttl=timedelta(minutes=1)))
    peer = Peer(server.asgi())
    first = await peer.call("book", DAY)
    now[0] -= 5
    assert "result" in (await peer.again(first, "book", DAY, OAK)).json
    now[0] += 5 + 60
    late = await peer.again(first, "book", DAY, OAK)
    assert late.error["message"] == TokenRefused.MESSAGE


@pytest.mark.requirement("MRTR-S-33", "MRTR-S-38")
async def test_a_state_is_for_its_arguments_in_any_order_and_for_no_others(peer: Peer) -> None:
    arguments = {"day": "Monday", "extra": {"b": 1, "a": [1, 2]}}
    first = await peer.call("book", arguments)
    turned = {"extra": {"a": [1, 2], "b": 1}, "day": "Monday"}
    state = first.result["requestState"]
    same = await peer.call(
        "book", turned, inputResponses=OAK, requestState=state, meta={"progressToken": "other"}
    )
    assert same.events[-1]["result"]["resultType"] == "input_required"
    for other in ({"day": "Tuesday"}, {**arguments, "extra": {"b": 1, "a": [2, 1]}}, {}):
        refused = await peer.call("book", other, inputResponses=OAK, requestState=state)
        assert refused.error["message"] == TokenRefused.MESSAGE


@pytest.mark.requirement("MRTR-S-34")
async def test_a_state_is_redeemed_once_and_a_lost_reply_is_repeated(peer: Peer) -> None:
    first = await peer.call("book", DAY)
    second = await peer.again(first, "book", DAY, OAK)
    assert (await peer.again(first, "book", DAY, OAK)).body == second.body
    other = await peer.again(first, "book", DAY, {"room": accept(room="Elm")})
    assert other.error["message"] == TokenRefused.MESSAGE


@pytest.mark.requirement("MRTR-S-35")
async def test_a_refused_state_is_an_error_and_its_reason_is_for_the_log(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await peer.call("book", DAY, inputResponses=OAK, requestState="AAAA")
    assert answer.json == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32602, "message": TokenRefused.MESSAGE},
    }
    (line,) = [line for line in caplog.messages if "refused" in line]
    assert line.startswith("token refused (tool:book): ")
    assert line.removeprefix("token refused (tool:book): ")


@pytest.mark.requirement("HDR-08")
async def test_a_retry_mirrors_the_same_headers(peer: Peer) -> None:
    first = await peer.call("book", DAY)
    state = first.result["requestState"]
    wrong = await peer.call(
        "book", DAY, inputResponses=OAK, requestState=state, headers={"mcp_name": "leg"}
    )
    assert (wrong.status, wrong.error["code"]) == (400, -32020)


async def test_a_call_has_a_last_round() -> None:
    server = Server("endless", seal=Seal(keys=[KEY]), limits=Limits(rounds=2))

    @server.tool
    async def nag(ctx: Context) -> Any:
        return InputRequired({f"room_{ctx.round}": Elicit("Which?", Room)})

    peer = Peer(server.asgi())
    first = await peer.call("nag")
    second = await peer.again(first, "nag", None, {"room_1": accept(room="Oak")})
    third = await peer.again(second, "nag", None, {"room_2": accept(room="Oak")})
    assert third.result["isError"] is True


@pytest.mark.requirement("WIRE-04", "BASE-06")
async def test_a_result_that_asks_names_the_server_like_any_other(peer: Peer) -> None:
    for answer in (await peer.call("book", DAY), await peer.call("echo", {"text": "hi"})):
        assert answer.result["_meta"][SERVER_INFO] == {"name": "house", "version": "1.0"}
        assert json.dumps(answer.result).count(SERVER_INFO) == 1


@pytest.mark.requirement("CAP-03", "CAP-04")
@pytest.mark.parametrize(
    ("capabilities", "asked"),
    [
        ({}, False),
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        ({"elicitation": {"url": {}}}, False),
        (EVERYTHING, True),
    ],
)
async def test_a_tool_that_can_do_without_asks_those_only_who_declared_forms(
    peer: Peer, capabilities: Any, asked: bool
) -> None:
    result = (await peer.call("polite", capabilities=capabilities)).result
    assert result["resultType"] == ("input_required" if asked else "complete")
