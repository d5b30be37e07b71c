"""docs/auth.md: its server refuses who has no token, and steps up who lacks a scope."""

import importlib

import pytest

from docs_src import auth
from tests.auth.issuer import running
from tests.transports.wire import mirrored, post, request


async def test_the_server_of_the_page_does_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running() as issuer:
        monkeypatch.setenv("SHOP_ISSUER", issuer.url)
        page = importlib.reload(auth)
        message = request(name="orders", arguments={})
        asked = request(name="refund", arguments={"order": "7"})
        carl = issuer.sign_in("carl", "shop").header["authorization"]
        more = issuer.sign_in("carl", "shop refunds:write").header["authorization"]
        async with page.server.running():
            nobody = await post(page.app, message)
            known = await post(page.app, message, mirrored(message, authorization=carl))
            stopped = await post(page.app, asked, mirrored(asked, authorization=carl))
            going = await post(page.app, asked, mirrored(asked, authorization=more))
        await page.app._auth.close()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert nobody.status == 401
    metadata = b"https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
    assert b'resource_metadata="%b", scope="shop"' % metadata in nobody.headers[b"www-authenticate"]
    assert known.result["content"][0]["text"] == "the orders of carl"
    assert stopped.status == 403
    assert b'scope="refunds:write shop"' in stopped.headers[b"www-authenticate"]
    assert going.status in (200, 400), going.body
