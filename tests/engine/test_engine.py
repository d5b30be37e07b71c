"""A round from request to reply: every error ends as the documented table says."""

import logging
import re
from pathlib import Path

import pytest

from antiphon import Context, Server, errors
from antiphon.protocol.request import Principal
from antiphon.testing import Rounds
from tests.linear.one_tool_server import EU, Place, serving

ANSWERS = {"place": EU}
DOCS = Path(__file__).parents[2] / "docs" / "errors.md"

EXAMPLES: dict[str, Exception] = {
    "ToolError": errors.ToolError("no such thing"),
    "Declined": errors.Declined("place"),
    "Cancelled": errors.Cancelled("place"),
    "Expired": errors.Expired("place"),
    "EffectFailed": errors.EffectFailed("pay", "OSError: password=hunter2"),
    "MemoFailed": errors.MemoFailed("price", "OSError: password=hunter2"),
    "EffectUncertain": errors.EffectUncertain("c1", "pay"),
    "NotDone": errors.NotDone("the bank is closed"),
    "Diverged": errors.Diverged(recorded="ask 'a'", now="ask 'b'", cure="Do this."),
    "SwallowedAsk": errors.SwallowedAsk("place"),
    "AmbiguousKey": errors.AmbiguousKey("place"),
    "KeyReused": errors.KeyReused("effect", "pay"),
    "NestedEffect": errors.NestedEffect("pay", "memo"),
    "StateTooLarge": errors.StateTooLarge(9, 5, [("memo photo", 8)]),
    "TooManyRounds": errors.TooManyRounds(32),
    "UnsupportedForm": errors.UnsupportedForm("pin", "is nested", "Flatten it."),
    "CannotAsk": errors.CannotAsk("Write `async def`."),
    "HandlerTimeout": errors.HandlerTimeout("fail", 30),
    "HandlerError": errors.HandlerError("a rule was broken"),
    "ConfigError": errors.ConfigError("give window="),
    "any other exception": ZeroDivisionError("password=hunter2"),
    "InvalidRequest": errors.InvalidRequest("not so"),
    "ResourceNotFound": errors.ResourceNotFound("not here"),
    "InsufficientScope": errors.InsufficientScope(frozenset({"pay"})),
    "CapabilityMissing": errors.CapabilityMissing({"sampling": {}}),
    "UrlRequired": errors.UrlRequired("Visit", "https://example.org/", "1"),
    "Unavailable": errors.Unavailable("later"),
    "TooManyCalls": errors.TooManyCalls("too many", 30),
    "StoreError": errors.StoreError("disk password=hunter2"),
    "StoreFull": errors.StoreFull("disk password=hunter2"),
    "TokenRefused": errors.TokenRefused("spent"),
}


def rows(heading: str) -> dict[str, list[str]]:
    """Read one table of the page: the cells of each row by the name of its error."""
    text = DOCS.read_text(encoding="utf-8").split(f"## {heading}")[1].split("\n## ")[0]
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 3 and cells[0] not in ("error", "---"):
            found[cells[0].strip("`")] = cells[1:]
    return found


HANDLERS = rows("What a handler raises or breaks")
PEERS = rows("What the peer breaks")


def test_every_error_of_the_framework_has_its_row():
    named = set(HANDLERS) | set(PEERS) | {"AnswerInvalid"}
    roots = {"AntiphonError", "CallerError", "EffectError", "Refused"}
    assert set(errors.__all__) - roots == named - {"any other exception"}
    assert set(EXAMPLES) == set(HANDLERS) | set(PEERS)


def failing(tally, error: Exception):
    def make(**world) -> Server:
        server = Server("cloud", **world)

        async def fail(ctx: Context) -> str:
            await ctx.elicit("Where?", Place)
            tally.mark("ran")
            raise error

        server.tool(name="fail")(fail)
        server.prompt(name="fail")(fail)
        server.resource("fail://now")(fail)
        return server

    return make


@pytest.mark.parametrize("name", HANDLERS)
async def test_what_a_handler_raises_ends_as_documented(rounds, tally, caplog, name):
    tool, other, recorded, log, _ = HANDLERS[name]
    error = EXAMPLES[name]
    world = rounds(failing(tally, error))
    done = await world.call("fail", answers=ANSWERS)
    assert done.error is None
    assert done.is_error
    assert "hunter2" not in done.text
    if tool == "its text":
        assert done.text == str(error)
    logged = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert bool(logged) == (log.startswith("error") and name != "EffectFailed")
    await world.replay(done)
    assert tally["ran"] == (1 if recorded == "recorded" else 2)
    for step in (
        await world.prompt("fail", answers=ANSWERS),
        await world.read("fail://now", answers=ANSWERS),
    ):
        assert step.code == int(re.findall(r"-\d+", other)[0])
        assert "hunter2" not in step.text
        if other.endswith("its text"):
            assert step.text == str(error)


@pytest.mark.parametrize("name", sorted(set(PEERS) - {"TokenRefused", "InvalidRequest"}))
async def test_what_the_peer_breaks_is_an_error_for_everyone(rounds, tally, name):
    code = int(re.findall(r"-\d+", PEERS[name][0])[0])
    world = rounds(failing(tally, EXAMPLES[name]))
    done = await world.call("fail", answers=ANSWERS)
    assert done.code == code
    assert "hunter2" not in done.text
    assert (await world.prompt("fail", answers=ANSWERS)).code == code
    await world.replay(done)
    assert tally["ran"] == 3


async def test_a_server_in_development_shows_unexpected_errors(rounds):
    async def order(ctx: Context) -> str:
        raise ZeroDivisionError("nothing to divide by")

    step = await rounds(serving(order, config={"expose_errors": True})).begin("order")
    assert step.text == "tool 'order' failed: ZeroDivisionError: nothing to divide by"


async def test_a_token_is_worth_what_it_was_issued_for(rounds):
    async def order(ctx: Context, name: str) -> str:
        return f"{name} {(await ctx.elicit('Where?', Place)).region}"

    async def other(ctx: Context, name: str) -> str:
        return await order(ctx, name)

    world = rounds(serving(order, other))
    step = await world.begin("order", {"name": "x"})
    good = dict(step.request["params"], requestState=step.token)
    wrong = [
        await world.send("tools/call", {**good, "name": "other"}),
        await world.send("tools/call", {**good, "arguments": {"name": "y"}}),
        await world.send("tools/call", good, principal=Principal(issuer="i", subject="s")),
        await world.send("tools/call", {**good, "requestState": "nonsense"}),
        await world.send("tools/call", {**good, "requestState": ""}),
    ]
    assert {(one.code, one.text) for one in wrong} == {(-32602, errors.TokenRefused.MESSAGE)}
    same = await world.send("tools/call", {**good, "arguments": {"name": "x"}})
    assert list(same.asks) == ["place"]


async def test_time_to_live_can_be_set_per_server_tool_and_ask(rounds, fake_clock):
    async def usual(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place)).region

    async def patient(ctx: Context) -> str:
        return (await ctx.elicit("Where?", Place, ttl=3600)).region

    world = rounds(serving(usual, patient))
    short = rounds(serving(usual, ttl=5))
    steps = [await world.begin("usual"), await world.begin("patient"), await short.begin("usual")]
    fake_clock.advance(6)
    assert (await short.answer(steps[2], ANSWERS)).code == -32602
    fake_clock.advance(600)
    assert (await world.answer(steps[0], ANSWERS)).code == -32602
    assert (await world.answer(steps[1], ANSWERS)).text == "eu"


async def test_nothing_outlives_the_deadline_of_the_call(rounds, fake_clock):
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place, ttl=3600)
        return (await ctx.elicit("Really?", Place, ttl=3600)).region

    world = rounds(serving(order, deadline=100))
    step = await world.begin("order")
    fake_clock.advance(60)
    step = await world.answer(step, {"place": EU})
    fake_clock.advance(60)
    assert (await world.answer(step, {"place-2": EU})).code == -32602


async def test_a_new_call_is_born_for_every_request_without_a_token(rounds):
    async def order(ctx: Context) -> str:
        return ctx.call_id

    world = rounds(serving(order))
    assert (await world.begin("order")).text != (await world.begin("order")).text


async def test_a_kept_server_and_new_ones_answer_the_same():
    async def order(ctx: Context) -> list:
        seen = [str(ctx.uuid()), str(ctx.now()), str(ctx.round)]
        place = await ctx.elicit("Where?", Place, identity="where")
        return [*seen, place.region, str(await ctx.once("create", lambda: 1))]

    found = [
        await Rounds(serving(order), fresh=f).call("order", answers=ANSWERS) for f in (True, False)
    ]
    assert found[0].result == found[1].result
    assert [step.asks for step in found[0].trail] == [step.asks for step in found[1].trail]
