"""Who calls under `antiphon dev`: a person that the author chooses, or whoever the headers name."""

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from antiphon.client import Client
from tests.cli.running import ANTIPHON, antiphon, environment

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
GUARDS = {
    "principal": "principal=who",
    "auth": 'auth=OAuth(issuer="https://id.example", audience="http://127.0.0.1:8400/mcp")',
    "nothing": "",
}
SERVER = '''
from contextlib import asynccontextmanager
from antiphon import Console, Context, OAuth, Principal, Server

PEOPLE = {"Bearer of-anna": "anna"}


def who(scope):
    sent = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Principal(issuer="shop", subject=PEOPLE[sent])


@asynccontextmanager
async def lifespan(server):
    yield {"till": 7}


server = Server("shop", lifespan=lifespan, console=Console("https://desk.example/console"), GUARD)


@server.tool(visible=lambda person: person.subject != "eve")
async def whoami(ctx: Context) -> str:
    """Say who calls."""
    return f"{ctx.principal.issuer}/{ctx.principal.subject} {ctx.lifespan(dict)['till']}"
'''


class Bench:
    """A running `antiphon dev`, seen by somebody signed in to it."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.url = re.findall(r"http://127\.0\.0\.1:\d+/mcp", page)[0]

    async def whoami(self) -> str:
        async with Client(self.url) as client:
            return (await client.call_tool("whoami")).content[0].text  # pyright: ignore[reportAttributeAccessIssue]


@asynccontextmanager
async def bench(folder: Path, *words: str) -> AsyncIterator[Bench]:
    process = await asyncio.create_subprocess_exec(
        *ANTIPHON, "dev", *words,
        cwd=folder,
        env=environment(LOGNAME="ada"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        link = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        url = link.partition("/link/")[0]
        async with httpx.AsyncClient(timeout=30) as browser:
            ours = {"origin": url.removesuffix("/console"), "sec-fetch-site": "same-origin"}
            signed = await browser.post(link, headers=ours)
            assert signed.status_code == 303
            yield Bench((await browser.get(signed.url.join(signed.headers["location"]))).text)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def write(folder: Path, guard: str) -> None:
    (folder / "shop.py").write_text(SERVER.replace("GUARD", GUARDS[guard]))


@pytest.mark.parametrize(
    ("guard", "words", "caller"),
    [
        ("principal", [], "antiphon dev/developer"),
        ("principal", ["--as", "bob"], "antiphon dev/bob"),
        ("principal", ["--as", "bob", "--issuer", "shop"], "shop/bob"),
        ("principal", ["--header", "Authorization: Bearer of-anna"], "shop/anna"),
        ("auth", ["--as", "bob"], "antiphon dev/bob"),
        ("nothing", [], "/"),
        ("nothing", ["--as", "bob"], "antiphon dev/bob"),
    ],
)
async def test_every_server_is_called_by_whom_the_author_chooses(
    tmp_path: Path, guard: str, words: list[str], caller: str
) -> None:
    write(tmp_path, guard)
    async with bench(tmp_path, "shop.py", *words) as running:
        assert "whoami" in running.page
        assert await running.whoami() == f"{caller} 7"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--as", "eve"], "none that is visible to a caller as &#39;eve&#39;"),
        (["--header", "Authorization: Bearer of-nobody"], "without --header"),
    ],
)
async def test_the_page_says_why_nothing_is_offered(
    tmp_path: Path, words: list[str], said: str
) -> None:
    write(tmp_path, "principal")
    async with bench(tmp_path, "shop.py", *words) as running:
        assert said in running.page
        assert "Put <code>@server.tool</code>" not in running.page
        assert "of-nobody" not in running.page


async def test_a_server_without_tools_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text('from antiphon import Server\nserver = Server("shop")\n')
    async with bench(tmp_path, "shop.py") as running:
        assert "Put <code>@server.tool</code> on a function" in running.page


async def test_the_refund_desk_runs_under_development_as_its_page_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "refund_desk", tmp_path / "desk")
    async with bench(tmp_path / "desk", "server.py") as running, Client(running.url) as client:
        assert "refund" in {tool.name for tool in await client.list_tools()}


@pytest.mark.parametrize(
    "words",
    [
        ["--as", "anna", "--header", "X: y"],
        ["--issuer", "shop"],
        ["--as", ""],
        ["--header", "no colon"],
        ["--header", "X: \u20ac"],
    ],
)
def test_callers_that_make_no_sense_are_refused(tmp_path: Path, words: list[str]) -> None:
    write(tmp_path, "principal")
    assert antiphon("dev", str(tmp_path / "shop.py"), *words).code == 2
