"""`antiphon demo`: the example server on a loopback port, and a call that asks two questions."""

import asyncio
import logging
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

import typer
from pydantic import BaseModel, Field

from antiphon import Context, Server
from antiphon.cli import output
from antiphon.cli.connect import interactive
from antiphon.cli.output import FAILED, errors, fail
from antiphon.client.answers import Answers, Scripted
from antiphon.client.asks import Accept
from antiphon.client.errors import ClientError
from antiphon.client.terminal import Terminal

START_LIMIT = STOP_LIMIT = 10.0


def demo() -> None:
    """Start an example server and call a tool that asks two questions.

    At a terminal you answer them; without one they are answered from a script.
    """
    # Loaded here: it brings the official SDK.
    from antiphon.client.blocking import BlockingClient

    # What the log says about keys and stores is for servers that stay.
    logging.getLogger("antiphon").setLevel(logging.ERROR)
    console = errors()
    answers = _answers()
    with _server() as url, BlockingClient(url, answers=answers) as client:
        console.print(f"server:  {url}", markup=False)
        console.print("call:    provision name=orders", markup=False)
        try:
            result = client.call_tool("provision", {"name": "orders"})
        except ClientError as error:
            fail(str(error))
        dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    output.result(dumped)
    # A person may decline here; that is a good end of a demonstration too.
    raise typer.Exit(FAILED if dumped.get("isError") and not interactive() else 0)


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


@contextmanager
def _server() -> Generator[str]:
    """Run the example server in a thread until the block ends."""
    from antiphon.processes.event_loop import run_loop
    from antiphon.processes.http_server import serve_http

    listener = socket.create_server(("127.0.0.1", 0))
    stop, ready = asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def announce(_: str) -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()

    serving = serve_http(example_server().asgi(), sockets=[listener], announce=announce, stop=stop)
    thread = threading.Thread(target=run_loop, args=(serving,), daemon=True)
    thread.start()
    try:
        ready.wait(START_LIMIT)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        for loop in loops:
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_LIMIT)
        listener.close()


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
