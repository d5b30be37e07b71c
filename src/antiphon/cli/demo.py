"""`antiphon demo`: a call that asks two questions, and one that somebody else has to approve.

Both example servers run on loopback ports of this process.
"""

import logging
from typing import Any, Literal

import typer
from pydantic import BaseModel, Field

from antiphon import Context, Server
from antiphon.cli import output
from antiphon.cli.connect import interactive
from antiphon.cli.demo_refund import lead_through_refund
from antiphon.cli.local_server import local_server
from antiphon.cli.output import FAILED, errors, fail
from antiphon.client.answers import Answers, Scripted
from antiphon.client.asks import Accept
from antiphon.client.errors import ClientError
from antiphon.client.terminal import Terminal


def demo() -> None:
    """Call a tool that asks two questions, then one that needs a yes from somebody else.

    At a terminal you answer the questions; without one they are answered from a script. For the
    yes it prints two links: of the caller, and of the person who decides. They are opened where
    there is a terminal and a graphical browser; without either, both people are played over HTTP.
    """
    # What the log says about keys and stores is for servers that stay.
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    try:
        provisioned = _lead_through_questions()
        refunded = lead_through_refund()
    except ClientError as error:
        fail(str(error))
    # A person may decline here; that is a good end of a demonstration too.
    raise typer.Exit(0 if interactive() or (provisioned and refunded) else FAILED)


def _lead_through_questions() -> bool:
    """Call the tool that asks; tell whether it succeeded."""
    # Loaded here: it brings the official SDK.
    from antiphon.client.blocking import BlockingClient

    console = errors()
    answers = _answers()
    with local_server(lambda _: example_server().asgi()) as local:
        url = f"{local.origin}/mcp"
        with BlockingClient(url, answers=answers) as client:
            console.print(f"server:  {url}", markup=False)
            console.print("call:    provision name=orders", markup=False)
            result = client.call_tool("provision", {"name": "orders"})
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    output.result(dumped)
    return not dumped.get("isError")


def _answers() -> Any:
    if interactive():
        return Terminal(errors())
    script = Scripted(
        placement=Accept({"region": "eu-west", "size": 4}), approve=Accept({"approve": True})
    )

    def answer(ask: Any) -> Any:
        given = script.elicit(ask)
        errors().print(
            f"asked:   {ask.message}", f"answer:  {given.content}", sep="\n", markup=False
        )
        return given

    return Answers(elicit=answer)


# --- the example server --------------------------------------------------------------------------


class Placement(BaseModel):
    """Where a database should live."""

    region: Literal["eu-west", "us-east", "ap-south"] = Field(description="Near its readers.")
    size: int = Field(default=2, ge=1, le=16, description="Gigabytes of memory.")


async def create(name: str, region: str) -> str:
    """Stand in for a cloud: return the name of a new machine."""
    return f"{name}.{region}"


async def start(machine: str) -> str:
    """Stand in for a cloud: start the machine."""
    return f"{machine} is running"


def example_server() -> Server:
    """Return a server with a form, an effect, an approval and a second effect.

    It is made on demand: a server reads keys and store from the environment.
    """
    server = Server("cloud", version="1.0.0", instructions="Creates databases that do not exist.")

    @server.tool
    async def provision(ctx: Context, name: str) -> str:
        """Create a database, ask where it should live, and start it after approval."""
        place = await ctx.elicit(f"Where should {name} live?", Placement)
        machine = await ctx.once("create", create, name, place.region)
        if not await ctx.approve(f"Start {machine} with {place.size} GB?"):
            return f"{machine} was created and left stopped."
        return await ctx.once("start", start, machine)

    return server
