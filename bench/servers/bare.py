"""The yardstick: the same wire work by hand, in a bare ASGI application without any framework.

Checks what the protocol says must be checked (Host, media types, mirrored headers, version,
capability, form content, and a sealed state bound to tool, arguments and time), and nothing that
can be left out: no registry, no schemas, no ledger, no principal, no errors worth reading.
"""

import base64
import hashlib
import os
import time
from typing import Annotated, Any, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bench.servers.listening import listen
from bench.story import QUESTIONS, SCHEMA, VERSION, question


class Capabilities(msgspec.Struct):
    elicitation: dict[str, Any] | None = None


class Meta(msgspec.Struct):
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion")
    capabilities: Capabilities = msgspec.field(name="io.modelcontextprotocol/clientCapabilities")


class Arguments(msgspec.Struct):
    name: str


class Placement(msgspec.Struct):
    region: Literal["eu-west", "us-east"]
    size: Annotated[int, msgspec.Meta(ge=1, le=10)]


class Answer(msgspec.Struct):
    action: Literal["accept", "decline", "cancel"]
    content: Placement | None = None


class Params(msgspec.Struct):
    name: str
    meta: Meta = msgspec.field(name="_meta")
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    answers: dict[str, Answer] | None = msgspec.field(name="inputResponses", default=None)
    state: str | None = msgspec.field(name="requestState", default=None)


class Message(msgspec.Struct):
    jsonrpc: Literal["2.0"]
    id: str | int
    method: Literal["tools/call"]
    params: Params


class State(msgspec.Struct, array_like=True):
    tool: str
    arguments: bytes
    expires: float
    answers: list[Placement]


_read = msgspec.json.Decoder(Message).decode
_arguments = msgspec.json.Decoder(Arguments).decode
_state = msgspec.msgpack.Decoder(State).decode
_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_box = AESGCM(os.urandom(32))
_schema = _json(SCHEMA)
_META = b',"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"0"}}}'
_NEEDED = {"plain": 0, "mrtr": 1, "wizard": QUESTIONS}


class Refused(Exception):
    pass


def answer(headers: dict[bytes, bytes], body: bytes) -> bytes:
    if not headers[b"host"].startswith((b"127.0.0.1:", b"localhost:")):
        raise Refused("host")
    accept = headers.get(b"accept", b"")
    if headers[b"content-type"] != b"application/json" or b"application/json" not in accept:
        raise Refused("media")
    message = _read(body)
    params = message.params
    if (
        headers[b"mcp-protocol-version"] != VERSION.encode()
        or headers[b"mcp-method"] != message.method.encode()
        or headers[b"mcp-name"] != params.name.encode()
        or params.meta.version != VERSION
    ):
        raise Refused("mirror")
    result = call(params)
    return b'{"jsonrpc":"2.0","id":' + _json(message.id) + b',"result":' + result + b"}"


def call(params: Params) -> bytes:
    tool = params.name
    name = _arguments(params.arguments).name
    needed = _NEEDED[tool]
    answers = answered(params) if needed else []
    if len(answers) < needed:
        elicitation = params.meta.capabilities.elicitation
        if elicitation is None or (elicitation and "form" not in elicitation):
            raise Refused("capability")
        return asked(params, answers, name)
    if tool == "plain":
        text = f"hello {name}"
    elif tool == "mrtr":
        text = f"{name} in {answers[0].region}, size {answers[0].size}"
    else:
        text = f"{name} in {QUESTIONS} parts, size {sum(a.size for a in answers)}"
    return (
        b'{"resultType":"complete","content":[{"type":"text","text":'
        + _json(text)
        + b'}],"isError":false'
        + _META
    )


def answered(params: Params) -> list[Placement]:
    if params.state is None:
        return []
    try:
        sealed = base64.urlsafe_b64decode(params.state + "=" * (-len(params.state) % 4))
        state = _state(_box.decrypt(sealed[:12], sealed[12:], b"state"))
    except (InvalidTag, ValueError):
        raise Refused("state") from None
    digest = hashlib.sha256(params.arguments).digest()
    if state.tool != params.name or state.arguments != digest or time.time() > state.expires:
        raise Refused("state")
    given = (params.answers or {}).get(f"part-{len(state.answers) + 1}")
    if given is None or given.action != "accept" or given.content is None:
        raise Refused("answer")
    return [*state.answers, given.content]


def asked(params: Params, answers: list[Placement], name: str) -> bytes:
    part = len(answers) + 1
    text = question(part) if params.name == "wizard" else f"Where should {name} run?"
    digest = hashlib.sha256(params.arguments).digest()
    nonce = os.urandom(12)
    plain = _pack(State(params.name, digest, time.time() + 600, answers))
    sealed = nonce + _box.encrypt(nonce, plain, b"state")
    return (
        b'{"resultType":"input_required","inputRequests":{"part-%d":' % part
        + b'{"method":"elicitation/create","params":{"mode":"form","message":'
        + _json(text)
        + b',"requestedSchema":'
        + _schema
        + b'}}},"requestState":"'
        + base64.urlsafe_b64encode(sealed).rstrip(b"=")
        + b'"'
        + _META
    )


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] != "/mcp" or scope["method"] != "POST":
        raise Refused("path")
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    status = 200
    try:
        out = answer(dict(scope["headers"]), body)
    except (Refused, KeyError, msgspec.MsgspecError):
        status, out = 400, b'{"jsonrpc":"2.0","error":{"code":-32602,"message":"refused"}}'
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(out)),
            ],
        }
    )
    await send({"type": "http.response.body", "body": out})


if __name__ == "__main__":
    listen(app, lifespan="off")
