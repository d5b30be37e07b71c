"""The linear handler: one function, several rounds."""

from typing import Any

from pydantic import BaseModel, Field

from antiphon import Context, Declined, Elicit, ListRoots, Sample, Server


class Placement(BaseModel):
    region: str
    size: int = Field(2, ge=1, le=16)


class Contact(BaseModel):
    name: str


class Voucher(BaseModel):
    """Printed on every leaflet, and named like a secret."""

    access_token: str = Field(json_schema_extra={"x-antiphon-not-secret": True})


def make_server(**kit: Any) -> Server:
    server = Server("cloud", version="1.0.0", **kit)

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Ask where a database should live."""
        place = await ctx.elicit("Where should it live?", Placement)
        return f"{name} goes to {place.region}, {place.size} nodes."

    @server.tool(unable="Ask for the region, then call provision_in(name, region).")
    async def provision_asking(ctx: Context, name: str) -> str:
        """Ask where a database should live, if the client can ask."""
        place = await ctx.elicit("Where should it live?", Placement)
        return await provision_in(name, place.region)

    @server.tool
    async def provision_in(name: str, region: str) -> str:
        """Make a database in a region."""
        return f"{name} goes to {region}."

    @server.tool
    async def invite(ctx: Context, team: str) -> str:
        """Ask for names until there are no more."""
        names: list[str] = []
        while len(names) < 5:
            try:
                contact = await ctx.elicit(f"Who else joins {team}?", Contact)
            except Declined:
                break
            names.append(contact.name)
        return f"{team}: {', '.join(names)}"

    @server.tool
    async def plan(ctx: Context, goal: str) -> str:
        """Ask a person, a model and the workspace in one round."""
        got = await ctx.gather(
            place=Elicit("Where should it live?", Placement),
            idea=Sample(f"Name one risk of {goal}.", max_tokens=50),
            where=ListRoots(),
        )
        return f"{got['place'].region}; {got['idea'].text}; {len(got['where'])} roots"

    @server.prompt
    async def letter(ctx: Context, to: str) -> str:
        """Write to somebody."""
        contact = await ctx.elicit("Who signs it?", Contact)
        return f"Write a letter to {to}, signed {contact.name}."

    @server.resource("cloud://databases/{name}/card")
    async def card(ctx: Context, name: str) -> str:
        contact = await ctx.elicit(f"Who looks after {name}?", Contact)
        return f"{name}: {contact.name}"

    return server
