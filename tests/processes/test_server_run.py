"""`server.run()` in a program of one's own, and servers whose lifespan fails."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon import Client, ConfigError, Server
from antiphon.seal.keyring import generate_key
from tests.child_processes import PATIENCE, ROOT, environment

PROGRAM = """
from contextlib import asynccontextmanager
from antiphon import Context, Server

@asynccontextmanager
async def lifespan(server):
    print("opened", flush=True)
    {fails}
    yield server.name
    print("closed", flush=True)

server = Server("shop", lifespan=lifespan, store="sqlite:///ledger.db")

@server.tool
async def name(ctx: Context) -> str:
    return ctx.lifespan(str)

if __name__ == "__main__":
    server.run({arguments})
"""


class Program:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self, pattern: str) -> str:
        assert self.process.stderr is not None
        said = ""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern, said)) is None:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it ended without saying {pattern!r}:\n{said}"
                said += line
        return found[1]

    async def ended(self) -> tuple[int, str, str]:
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def running(
    folder: Path, *words: str, arguments: str = "", fails: str = ""
) -> AsyncIterator[Program]:
    (folder / "shop.py").write_text(PROGRAM.format(arguments=arguments, fails=fails))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(words or ("shop.py",)),
        cwd=folder,
        env=environment({"PYTHONPATH": str(ROOT), "ANTIPHON_KEYS": generate_key()}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_program_serves_http_until_a_signal_ends_it(tmp_path: Path, era: Any) -> None:
    async with running(tmp_path, arguments='"http", port=0') as program:
        url = await program.says(r"Serving on (http://\S+)")
        async with Client(url, era=era) as client:
            name: Any = (await client.call_tool("name")).content[0]
            assert name.text == "shop"
        program.process.send_signal(signal.SIGTERM)
        code, out, err = await program.ended()
    assert (code, out) == (0, "opened\nclosed\n"), err


async def test_a_program_serves_stdio_until_its_client_goes(tmp_path: Path) -> None:
    async with running(tmp_path) as program:
        assert program.process.stdin is not None
        program.process.stdin.close()
        code, out, err = await program.ended()
    assert (code, out) == (0, ""), err  # stdout belongs to the protocol: what is printed goes aside
    assert "opened" in err


SERVE = ("-m", "antiphon.cli.app", "serve", "shop:server")
STARTS = {
    "run": (("shop.py",), 1),
    "http": ((*SERVE, "--http", "127.0.0.1:0"), 1),
    "workers": ((*SERVE, "--http", "127.0.0.1:0", "--workers", "2"), 1),
    "stdio": ((*SERVE, "--stdio"), 1),
    "worker": (("-m", "antiphon.cli.app", "worker", "shop:server"), 1),
}


@pytest.mark.parametrize("start", STARTS)
async def test_a_lifespan_that_raises_ends_the_start_with_its_cause(
    tmp_path: Path, start: str
) -> None:
    words, expected = STARTS[start]
    fails = 'raise OSError("the database is down")'
    async with running(tmp_path, *words, fails=fails) as program:
        code, _, err = await program.ended()
    assert code == expected, err
    cause = "the server could not start, because its lifespan raised OSError: the database is down"
    assert cause in " ".join(err.split())
    assert "shop.py" in err  # where in the author's code


@pytest.mark.parametrize("start", ["http", "workers", "stdio", "worker"])
async def test_every_process_runs_the_lifespan(tmp_path: Path, start: str) -> None:
    words, _ = STARTS[start]
    async with running(tmp_path, *words) as program:
        if start == "stdio":
            assert program.process.stdin is not None
            program.process.stdin.close()
        else:
            await program.says(r"(Serving on|Running tasks)")
            program.process.send_signal(signal.SIGTERM)
        code, out, err = await program.ended()
    assert code == 0, err
    said = out + err
    processes = 2 if start == "workers" else 1
    assert (said.count("opened"), said.count("closed")) == (processes, processes)


async def test_a_running_event_loop_is_told_what_to_use_instead() -> None:
    with pytest.raises(ConfigError, match=r"await server\.serve_stdio"):
        Server("shop").run()


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ConfigError, match="transport='websocket' is none of 'stdio', 'http'"):
        Server("shop").run("websocket")  # type: ignore[arg-type]
