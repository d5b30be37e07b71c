"""`antiphon read` and `antiphon prompt`: resources and prompts on the command line, asking too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import antiphon
from tests.cli.test_logs import serving

MODULE = '''
from antiphon import Context, Server
from pydantic import BaseModel

server = Server("library")


class Reader(BaseModel):
    name: str


@server.resource("notes://today", description="What is on today.")
async def today() -> str:
    return "Rain.\\x1b[31m"


@server.resource("notes://{day}/private")
async def private(ctx: Context, day: str) -> str:
    reader = await ctx.elicit("Who reads?", Reader, key="reader")
    return f"{day} of {reader.name}"


@server.prompt
async def review(ctx: Context, language: str, tone: str = "kind") -> str:
    """Review a text."""
    reader = await ctx.elicit("For whom?", Reader, key="reader")
    return f"Review in {language}, {tone}, for {reader.name}."
'''


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("library")
    with serving(folder, "--port", "0", module=MODULE) as log:
        yield log.url


def test_a_resource_is_read_without_escapes_of_the_terminal(library: str) -> None:
    ran = antiphon("read", library, "notes://today")
    assert (ran.code, ran.out) == (0, "Rain.\\x1b[31m\n"), ran.err
    shown = antiphon("read", library, "notes://today", "--json").json
    assert shown["result"]["contents"][0]["text"] == "Rain.\x1b[31m"


def test_a_resource_that_asks_is_answered(library: str) -> None:
    ran = antiphon("read", library, "notes://friday/private", "-a", "reader.name=Ada")
    assert (ran.code, ran.out) == (0, "friday of Ada\n"), ran.err


def test_a_prompt_that_asks_is_answered_or_saved(library: str, tmp_path: Path) -> None:
    words = ["prompt", library, "review", "language=en"]
    ran = antiphon(*words, "-a", "reader.name=Ada")
    assert (ran.code, ran.out) == (0, "user:\nReview in en, kind, for Ada.\n"), ran.err
    file = tmp_path / "call.json"
    assert antiphon(*words, "--save", str(file)).code == 4
    ran = antiphon("resume", str(file), "-a", "reader.name=Bob")
    assert (ran.code, ran.out) == (0, "user:\nReview in en, kind, for Bob.\n"), ran.err


def test_resources_and_prompts_are_listed(library: str) -> None:
    resources = antiphon("read", library).out
    assert all(text in resources for text in ("notes://today", "notes://{day}/private", "on today"))
    prompts = antiphon("prompt", library).out
    assert "language [tone]" in prompts
    assert antiphon("prompt", library, "--json").json["prompts"][0]["name"] == "review"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["read", "notes://nothing"], 1, "`antiphon read TARGET` lists the resources"),
        (["prompt", "revue"], 2, "has no prompt 'revue'; it has: review"),
        (["prompt", "review", "language"], 2, "write name=value"),
        (["prompt", "review"], 2, "the prompt needs language: add language=VALUE"),
        (["prompt", "review", "lang=en"], 2, "has no argument 'lang'; it has language"),
    ],
)
def test_what_does_not_exist_is_an_error_that_says_what_does(
    library: str, words: list[str], code: int, told: str
) -> None:
    command, *rest = words
    ran = antiphon(command, library, *rest)
    assert (ran.code, ran.err.startswith("error: "), told in ran.err) == (code, True, True), ran


def test_a_server_without_resources_or_prompts_says_so(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from antiphon import Server\n\nserver = Server('bare')\n")
    bare = str(tmp_path / "bare.py")
    for command, told in (("read", "The server has no resources."), ("prompt", "no prompts.")):
        listed = antiphon(command, bare)
        assert (listed.code, told in listed.out) == (0, True), listed
    one = antiphon("read", bare, "notes://today")
    assert (one.code, one.err) == (1, "error: the server has no resources\n")
    one = antiphon("prompt", bare, "review")
    assert (one.code, one.err) == (2, "error: the server has no prompts\n")
