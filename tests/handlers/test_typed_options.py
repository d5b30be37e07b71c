"""A type checker knows the options of the decorators, of the server, and what a context returns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """\
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from antiphon import CallInfo, Context, Depends, Elicit, Next, Principal, Server


class Shop:
    name: str = "shop"


@asynccontextmanager
async def open_shop(server: Server) -> AsyncGenerator[Shop]:
    yield Shop()


async def audit(call: CallInfo, next: Next) -> Any:
    return await next()


def is_staff(principal: Principal) -> bool:
    return principal.subject == "eve"


server = Server("shop", lifespan=open_shop, middleware=[audit])


@server.tool(timeout=5, rate="10/minute", concurrency=2, visible=is_staff, asks=[Elicit])
async def right(ctx: Context, shop: Annotated[Shop, Depends(Shop)]) -> str:
    return ctx.lifespan(Shop).name + shop.name


server.tool(right)
server.prompt(title="Greet")
server.resource("shop://a", mime_type="text/plain")
server.flow("order", output_schema={"type": "object"})
server.completion("greet", "name")
server.run("http", port=0)


async def asks(ctx: Context) -> None:
    shop: Shop = await ctx.elicit("Which?", Shop, timeout=5, details={"a": 1})
    yes: bool = bool(await ctx.approve("Pay?", details={"To": shop.name}, secret=True))
    text: str = (await ctx.sample("Why?", max_tokens=5, temperature=0.5)).text
    print(yes, text, await ctx.gather(a=Elicit("Which?", Shop)))


context: Context
"""

WRONG = [
    "server.tool(titel='Refund')",
    "server.tool(timeout='soon')",
    "server.tool(concurrency='2')",
    "server.tool(rate=10)",
    "server.tool(visible=True)",
    "server.tool(task='sometimes')",
    "server.prompt(task='allowed')",
    "server.prompt(rate='1/day')",
    "server.resource(mime_type='text/plain')",
    "server.resource('shop://b', restarts='adopt')",
    "server.flow('other', name='another')",
    "server.completion('greet')",
    "server.run('websocket')",
    "Server('shop', middleware=[is_staff])",
    "Server('shop', lifespan=is_staff)",
    "Server('shop', lifspan=open_shop)",
    "context.elicit('Which?', Shop, timout=5)",
    "context.elicit('Which?', Shop, timeout='soon')",
    "context.approve('Pay?', detail={})",
    "context.sample('Why?', maxTokens=5)",
    "context.roots(details={})",
    "context.gather(Elicit('Which?', Shop))",
]


@pytest.mark.timeout(180)
def test_a_wrong_option_is_an_error_of_the_type_checker(tmp_path: Path) -> None:
    first = PROGRAM.count("\n") + 1
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + "\n".join(WRONG) + "\n")
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(file)],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "extraPaths": [str(ROOT / "src")],
                "reportUnusedCoroutine": "none",
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(settings)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {d["range"]["start"]["line"] + 1 for d in found if d["severity"] == "error"}
    wrong = {first + number: line for number, line in enumerate(WRONG)}
    assert {wrong.get(line, line) for line in errors} == set(WRONG), found
