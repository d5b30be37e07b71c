"""Two worker processes of `antiphon serve`: whichever takes a request checks its token."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from antiphon.testing import KEY
from tests.auth.issuer import Issuer
from tests.auth.shop import Web
from tests.child_processes import ROOT, command, environment

PATIENCE = 50.0
TIMES = 6
"""Connections, so that both workers get some."""


@asynccontextmanager
async def two_workers(issuer: Issuer, folder: Path) -> AsyncIterator[str]:
    store = f"sqlite:///{folder / 'shop.db'}"
    process = await asyncio.create_subprocess_exec(
        *command("tests.auth.served_shop:server", "--http", "127.0.0.1:0", "--workers", "2"),
        cwd=ROOT,
        env=environment({"SHOP_ISSUER": issuer.url, "SHOP_STORE": store, "ANTIPHON_KEYS": KEY}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said, draining = b"", None
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)", said)):
                line = await process.stderr.readline()
                assert line, said.decode(errors="replace")
                said += line
        draining = asyncio.create_task(process.stderr.read())
        yield f"http://127.0.0.1:{int(found[1])}/mcp"
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)
        if draining is not None:
            await draining


async def test_a_session_and_a_call_stay_their_callers_own_on_every_worker(
    issuer: Issuer, tmp_path: Path
) -> None:
    carl, dora = issuer.sign_in("carl"), issuer.sign_in("dora")
    agent, fresh = issuer.act_for(carl), issuer.refresh(carl)
    async with two_workers(issuer, tmp_path) as url:
        async with httpx2.AsyncClient(timeout=20, verify=False) as http:
            mine = await Web(url, http).old(carl).open()
            asked = await Web(url, http).result("order", carl)
        ((key, _),) = asked["inputRequests"].items()
        given = {key: {"action": "accept", "content": {"size": "M"}}}
        round_two = {"requestState": asked["requestState"], "inputResponses": given}
        for _ in range(TIMES):
            async with httpx2.AsyncClient(timeout=20, verify=False) as http:
                web = Web(url, http)
                for other in (dora, agent):
                    thief = web.old(other)
                    thief.session = mine.session
                    ping = thief.request("tools/list")
                    answer = await http.post(url, json=ping, headers=thief.headers())
                    assert answer.status_code == 404
                    assert "error" in (await web.call("order", other, **round_two)).json()
                again = web.old(fresh)
                again.session = mine.session
                assert await again.text("whoami") == "carl/laptop/"
                refund = again.request("tools/call", {"name": "refund", "arguments": {}})
                answer = await http.post(url, json=refund, headers=again.headers())
                assert answer.status_code == 403
                assert (await web.call("whoami", None)).status_code == 401
        async with httpx2.AsyncClient(timeout=20, verify=False) as http:
            assert await Web(url, http).text("order", fresh, **round_two) == "carl ordered M"
