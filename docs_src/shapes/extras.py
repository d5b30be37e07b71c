"""What the pages of the shapes show beside the story."""

from typing import Annotated, Any

from pydantic import BaseModel

from antiphon import Context, Elicit, InputRequired, Outcome, Resolve, Server


class Address(BaseModel):
    city: str


class Gift(BaseModel):
    wrap: bool


class Quote(BaseModel):
    cents: int


KNOWN = {"ada": Address(city="London")}


async def price_of(item: str) -> int:
    return 100 * len(item)


async def find_address(user: str) -> Address | Elicit:
    """Look first; ask only who is not known."""
    return KNOWN.get(user) or Elicit(f"Where does {user} live?", Address)


UserAddress = Annotated[Address, Resolve(find_address)]


async def ask_gift(item: str) -> Elicit:
    return Elicit(f"Is the {item} a gift?", Gift)


def build(**world: Any) -> Server:
    server = Server("shop", version="1.0.0", **world)
    add_flow(server)
    add_resolved(server)
    add_native(server)
    add_eras(server)
    return server


def add_flow(server: Server) -> None:
    flow = server.flow("order", title="Order", version="1")

    @flow.step
    async def address(item: str) -> Elicit:
        return Elicit(f"Where should the {item} go?", Address)

    @flow.step
    async def gift(item: str) -> Elicit:
        return Elicit(f"Is the {item} a gift?", Gift)

    @flow.step
    async def quote(item: str) -> Quote:
        return Quote(cents=await price_of(item))

    @flow.step
    async def approved(ctx: Context, quote: Quote, address: Address) -> bool:
        return bool(await ctx.approve(f"Pay {quote.cents} cents, to {address.city}?"))

    @flow.finish
    async def order(
        item: str, address: Address, gift: Outcome[Gift], quote: Quote, approved: bool
    ) -> str:
        """Order something."""
        if not approved:
            return "Not ordered."
        wrapped = gift.value.wrap if gift.value else False
        return f"{item} to {address.city} for {quote.cents}, wrapped: {wrapped}"


def add_resolved(server: Server) -> None:
    @server.tool
    async def send(
        user: str,
        item: str,
        address: UserAddress,
        gift: Annotated[Outcome[Gift], Resolve(ask_gift)],
    ) -> str:
        """Send something to somebody."""
        return f"{item} to {address.city}, gift: {gift.status}"

    @server.prompt
    async def letter(user: str, address: UserAddress) -> str:
        """Write to somebody."""
        return f"Write a letter to {user} in {address.city}."

    @server.resource("shop://users/{user}/label")
    async def label(user: str, address: UserAddress) -> str:
        return f"{user}, {address.city}"


def add_native(server: Server) -> None:
    @server.tool
    async def census(ctx: Context, towns: int) -> str | InputRequired:
        """Count town by town, each in a round of its own."""
        done = ctx.state or {"next": 0, "people": 0}
        if done["next"] < towns:
            people = done["people"] + 1000
            return InputRequired(state={"next": done["next"] + 1, "people": people})
        return f"{done['people']} people"


def add_eras(server: Server) -> None:
    @server.tool
    async def greet(ctx: Context) -> str:
        """Greet, and ask where somebody lives if they can be asked."""
        if not ctx.can(Elicit):
            return "Hello, whoever you are. Tell me your city to hear more."
        address = await ctx.elicit("Where do you live?", Address)
        return f"Hello in {address.city} ({ctx.era})."

    @server.tool
    async def visit(ctx: Context) -> str:
        """Plan a visit."""
        address = await ctx.elicit("Where to?", Address)
        return f"Off to {address.city}."

    @visit.legacy
    async def visit_without_asking() -> str:
        return "Name the city in your message, please."
