"""An authorization server in a process of its own, made of Authlib's parts.

    python -m tests.auth.authorization_server

Code with PKCE, device codes, refresh, token exchange (RFC 8693), revocation, introspection,
registration, JWKS with rotation. Who signs in is a parameter of the authorization request, `as`.
What a real server has no address for (rotating keys, signing odd tokens, counting requests) is
under `/control`.
"""

import os
import socket
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback only

import uvicorn
from authlib.oauth2.rfc6749 import AuthorizationServer, InvalidGrantError, grants
from authlib.oauth2.rfc6749.grants.base import BaseGrant, TokenEndpointMixin
from authlib.oauth2.rfc6749.requests import JsonPayload, JsonRequest, OAuth2Payload, OAuth2Request
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc7662 import IntrospectionEndpoint
from authlib.oauth2.rfc8628 import (
    DEVICE_CODE_GRANT_TYPE,
    DeviceAuthorizationEndpoint,
    DeviceCodeGrant,
    DeviceCredentialDict,
)
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from joserfc.jws import JWSRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
LIFETIME = 3_600


class FormPayload(OAuth2Payload):
    def __init__(self, data: dict[str, str]) -> None:
        self._data = data

    @property
    def data(self) -> dict[str, str]:
        return self._data

    @property
    def datalist(self) -> defaultdict[str, list[str]]:
        return defaultdict(list, {name: [value] for name, value in self._data.items()})


class FormRequest(OAuth2Request):
    def __init__(self, method: str, uri: str, headers: Any, data: dict[str, str]) -> None:
        super().__init__(method, uri, headers=headers)
        self.payload = FormPayload(data)
        self._data = data

    @property
    def args(self) -> dict[str, str]:
        return self._data

    @property
    def form(self) -> dict[str, str]:
        return self._data


class Body(JsonPayload):
    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    @property
    def data(self) -> dict[str, Any]:
        return self._data


class BodyRequest(JsonRequest):
    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__("POST", "http://127.0.0.1/register", {})
        self.payload = Body(data)


@dataclass
class Person:
    """Whose token it is, for which resource and through whom."""

    id: str
    resource: str
    act: dict[str, Any] | None = None

    def get_user_id(self) -> str:
        return self.id


@dataclass
class RegisteredClient:
    client_id: str
    client_secret: str = ""
    redirect_uris: list[str] = field(default_factory=list)
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.redirect_uris[0]

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, uri: str) -> bool:
        return uri in self.redirect_uris

    def check_client_secret(self, secret: str) -> bool:
        return bool(self.client_secret) and secret == self.client_secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return (method == "none") != bool(self.client_secret)

    def check_response_type(self, kind: str) -> bool:
        return kind == "code"

    def check_grant_type(self, kind: str) -> bool:
        return kind in self.grant_types


@dataclass
class Code:
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    user: Person
    code_challenge: str
    code_challenge_method: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Issued:
    access: str
    refresh: str
    client_id: str
    scope: str
    user: Person
    expires: float
    revoked: bool = False

    def check_client(self, client: RegisteredClient) -> bool:
        return client.client_id == self.client_id

    def get_scope(self) -> str:
        return self.scope

    def is_expired(self) -> bool:
        return self.expires < time.time()

    def is_revoked(self) -> bool:
        return self.revoked

    def get_user(self) -> Person:
        return self.user


class World:
    """Everything that the server remembers."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.keys: list[Any] = []
        self.lifetime = LIFETIME
        self.clients = {
            "laptop": RegisteredClient("laptop", "", ["http://127.0.0.1:1/callback"]),
            "agent": RegisteredClient("agent", "agent-secret", [], (EXCHANGE,)),
            "mcp": RegisteredClient("mcp", "mcp-secret", [], ()),
        }
        self.codes: dict[str, Code] = {}
        self.devices: dict[str, DeviceCredentialDict] = {}
        self.agreed: dict[str, tuple[str, bool]] = {}
        """By user code: who has seen it, and whether they agree."""

        self.device_answer: dict[str, Any] = {}
        """What is answered instead of the truth when a device wants to sign somebody in."""

        self.has_devices = True
        self.issued: list[Issued] = []
        self.counts: Counter[str] = Counter()
        self.away = False
        self.rotate(keep=False)

    def rotate(self, *, keep: bool) -> None:
        number = self.counts["keys"] = self.counts["keys"] + 1
        key = RSAKey.generate_key(2048, {"kid": f"key-{number}", "use": "sig", "alg": "RS256"})
        self.keys = [key, *(self.keys if keep else [])]

    def find(self, token: str) -> Issued | None:
        return next((one for one in self.issued if token in (one.access, one.refresh)), None)


class Tokens(JWTBearerTokenGenerator):
    def __init__(self, world: World) -> None:
        super().__init__(
            world.issuer,
            refresh_token_generator=lambda *_, **__: os.urandom(16).hex(),
            expires_generator=lambda *_: world.lifetime,
        )
        self.world = world

    def get_jwks(self) -> Any:
        return KeySet([self.world.keys[0]])  # a set, so that the header names the key

    def get_audiences(self, client: Any, user: Person, scope: str) -> str:
        return user.resource

    def get_extra_claims(self, client: Any, grant_type: str, user: Person, scope: str) -> Any:
        return {} if user.act is None else {"act": user.act}


class CodeGrant(grants.AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none", "client_secret_basic", "client_secret_post"]

    def save_authorization_code(self, code: str, request: Any) -> None:
        data = request.payload.data
        self.server.world.codes[code] = Code(
            code,
            request.client.client_id,
            request.payload.redirect_uri,
            request.scope or "",
            request.user,
            data.get("code_challenge", ""),
            data.get("code_challenge_method", ""),
        )

    def query_authorization_code(self, code: str, client: RegisteredClient) -> Code | None:
        found = self.server.world.codes.get(code)
        return found if found is not None and found.client_id == client.client_id else None

    def delete_authorization_code(self, code: Code) -> None:
        del self.server.world.codes[code.code]

    def authenticate_user(self, code: Code) -> Person:
        return code.user


class RefreshGrant(grants.RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none", "client_secret_basic", "client_secret_post"]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, token: str) -> Issued | None:
        found = self.server.world.find(token)
        live = found is not None and found.refresh == token and not found.revoked
        return found if live else None

    def authenticate_user(self, token: Issued) -> Person:
        return token.user

    def revoke_old_credential(self, token: Issued) -> None:
        token.refresh = "used"


class ExchangeGrant(BaseGrant, TokenEndpointMixin):
    """An agent swaps a person's token for one of its own that acts for that person."""

    GRANT_TYPE = EXCHANGE
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["client_secret_basic"]

    request: Any

    def validate_token_request(self) -> None:
        client: Any = self.authenticate_token_endpoint_client()
        subject = self.server.world.find(self.request.form.get("subject_token", ""))
        if not client.check_grant_type(EXCHANGE) or subject is None or subject.revoked:
            raise InvalidGrantError()
        asked = self.request.payload.scope or subject.scope
        if not set(asked.split()) <= set(subject.scope.split()):
            raise InvalidGrantError()
        self.request.client, self.request.scope = client, asked
        resource = self.request.form.get("resource") or subject.user.resource
        self.request.user = Person(subject.user.id, resource, {"sub": client.client_id})

    def create_token_response(self) -> Any:
        token = self.generate_token(
            user=self.request.user, scope=self.request.scope, include_refresh_token=False
        )
        self.save_token(token)
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return 200, {**token, "issued_token_type": kind}, self.TOKEN_RESPONSE_HEADER


class DeviceGrant(DeviceCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS: ClassVar = ["none"]

    def query_device_credential(self, device_code: str) -> Any:
        return self.server.world.devices.get(device_code)

    def query_user_grant(self, user_code: str) -> tuple[Person, bool] | None:
        found = self.server.world.agreed.get(user_code)
        resource = self.request.form.get("resource", "")
        return None if found is None else (Person(found[0], resource), found[1])

    def should_slow_down(self, credential: Any) -> bool:
        now = time.monotonic()
        early = now - credential.get("asked", now - 60) < credential["interval"] * 0.9
        credential["asked"] = now
        self.server.world.counts["slow_down" if early else "pending"] += 1
        return early


class DeviceAuthorization(DeviceAuthorizationEndpoint):
    CLIENT_AUTH_METHODS: ClassVar = ["none"]
    EXPIRES_IN = 60
    INTERVAL: Any = 1.5

    def create_endpoint_response(self, request: Any) -> Any:
        status, data, headers = super().create_endpoint_response(request)
        return status, {**data, **self.server.world.device_answer}, headers

    def get_verification_uri(self) -> str:
        return f"{self.server.world.issuer}/device"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        ends = time.time() + data["expires_in"]
        kept = DeviceCredentialDict(client_id=client_id, scope=scope, expires_at=ends, **data)
        self.server.world.devices[data["device_code"]] = kept


class Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS: ClassVar = ["none", "client_secret_basic"]

    def query_token(self, token: str, hint: str | None) -> Issued | None:
        return self.server.world.find(token)

    def revoke_token(self, token: Issued, request: Any) -> None:
        token.revoked = True


class Introspection(IntrospectionEndpoint):
    def check_permission(self, token: Issued, client: RegisteredClient, request: Any) -> bool:
        return client.client_id == "mcp"

    def query_token(self, token: str, hint: str | None) -> Issued | None:
        return self.server.world.find(token)

    def introspect_token(self, token: Issued) -> dict[str, Any]:
        found = {
            "active": True,
            "iss": self.server.world.issuer,
            "sub": token.user.id,
            "aud": token.user.resource,
            "client_id": token.client_id,
            "scope": token.scope,
            "exp": int(token.expires),
            "token_type": "Bearer",
        }
        return found if token.user.act is None else {**found, "act": token.user.act}


class Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request: Any) -> bool:
        return True

    def get_server_metadata(self) -> dict[str, Any]:
        return {}

    def generate_client_secret(self, request: Any) -> str:
        return ""

    def save_client(self, info: Any, metadata: Any, request: Any) -> RegisteredClient:
        client = RegisteredClient(
            info["client_id"],
            "",
            list(metadata.get("redirect_uris", ())),
            tuple(metadata["grant_types"]),
        )
        self.server.world.clients[client.client_id] = client
        return client


class Standin(AuthorizationServer):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.register_token_generator("default", Tokens(world))
        self.register_grant(CodeGrant, [CodeChallenge(required=True)])
        self.register_grant(RefreshGrant)
        self.register_grant(ExchangeGrant)
        self.register_grant(DeviceGrant)
        for endpoint in (Revocation, Introspection, Registration, DeviceAuthorization):
            self.register_endpoint(endpoint)

    def query_client(self, client_id: str) -> RegisteredClient | None:
        return self.world.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        client, user = request.client, request.user
        self.world.issued.append(
            Issued(
                token["access_token"],
                token.get("refresh_token", "none"),
                client.client_id,
                token.get("scope", ""),
                user,
                time.time() + token["expires_in"],
            )
        )

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        return request

    def create_json_request(self, request: Any) -> JsonRequest:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        named = dict(headers)
        if "Location" in named:
            return RedirectResponse(named["Location"], status)
        return JSONResponse(body or {}, status)

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""


def application(world: World) -> Starlette:
    standin: Any = Standin(world)

    async def read(request: Request) -> FormRequest:
        data = {str(name): str(value) for name, value in request.query_params.items()}
        if request.method == "POST":
            data |= {str(name): str(value) for name, value in (await request.form()).items()}
        return FormRequest(request.method, str(request.url), request.headers, data)

    async def metadata(request: Request) -> Response:
        world.counts["metadata"] += 1
        if world.away:
            return JSONResponse({}, 500)
        devices = {"device_authorization_endpoint": f"{world.issuer}/device_authorization"}
        return JSONResponse(
            {
                **(devices if world.has_devices else {}),
                "issuer": world.issuer,
                "authorization_endpoint": f"{world.issuer}/authorize",
                "token_endpoint": f"{world.issuer}/token",
                "registration_endpoint": f"{world.issuer}/register",
                "revocation_endpoint": f"{world.issuer}/revoke",
                "introspection_endpoint": f"{world.issuer}/introspect",
                "jwks_uri": f"{world.issuer}/jwks",
                "code_challenge_methods_supported": ["S256"],
                "response_types_supported": ["code"],
                "grant_types_supported": [
                    "authorization_code",
                    "refresh_token",
                    DEVICE_CODE_GRANT_TYPE,
                    EXCHANGE,
                ],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            }
        )

    async def jwks(request: Request) -> Response:
        world.counts["jwks"] += 1
        return JSONResponse({"keys": [key.as_dict(private=False) for key in world.keys]})

    async def authorize(request: Request) -> Response:
        asked = await read(request)
        who = Person(asked.args.pop("as", ""), asked.args.get("resource", ""))
        grant = standin.get_consent_grant(asked, end_user=who)
        return standin.create_authorization_response(asked, who if who.id else None, grant)

    async def token(request: Request) -> Response:
        world.counts["token"] += 1
        return standin.create_token_response(await read(request))

    async def register(request: Request) -> Response:
        return standin.create_endpoint_response(
            "client_registration", BodyRequest(await request.json())
        )

    async def revoke(request: Request) -> Response:
        return standin.create_endpoint_response("revocation", await read(request))

    async def device_authorization(request: Request) -> Response:
        return standin.create_endpoint_response("device_authorization", await read(request))

    async def device(request: Request) -> Response:
        """Take what a person decides on the page for devices."""
        told = request.query_params
        if not any(one["user_code"] == told["user_code"] for one in world.devices.values()):
            return JSONResponse({}, 404)
        world.agreed[told["user_code"]] = (told["as"], told["agree"] == "yes")
        return JSONResponse({})

    async def introspect(request: Request) -> Response:
        world.counts["introspection"] += 1
        return standin.create_endpoint_response("introspection", await read(request))

    async def control(request: Request) -> Response:
        match request.path_params["act"]:
            case "rotate":
                world.rotate(keep=request.query_params.get("keep") == "yes")
            case "sign":
                asked = await request.json()
                return JSONResponse({"token": _signed(world, **asked)})
            case "lifetime":
                world.lifetime = int(request.query_params["seconds"])
            case "devices":
                asked = await request.json()
                world.has_devices = asked.pop("are", True)
                world.device_answer = asked
            case "away":
                world.away = request.query_params["is"] == "yes"
            case _:
                pass
        return JSONResponse(dict(world.counts))

    post = ["POST"]
    return Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", metadata),
            Route("/jwks", jwks),
            Route("/authorize", authorize),
            Route("/token", token, methods=post),
            Route("/register", register, methods=post),
            Route("/revoke", revoke, methods=post),
            Route("/device_authorization", device_authorization, methods=post),
            Route("/device", device),
            Route("/introspect", introspect, methods=post),
            Route("/control/{act}", control, methods=post),
        ]
    )


def _signed(world: World, claims: dict[str, Any], header: dict[str, Any], key: str = "own") -> str:
    """Sign anything: with the server's key, with a stranger's, with its public key as a secret."""
    signing = world.keys[0]
    head = {"alg": "RS256", "typ": "at+jwt", "kid": signing.kid, **header}
    head = {name: value for name, value in head.items() if value is not None}
    if key == "other":
        signing = RSAKey.generate_key(2048)
    elif key == "elliptic":
        signing = ECKey.generate_key("P-256")
    kind = head.pop("typ", None)
    registry = JWSRegistry(algorithms=[head["alg"]], strict_check_header=False)
    return jwt.encode(head, claims, signing, registry=registry, default_type=kind)


def main() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        issuer = f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.listen(100)
        print(issuer, flush=True)
        config = uvicorn.Config(application(World(issuer)), log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    sys.exit(main())
