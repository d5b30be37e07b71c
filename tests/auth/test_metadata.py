"""Where a client learns who issues tokens for a server (RFC 9728), also behind a mount."""

from typing import Any

import pytest
from mcp.shared.auth import ProtectedResourceMetadata
from starlette.applications import Starlette
from starlette.routing import Mount

from antiphon import OAuth
from tests.auth.issuer import AUDIENCE, Issuer
from tests.auth.shop import SERVERS, open_shop, shop
from tests.transports.wire import post, request

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_document_is_at_the_root_and_at_the_path_of_the_endpoint(
    issuer: Issuer, kind: str
) -> None:
    async with open_shop(shop(issuer), kind) as web:
        origin = web.url.removesuffix("/mcp")
        for path in (WELL_KNOWN, WELL_KNOWN + "/mcp", WELL_KNOWN + "/"):
            answer = await web.http.get(origin + path, headers={"origin": "https://any.example"})
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["access-control-allow-origin"] == "*"
            described = ProtectedResourceMetadata.model_validate_json(answer.content)
            assert str(described.resource) == AUDIENCE
            assert [str(url) for url in described.authorization_servers] == [issuer.url]
            assert described.scopes_supported == ["mcp"]
        head = await web.http.head(origin + WELL_KNOWN)
        assert (head.status_code, head.content) == (200, b"")
        preflight = await web.http.options(
            origin + WELL_KNOWN,
            headers={
                "origin": "https://any.example",
                "access-control-request-method": "GET",
                "access-control-request-headers": "mcp-protocol-version",
            },
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-headers"] == "mcp-protocol-version"
        assert (await web.http.post(origin + WELL_KNOWN)).status_code == 405
        assert (await web.http.get(origin + WELL_KNOWN + "/other")).status_code == 404
        assert (await web.http.get(origin + "/x" + WELL_KNOWN)).status_code == 404


async def test_it_is_found_below_a_mount_and_where_the_root_sends_it(issuer: Issuer) -> None:
    auth = OAuth(issuer.url, audience="https://shop.example/tools/mcp")
    app: Any = shop(issuer, auth=auth).asgi(allowed_hosts=["shop.example"])
    outer: Any = Starlette(routes=[Mount("/tools", app), Mount(WELL_KNOWN, app)])
    found: list[int] = []
    for path in (f"{WELL_KNOWN}/tools/mcp", f"/tools{WELL_KNOWN}", f"/tools{WELL_KNOWN}/mcp"):
        answer = await post(outer, b"", [(b"host", b"shop.example")], path=path, method="GET")
        found.append(answer.status)
    assert found == [200, 200, 200]
    message = request(name="whoami", arguments={})
    refused = await post(outer, message, path="/tools/mcp")
    assert refused.status == 401
    challenge = refused.headers[b"www-authenticate"].decode()
    assert f'resource_metadata="https://shop.example{WELL_KNOWN}/tools/mcp"' in challenge


async def test_what_a_proxy_or_a_client_says_of_the_host_is_in_no_answer(issuer: Issuer) -> None:
    app = shop(issuer).asgi(allowed_hosts=["*"])
    lies = [
        (b"host", b"evil.example"),
        (b"x-forwarded-host", b"evil.example"),
        (b"forwarded", b"host=evil.example"),
        (b"content-type", b"application/json"),
    ]
    refused = await post(app, request(name="whoami"), lies)
    described = await post(app, b"", lies, path=WELL_KNOWN, method="GET")
    assert refused.status == 401
    assert b"evil" not in refused.headers[b"www-authenticate"] + described.body


async def test_an_audience_that_is_no_url_has_a_resource_beside_it(issuer: Issuer) -> None:
    auth = OAuth(issuer.url, audience="api://shop", resource=AUDIENCE)
    async with open_shop(shop(issuer, auth=auth)) as web:
        answer = await web.http.get(web.url.removesuffix("/mcp") + WELL_KNOWN)
        assert answer.json()["resource"] == AUDIENCE
        assert "scopes_supported" not in answer.json()
        assert (await web.call("whoami", issuer.signed(aud="api://shop"))).status_code == 200
        assert (await web.call("whoami", issuer.signed(aud=AUDIENCE))).status_code == 401
        assert "scope=" not in (await web.call("whoami", None)).headers["www-authenticate"]


async def test_probes_and_an_unknown_path_need_no_token(issuer: Issuer) -> None:
    async with open_shop(shop(issuer)) as web:
        origin = web.url.removesuffix("/mcp")
        assert (await web.http.get(f"{origin}/healthz")).status_code == 200
        assert (await web.http.get(f"{origin}/readyz")).status_code == 200
        assert (await web.http.get(f"{origin}/nothing")).status_code == 404
