"""The client under test of the official suite: `python -m conformance.client URL`.

The suite starts a server for each scenario and names it in the environment; each scenario is a
function here. Whatever the library does by itself (headers, envelope, rounds, OAuth) is not helped.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from antiphon.client.answers import Answers
from antiphon.client.asks import Accept, FormAsk
from antiphon.client.client import Client
from antiphon.client.errors import ClientError
from antiphon.client.login.browser import BrowserSignIn

CLIENT_ID_DOCUMENT = "https://conformance-test.local/client-metadata.json"
REDIRECT = "http://localhost:3030/callback"
SAMPLES: dict[str, Any] = {"string": "text", "integer": 1, "number": 1, "boolean": True}


def accept(ask: FormAsk) -> Accept:
    """Fill what has no default; the library fills what has one."""
    properties: dict[str, Any] = ask.schema["properties"]
    return Accept(
        {
            name: True if schema["type"] == "boolean" else SAMPLES.get(schema["type"], "text")
            for name, schema in properties.items()
            if "default" not in schema
        }
    )


ANSWERS = Answers(
    elicit=accept,
    elicit_url=lambda ask: Accept(),
    sample=lambda ask: "a completion",
    roots=lambda ask: ["/"],
)


def connect(url: str, **options: Any) -> Client:
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2026-07-28")
    era: Any = "modern" if version >= "2026-07-28" else "legacy"
    return Client(url, answers=ANSWERS, era=era, **options)


def context() -> dict[str, Any]:
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties") or {}
    return {
        name: SAMPLES[each["type"]]
        for name, each in properties.items()
        if isinstance(each, dict) and each.get("type") in SAMPLES
    }


async def tools_call(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def list_tools(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()


async def request_metadata(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        await client.call_tool("anything", {})


async def request_state(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        # The unrelated call runs while the other waits for its answer.
        await asyncio.gather(
            client.call_tool("test_mrtr_echo_state", {}),
            client.call_tool("test_mrtr_unrelated", {}),
        )
        await client.call_tool("test_mrtr_no_state", {})
        await client.call_tool("test_mrtr_no_result_type", {})


async def standard_headers(url: str) -> None:
    async with connect(url) as client:
        for tool in (await client.list_tools())[:1]:
            await client.call_tool(tool.name, arguments_for(tool.input_schema))
        for resource in (await client.list_resources())[:1]:
            await client.read_resource(str(resource.uri))
        for prompt in (await client.list_prompts())[:1]:
            await client.get_prompt(
                prompt.name, {each.name: "x" for each in prompt.arguments or []}
            )


async def custom_headers(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        for call in context()["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])


async def every_tool(url: str) -> None:
    async with connect(url) as client:
        for tool in await client.list_tools():
            await client.call_tool(tool.name, arguments_for(tool.input_schema))


async def schema_preserved(url: str) -> None:
    async with connect(url) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        schema = tools["json_schema_2020_12_tool"].input_schema
        await client.call_tool("json_schema_echo", {"schema": schema})


async def defaults(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        await client.call_tool("test_client_elicitation_defaults", {})


async def reconnection(url: str) -> None:
    async with connect(url) as client:
        await client.list_tools()
        await client.call_tool("test_reconnection", {})


# --- OAuth -------------------------------------------------------------------------------------


class Storage:
    """Tokens and registration, kept in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Browser:
    """Follows the authorization redirect itself, as the suite expects."""

    def __init__(self) -> None:
        self.location = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(url, follow_redirects=False)
        self.location = response.headers["location"]

    async def result(self) -> AuthorizationCodeResult:
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(self.location).query).items()
        }
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )


class Memory:
    """Where `antiphon call --login` would keep the login."""

    def __init__(self) -> None:
        self.login: bytes | None = None

    def load(self) -> bytes | None:
        return self.login

    def save(self, login: bytes) -> None:
        self.login = login


async def visit(page: str) -> None:
    """Go where the authorization server sends a browser: back to this program."""
    async with httpx2.AsyncClient() as client:
        location = (await client.get(page, follow_redirects=False)).headers["location"]
        await client.get(location)


def signing_in(url: str) -> OAuthClientProvider:
    """What `antiphon call --login` does; without what it does not offer."""
    return BrowserSignIn(url, Memory(), visit)


def code_flow(url: str) -> OAuthClientProvider:
    storage, browser, given = Storage(), Browser(), context()
    if "client_id" in given:
        storage.client = OAuthClientInformationFull(
            client_id=given["client_id"],
            client_secret=given.get("client_secret"),
            redirect_uris=[AnyUrl(REDIRECT)],
            token_endpoint_auth_method="client_secret_basic",
            issuer=given.get("issuer"),
        )
    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="antiphon",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
        ),
        storage=storage,
        redirect_handler=browser.open,
        callback_handler=browser.result,
        client_metadata_url=CLIENT_ID_DOCUMENT,
    )


def basic_credentials(url: str) -> OAuthClientProvider:
    given = context()
    return ClientCredentialsOAuthProvider(
        server_url=url,
        storage=Storage(),
        client_id=given["client_id"],
        client_secret=given["client_secret"],
        token_endpoint_auth_method="client_secret_basic",
        issuer=given.get("issuer"),
    )


def jwt_credentials(url: str) -> OAuthClientProvider:
    given = context()
    signed = SignedJWTParameters(
        issuer=given["client_id"],
        subject=given["client_id"],
        signing_algorithm=given["signing_algorithm"],
        signing_key=given["private_key_pem"],
    )
    return PrivateKeyJWTOAuthProvider(
        server_url=url,
        storage=Storage(),
        client_id=given["client_id"],
        assertion_provider=signed.create_assertion_provider(),
        issuer=given.get("issuer"),
    )


def assertion(url: str) -> httpx2.Auth:
    """The identity provider of a company vouches for the person (ID-JAG)."""
    given, parts = context(), urlsplit(url)
    there = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    issuer = httpx2.get(there).raise_for_status().json()["authorization_servers"][0]

    async def swap(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": audience,
            "resource": resource,
            "subject_token": given["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": given["idp_client_id"],
        }
        async with httpx2.AsyncClient() as client:
            answer = await client.post(given["idp_token_endpoint"], data=form)
        return answer.raise_for_status().json()["access_token"]

    return IdentityAssertionOAuthProvider(
        server_url=url,
        storage=Storage(),
        client_id=given["client_id"],
        client_secret=given["client_secret"],
        issuer=issuer,
        assertion_provider=swap,
        token_endpoint_auth_method="client_secret_basic",
    )


PROVIDERS: dict[str, Callable[[str], httpx2.Auth]] = {
    "auth/basic-cimd": code_flow,
    "auth/pre-registration": code_flow,
    "auth/client-credentials-basic": basic_credentials,
    "auth/enterprise-managed-authorization": assertion,
    "auth/client-credentials-jwt": jwt_credentials,
}


async def authorized(url: str, scenario: str) -> None:
    provider = PROVIDERS.get(scenario, signing_in)(url)
    async with connect(url, auth=provider) as client:
        for tool in (await client.list_tools())[:1]:
            await client.call_tool(tool.name, arguments_for(tool.input_schema))


SCENARIOS: dict[str, Callable[[str], Awaitable[None]]] = {
    "tools_call": tools_call,
    "initialize": list_tools,
    "request-metadata": request_metadata,
    "sep-2322-client-request-state": request_state,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": every_tool,
    "json-schema-ref-no-deref": list_tools,
    "json-schema-2020-12-preservation": schema_preserved,
    "elicitation-sep1034-client-defaults": defaults,
    "sse-retry": reconnection,
}


def main() -> int:
    url, scenario = sys.argv[-1], os.environ["MCP_CONFORMANCE_SCENARIO"]
    if scenario.startswith("auth/"):
        run = authorized(url, scenario)
    elif scenario in SCENARIOS:
        run = SCENARIOS[scenario](url)
    else:
        print(f"no such scenario: {scenario}", file=sys.stderr)
        return 2
    try:
        asyncio.run(run)  # pyright: ignore[reportArgumentType]
    except ClientError as error:
        # Several scenarios must end in a refusal by the client; the suite saw what was sent.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 0 if scenario.startswith("auth/") else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
