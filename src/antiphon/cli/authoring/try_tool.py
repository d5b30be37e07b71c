"""`antiphon try`: disturb the rounds of a call on a server of any make, and see what it accepts."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli import output
from antiphon.cli.call import ARGUMENTS, TOOL, tool_arguments
from antiphon.cli.connect import (
    ENV,
    HEADER,
    TARGET,
    TIMEOUT,
    Settings,
    headers_of,
    read_named,
    settings_of,
)
from antiphon.cli.output import JSON, USAGE, fail
from antiphon.cli.session import ANSWER
from antiphon.client.answers import Scripted
from antiphon.client.errors import CallTimeout, ClientError
from antiphon.client.flow_types import Timeouts
from antiphon.client.targets.named import NamedTarget
from antiphon.errors import ConfigError
from antiphon.protocol.text import safe

if TYPE_CHECKING:
    from antiphon.client.client import Client
    from antiphon.testing.what_if import WhatIfReport

OTHER = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="NAME:VALUE",
        help="A header by which the server tells a second caller from you; without it, nobody "
        "else is tried. Repeatable.",
    ),
]
_SHOWN = 2_000


def try_tool(
    target: TARGET,
    tool: TOOL,
    arguments: ARGUMENTS = None,
    answer: ANSWER = None,
    other: OTHER = None,
    header: HEADER = None,
    env: ENV = None,
    json: JSON = False,
    timeout: TIMEOUT = 30.0,
) -> None:
    """Call a tool again and again with its rounds disturbed, and say what should not be accepted.

    For servers of any make, from outside: tokens that are changed, brought twice, with other
    answers or arguments, or by somebody else; answers that nobody asked for; a no in the place of
    every yes. The tool is really called, about ten times for each question: use a server where
    that does no harm. Every question needs an --answer. A task is followed to its end;
    it must ask something or end within --timeout.

    Exit codes: 0 nothing found, 1 something found, 2 the tool cannot be tried.

    Examples:

    \b
      antiphon try URL provision -a placement.region=eu -a approve.approve=yes
      ANNA="Authorization: Bearer ..." BORIS="Authorization: Bearer ..."
      antiphon try URL refund -a approve.approve=yes -H "$ANNA" --as "$BORIS"
    """
    where = read_named(target, json=json)
    settings = settings_of(header, env, "modern", timeout, False, json)
    try:
        script = Scripted.parse(answer or ())
        others = headers_of(other or ())
    except ValueError as error:
        fail(str(error), USAGE)
    try:
        report = asyncio.run(_tried(where, settings, others, tool, arguments or [], script))
    except (ConfigError, ValueError) as error:
        fail(str(error), USAGE)
    except CallTimeout as error:
        fail(f"{error.what}. Raise --timeout.", USAGE)
    except ClientError as error:
        output.failed(error, json=json, code=USAGE)
    if json:
        output.as_json("found" if report.problems else "done", **_members(report))
    else:
        _show(report)
    raise typer.Exit(1 if report.problems else 0)


async def _tried(
    target: NamedTarget,
    settings: Settings,
    others: dict[str, str],
    tool: str,
    words: list[str],
    script: Scripted,
) -> "WhatIfReport":
    # Loaded here: the SDK behind it takes longer to load than most commands take to run.
    from antiphon.testing.remote import try_server

    def progress(name: str) -> None:
        if not settings.json:
            output.say(f"{name} ...")

    async with _client(target, settings, {}) as client:
        schemas = {each.name: each.input_schema for each in await client.list_tools()}
        if tool not in schemas:
            known = ", ".join(schemas) or "none"
            raise ConfigError(f"the server has no tool {tool!r}; it has: {known}")
        given = tool_arguments(words, schemas[tool])
        how: Any = {"patience": settings.timeout, "progress": progress}
        if not others:
            return await try_server(client, None, tool, given, script, **how)
        async with _client(target, settings, others) as somebody:
            return await try_server(client, somebody, tool, given, script, **how)


def _client(target: NamedTarget, settings: Settings, more: dict[str, str]) -> "Client":
    from antiphon.client.client import Client

    return Client(
        target,
        era="modern",
        headers={**settings.headers, **more},
        timeouts=Timeouts(reply=settings.timeout),
        env=settings.env,
    )


def _members(report: "WhatIfReport") -> dict[str, Any]:
    problems = [
        {"id": one.id, "run": one.run, "detail": one.detail, "cure": one.cure}
        for one in report.problems
    ]
    return {"runs": report.runs, "problems": problems, "left_out": report.left_out}


def _show(report: "WhatIfReport") -> None:
    for line in report.left_out:
        print(f"not tried: {line}")
    calls = "1 call" if len(report.runs) == 1 else f"{len(report.runs)} calls"
    print(f"{calls}: {safe(str(report), _SHOWN * (1 + len(report.problems)))}")
