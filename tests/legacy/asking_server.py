"""A server whose tools ask in every way; each peer calls them all, in each era it speaks."""

import asyncio

from pydantic import BaseModel

from antiphon import Context, Declined, Elicit, InputRequired, ListRoots, Sample, Server

server = Server("desk", version="1.0.0", title="The desk", instructions="Ask at the desk.")


class Placement(BaseModel):
    region: str
    size: int = 2


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


@server.tool
async def form(ctx: Context, what: str) -> str:
    """Ask by a form."""
    place = await ctx.elicit(f"Where should {what} live?", Placement)
    return f"{what} in {place.region}, {place.size}"


@server.tool
async def sample(ctx: Context) -> str:
    """Ask the client's model."""
    return (await ctx.sample("Say something.", max_tokens=50)).text


@server.tool
async def roots(ctx: Context) -> str:
    """Ask for the roots."""
    return ",".join(root.uri for root in await ctx.roots())


@server.tool
async def decline(ctx: Context) -> str:
    """Ask what is declined."""
    try:
        await ctx.elicit("Decline this, please.", Name)
    except Declined:
        return "declined"
    return "accepted"


@server.tool
async def two_rounds(ctx: Context) -> str | InputRequired:
    """Ask twice, in the native shape, with a state."""
    name = ctx.answers.get("name", Name)
    if name is None:
        return InputRequired({"name": Elicit("Your name?", Name)}, state={"asked": 1})
    color = ctx.answers.get("color", Color)
    if color is None:
        return InputRequired({"color": Elicit("Your colour?", Color)}, state={"asked": 2})
    return f"{name.name} likes {color.color} after {ctx.state['asked']}"


@server.tool
async def together(ctx: Context) -> str:
    """Ask three things at once."""
    got = await ctx.gather(
        place=Elicit("Where?", Placement), plan=Sample("Plan it.", max_tokens=20), where=ListRoots()
    )
    return f"{got['place'].region}/{got['plan'].text}/{len(got['where'])}"


@server.tool
async def about(ctx: Context) -> str:
    """Say how the client is seen."""
    kinds = [kind.__name__ for kind in (Elicit, Sample, ListRoots) if ctx.can(kind)]
    return f"{ctx.era} {ctx.protocol_version} {','.join(kinds)} {ctx.can_ask}"


@server.prompt
async def brief(ctx: Context) -> str:
    """Ask before giving a message."""
    name = await ctx.elicit("For whom?", Name)
    return f"A brief for {name.name}."


@server.resource("desk://note", mime_type="text/plain")
async def note(ctx: Context) -> str:
    """Ask before giving a content."""
    name = await ctx.elicit("Whose note?", Name)
    return f"A note of {name.name}."


@server.tool
async def wait_for_ever(ctx: Context) -> str:
    """Ask nothing and never end."""
    await asyncio.Event().wait()
    return "unreachable"
