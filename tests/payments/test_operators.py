"""What operators find out about a payment of unknown end, when, and how they settle it."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from antiphon import Audit, Context, Seal, Server
from antiphon.apps.console.settling import is_authentic
from antiphon.ports import AuditStore, Overview
from antiphon.testing import KEY
from tests import servers
from tests.cli.running import antiphon
from tests.tasks.task_client import Peer

ACCOUNT = "DE89370400440532013000"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with servers.redis() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'ledger.db'}"
        case "postgres":
            return request.getfixturevalue("postgres_dsn")
        case _:
            return request.getfixturevalue("redis_url")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", KEY)


class Till:
    """A server whose bank pays and never answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"till-{secrets.token_hex(6)}"
        self.keys_given: list[str] = []
        settings: dict[str, Any] = {"audit": Audit()} if not url.startswith("redis") else {}
        self.server = Server(
            self.name, store=url, seal=Seal(keys=[KEY]), environ={"HOME": "/"}, **settings
        )

        async def charge(
            account: str, amount: Decimal, pin: SecretStr, note: str, idempotency_key: str
        ) -> str:
            self.keys_given.append(idempotency_key)
            raise TimeoutError("no reply")

        @self.server.tool
        async def pay(ctx: Context, amount: Decimal) -> str:
            pin = SecretStr("pin-4711")
            return await ctx.once("pay", charge, ACCOUNT, amount, pin, "n" * 5_000)

        self._pay = pay

    async def pay(self) -> str:
        result = await Peer(self.server).send("tools/call", name="pay", arguments={"amount": "120"})
        return result["content"][0]["text"]

    async def command(self, *words: str) -> Any:
        return await asyncio.to_thread(antiphon, "calls", *words, "--server", self.name)

    async def listed(self) -> dict[str, Any]:
        ran = await self.command(self.url, "--uncertain", "--json")
        [call] = ran.json["calls"]
        [effect] = call["effects"]
        return {**effect, "call": call["call"]}


async def test_an_operator_finds_a_payment_the_moment_its_end_is_unknown_and_settles_it(
    shared_url: str,
) -> None:
    till = Till(shared_url)
    async with till.server.running():
        assert "may have happened" in await till.pay()
        effect = await till.listed()
        assert (effect["tool"], effect["state"]) == ("pay", "uncertain")
        assert [effect["idempotency_key"]] == till.keys_given
        assert 0 <= effect["age"] < 60
        assert effect["caller"]
        assert effect["arguments"] == {
            "account": ACCOUNT,
            "amount": "120",
            "pin": "**********",
            "note": "n" * 500 + "… (5,000 characters)",
        }
        settled = await till.command("settle", till.url, effect["call"], "pay", "--done", '"P-7"')
        assert (settled.code, settled.err) == (0, "")
        assert await till.pay() == "P-7"
    assert len(till.keys_given) == 1


@pytest.mark.parametrize("keys", [KEY, ""], ids=["with keys", "without keys"])
async def test_what_was_settled_by_the_url_of_a_store_is_proved_with_the_keys_alone(
    postgres_dsn: str, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till(postgres_dsn)
    async with till.server.running():
        await till.pay()
        effect = await till.listed()
        monkeypatch.setenv("ANTIPHON_KEYS", keys)
        words = ("settle", till.url, effect["call"], "pay")
        if not keys:
            refused = await till.command(*words, "--done", "1")
            assert (refused.code, "needs the server's keys" in refused.err) == (2, True)
        settled = await till.command(*words, "--not-done")
        assert settled.code == 0
        told = "nothing will prove who settled this" in settled.err
        assert (told, "set ANTIPHON_KEYS" in settled.err) == (not keys, not keys)
    async with till.server.ledger() as environment:
        store = environment.store
        assert isinstance(store, Overview)
        assert isinstance(store, AuditStore)
        [said] = await store.settlements()
        assert (said.issuer, said.happened) == ("command line", False)
        assert await is_authentic(environment, said) is bool(keys)
        kinds = [record.kind for record in await store.audit_of(effect["call"], limit=100)]
        assert kinds.count("settlement") == 1


async def test_keys_of_another_server_settle_nothing(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till(postgres_dsn)
    async with till.server.running():
        await till.pay()
        effect = await till.listed()
        monkeypatch.setenv("ANTIPHON_KEYS", secrets.token_hex(32))
        assert (await till.listed())["arguments"] is None
        words = ("settle", till.url, effect["call"], "pay")
        for choice in (("--done", "1"), ("--not-done",)):
            refused = await till.command(*words, *choice)
            assert refused.code == 2
            assert "these are not the keys of the server" in refused.err
        assert (await till.listed())["state"] == "uncertain"


async def test_arguments_are_sealed_at_rest_and_forgotten_when_the_end_is_known(
    postgres_dsn: str,
) -> None:
    till = Till(postgres_dsn)

    def rows() -> list[tuple[Any, ...]]:
        with closing(psycopg.connect(postgres_dsn)) as connection:
            found = connection.execute(
                "SELECT shown, to_jsonb(e)::text FROM antiphon_effects e WHERE server = %s",
                (till.name,),
            )
            return found.fetchall()

    async with till.server.running():
        await till.pay()
        [(shown, row)] = rows()
        assert len(shown) > 500
        assert ACCOUNT.encode() not in shown
        assert ACCOUNT not in row
        effect = await till.listed()
        await till.command("settle", till.url, effect["call"], "pay", "--not-done")
        [(shown, _)] = rows()
        assert shown is None


async def test_many_are_given_one_result_only_by_somebody_who_says_so(postgres_dsn: str) -> None:
    till = Till(postgres_dsn)
    async with till.server.running():
        peer = Peer(till.server)
        for amount in ("1", "2"):
            await peer.send("tools/call", name="pay", arguments={"amount": amount})
        words = ("settle", till.url, "--all", "--done", '"P-7"')
        refused = await till.command(*words)
        assert refused.code == 3
        assert 'settle each of these 2 effects as done, with the result "P-7"' in refused.err
        assert 'amount="1"' in refused.err
        assert 'amount="2"' in refused.err
        settled = await till.command(*words, "--yes")
        assert (settled.code, settled.out.count("is settled: done")) == (0, 2)
