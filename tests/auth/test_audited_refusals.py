"""Who was not let in: refusals that a transport makes before there is a call are in the audit."""

from collections.abc import Mapping
from typing import Any

import pytest

from antiphon import Audit, MemoryStore, Principal, Server, StoreError
from antiphon.protocol.audit import AuditRecord, verify_audit
from antiphon.protocol.chain import ChainHead
from antiphon.testing import KEY
from tests.auth.issuer import Issuer
from tests.auth.shop import CAN, SERVERS, open_shop, shop
from tests.transports.wire import mirrored, post, request


async def refusals(store: MemoryStore) -> list[AuditRecord]:
    records = await store.audit_records("shop")
    assert verify_audit(records, head=await store.audit_head("shop")).broken is None
    return [record for record in records if record.kind == "refusal"]


@pytest.mark.parametrize("kind", SERVERS)
async def test_access_tokens_that_are_refused_have_records_without_the_token(
    issuer: Issuer, kind: str
) -> None:
    store = MemoryStore()
    forged = issuer.sign_in("carl")
    async with open_shop(shop(issuer, store=store, audit=Audit()), kind) as web:
        assert (await web.call("whoami", None)).status_code == 401
        bad = await web.send(request(name="whoami"), None, authorization="Bearer not-a-token")
        assert bad.status_code == 401
        few = await web.call("whoami", issuer.sign_in("carl", "other"))
        assert few.status_code == 403
        step_up = await web.call("refund", forged)
        assert step_up.status_code == 403
        found = await refusals(store)
    assert [record.reason for record in found] == [
        "401 An access token is needed.",
        "401 The access token is not valid.",
        "403 The access token does not have the scopes that this needs.",
        "InsufficientScope",
    ]
    assert {record.transport for record in found} == {"http"}
    assert [record.subject for record in found] == ["", "", "", "carl"]
    assert "not-a-token" not in str(found)


async def test_refusals_in_a_session_and_about_a_task_have_records(issuer: Issuer) -> None:
    store = MemoryStore()
    few, more = issuer.sign_in("carl"), issuer.sign_in("carl", "mcp refunds:write")
    async with open_shop(shop(issuer, store=store, audit=Audit())) as web:
        old = await web.old(few).open()
        message = old.request("tools/call", {"name": "refund", "arguments": {}})
        refused = await web.http.post(web.url, json=message, headers=old.headers())
        assert refused.status_code == 403
        task = (await web.result("audit", more, can=CAN))["taskId"]
        assert (await web.ask("tasks/get", few, taskId=task)).status_code == 403
        stolen = await web.ask("tasks/get", issuer.sign_in("dora"), taskId=task)
        assert "error" in stolen.json()
        found = await refusals(store)
    assert [(record.method, record.subject) for record in found] == [
        ("tools/call", "carl"),
        ("tasks/get", "carl"),
        ("tasks/get", "dora"),
    ]


def guarded(store: MemoryStore) -> Server:
    def who(scope: Mapping[str, Any]) -> Principal:
        raise PermissionError("anna's secret")

    return Server(
        "shop",
        store=store,
        audit=Audit(),
        principal=who,
        environ={"ANTIPHON_KEYS": KEY},
        clock=lambda: 1_800_000_000.0,
    )


async def test_a_caller_whom_the_function_of_the_author_refuses_has_a_record() -> None:
    store = MemoryStore()
    server = guarded(store)
    async with server.running():
        app = server.asgi()
        assert (await post(app, request("tools/list"))).status == 403
        foreign = [*mirrored(request("tools/list")), (b"origin", b"https://evil.example")]
        assert (await post(app, request("tools/list"), foreign)).status == 403
    found = await refusals(store)
    assert [record.reason.partition(".")[0] for record in found] == [
        "403 This caller may not use this server",
        "403 This Origin is not allowed",
    ]
    assert "secret" not in str(found)


class Down(MemoryStore):
    """A store whose audit cannot be written."""

    async def append_audit(self, server: str, events: Any) -> ChainHead:
        raise StoreError("no space")


async def test_who_is_refused_stays_refused_when_that_cannot_be_written() -> None:
    server = guarded(Down())
    async with server.running():
        assert (await post(server.asgi(), request("tools/list"))).status == 403


async def test_a_flood_of_refused_requests_is_counted() -> None:
    store = MemoryStore()
    server = guarded(store)
    async with server.running():
        app = server.asgi()
        for _ in range(130):
            await post(app, request("tools/list"))
    assert len(await refusals(store)) == 120
