"""Conversations kept as files show which calls in flight a change of the code breaks."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from antiphon import Context, Server
from antiphon.testing import WITH_TASKS, Conversation, Rounds, RoundTrip, record, replay
from tests.linear.one_tool_server import EU, Place, serving


def release(question: str = "Where?", done: str = "created", *, more: bool = False):
    """Return one release of a server."""

    async def order(ctx: Context) -> str:
        place = await ctx.elicit(question, Place)
        if more:
            await ctx.elicit("How large?", Place, key="size")
        if not await ctx.approve(f"Create in {place.region}?"):
            return "not created"
        return done

    return serving(order)


async def story(world: Rounds) -> RoundTrip:
    return await world.call("order", answers={"place": EU, "approve": True})


@pytest.fixture
async def kept(tmp_path: Path) -> Conversation:
    path = tmp_path / "order.json"
    (await record(release(), story)).save(path)
    return Conversation.load(path)


async def test_the_same_code_breaks_nothing(kept: Conversation):
    report = await replay(release(), kept)
    report.check()
    assert (report.replayed, report.broken, report.changed, report.left_out) == (2, (), (), ())


async def test_another_question_breaks_calls_that_were_asked_the_old_one(kept: Conversation):
    report = await replay(release("In which region?"), kept)
    assert [(one.request, one.diverged) for one in report.broken] == [(2, True), (3, True)]
    with pytest.raises(AssertionError, match=r"Diverged.*In which region"):
        report.check()


async def test_a_new_question_in_between_breaks_only_calls_that_are_past_it(kept: Conversation):
    report = await replay(release(more=True), kept)
    assert [one.request for one in report.broken] == [3]
    assert [one.request for one in report.changed] == [2]
    assert "How large?" in str(report.changed[0])


async def test_another_result_is_no_broken_call(kept: Conversation):
    report = await replay(release(done="made"), kept)
    report.check()
    assert [one.now for one in report.changed] == ["ends with 'made'"]


async def test_a_question_that_is_changed_with_patched_breaks_nothing(kept: Conversation):
    async def order(ctx: Context) -> str:
        new = ctx.patched("regions")
        place = await ctx.elicit("In which region?" if new else "Where?", Place)
        if not await ctx.approve(f"Create in {place.region}?"):
            return "not created"
        return "created"

    (await replay(serving(order), kept)).check()


async def test_a_tool_that_is_gone_breaks_its_calls(kept: Conversation):
    def make(**world) -> Server:
        return Server("cloud", **world)

    assert [one.request for one in (await replay(make, kept)).broken] == [2, 3]


async def test_what_needs_its_store_is_left_out():
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place, secret=True)
        await ctx.elicit("How large?", Place, key="size")
        return "created"

    async def secretly(world: Rounds) -> RoundTrip:
        return await world.call("order", answers={"place": EU, "size": EU})

    kept = await record(serving(order), secretly)
    report = await replay(serving(order), kept)
    assert report.left_out == (3,)
    report.check()


async def test_a_story_without_a_question_cannot_be_kept():
    async def order(ctx: Context) -> str:
        return "created"

    with pytest.raises(ValueError, match="nothing to replay"):
        await record(serving(order), story)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"requests": 3}'])
async def test_a_file_that_holds_no_conversation_is_named(tmp_path: Path, text: str):
    path = tmp_path / "order.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"order\.json"):
        Conversation.load(path)


async def test_a_file_of_a_later_release_is_said_to_be_one(tmp_path: Path):
    path = tmp_path / "order.json"
    path.write_text('{"format": 2, "rounds": []}')
    with pytest.raises(ValueError, match="later release"):
        Conversation.load(path)


async def test_a_file_without_a_token_replays_nothing_and_is_refused(
    tmp_path: Path, kept: Conversation
):
    path = tmp_path / "order.json"
    msgspec.structs.replace(kept, requests=kept.requests[:1]).save(path)
    with pytest.raises(ValueError, match="no request brings a token"):
        Conversation.load(path)


async def test_a_broken_call_is_not_said_to_be_only_changed(kept: Conversation):
    def emptied(**world: Any) -> Server:
        return Server("cloud", **world)

    report = await replay(emptied, kept)
    assert str(report.broken[0]).startswith("request 2: broken: fails with")


async def test_what_is_answered_in_a_task_is_left_out():
    async def order(ctx: Context) -> str:
        await ctx.elicit("Where?", Place)
        await ctx.detach()
        return "created" if await ctx.approve("Create?") else "not created"

    kept = await record(serving(order), story, capabilities=WITH_TASKS)
    report = await replay(serving(order), kept)
    report.check()
    assert (report.replayed, report.left_out) == (1, (3,))


async def test_two_sides_that_read_the_same_say_what_differs():
    class Zoned(BaseModel):
        region: str
        zone: str

    def release(form: type[BaseModel], size: int) -> Any:
        async def order(ctx: Context) -> str:
            await ctx.once("create", str, size)
            await ctx.elicit("Where?", form, key="place")
            return "created"

        return serving(order)

    kept = await record(release(Place, 1), story)
    (form,) = (await replay(release(Zoned, 1), kept)).broken
    assert "another ask 'place' (Where?), by its words, form or arguments" in form.now
    (arguments,) = (await replay(release(Place, 2), kept)).broken
    assert "another effect 'create' (str), by its words, form or arguments" in arguments.now
