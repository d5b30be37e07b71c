"""The requests that nearly all clients send, recognised in one typed decode.

A request is *ordinary* when it is a call in compact JSON that has the members of the protocol, each
once, and headers that mirror it. Nothing is refused here. None means that a message must be read in
full by `envelope`, which accepts it after all or says what is wrong with it; so each rule has one
place that explains it, and what is accepted here is accepted there.

Why an ordinary request has no member twice: decoding keeps the last of two members with one name,
so what was kept would be shorter than the message when it is encoded again; no other way of writing
it is shorter than the encoder's. Arguments, answers and `_meta` are kept as bytes by the first
decode, and must encode to these bytes again.
"""

from typing import Annotated, Any, Literal

import msgspec

from antiphon.errors import InvalidRequest
from antiphon.protocol.envelope import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    ID_LENGTH,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    EnvelopeMeta,
    Served,
    read_meta,
    valid_trace,
)
from antiphon.protocol.headers import TRACE, Headers, Mirrors, check_params
from antiphon.protocol.params import TARGET_LENGTH
from antiphon.protocol.params import check as check_params_of
from antiphon.protocol.request import IDEMPOTENCY_KEY, Channel, Principal, Request

KEPT_METAS, KEPT_META_BYTES = 256, 2_048
"""Values of `_meta` that are kept, and the size of the largest. Clients repeat theirs."""

_ABSENT = msgspec.Raw(b"")
_Id = Annotated[str, msgspec.Meta(max_length=ID_LENGTH)] | int


class _CallParams(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    meta: msgspec.Raw = msgspec.field(name="_meta")
    name: str = ""
    uri: str = ""
    arguments: msgspec.Raw = _ABSENT
    answers: msgspec.Raw = msgspec.field(name="inputResponses", default=_ABSENT)
    token: str = msgspec.field(name="requestState", default="")


class _OwnMeta(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A `_meta` with members that no second request repeats."""

    version: msgspec.Raw = msgspec.field(name=PROTOCOL_VERSION)
    capabilities: msgspec.Raw = msgspec.field(name=CLIENT_CAPABILITIES)
    client: msgspec.Raw = msgspec.field(name=CLIENT_INFO, default=_ABSENT)
    log_level: msgspec.Raw = msgspec.field(name=LOG_LEVEL, default=_ABSENT)
    progress_token: str | int | None = msgspec.field(name="progressToken", default=None)
    trace: str = msgspec.field(name="traceparent", default="")
    trace_state: str = msgspec.field(name="tracestate", default="")


class _CallMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    jsonrpc: Literal["2.0"]
    id: _Id
    method: str
    params: _CallParams


_read = msgspec.json.Decoder(_CallMessage).decode
_read_own_meta = msgspec.json.Decoder(_OwnMeta).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

# Compared with `type(...) is`: JSON objects are plain dicts, and Any stays Any to the type checker.
_OBJECT: Any = dict
_NO_HEADERS: Headers = {}


class OrdinaryRequests:
    """Recognises the ordinary requests to one server."""

    def __init__(self, served: Served, depth: int) -> None:
        """Recognise what is served; `depth` is how deeply a message may be nested."""
        self._served = served
        self._methods = served.methods
        self._brackets = depth - 2
        """Arguments, answers and `_meta` are two levels below: few brackets cannot nest deeply."""

        self._metas: dict[bytes, EnvelopeMeta] = {}

    def read(
        self,
        raw: bytes,
        principal: Principal,
        channel: Channel,
        mirrors: Mirrors | None = None,
        headers: Headers = _NO_HEADERS,
    ) -> tuple[bytes, Request] | None:
        """Return the encoded id and the request; None when the message must be read in full.

        Args:
            raw: The message.
            principal: Who sent it.
            channel: How its round reaches the client.
            mirrors: What the headers that mirror the body say; None where there are no headers.
            headers: All headers; none was sent twice.
        """
        try:
            message = _read(raw)
            params, name = message.params, message.method
            key = bytes(params.meta)
            meta = self._metas.get(key) or self._with_own(key)
            method = self._methods.get(name)
            target = params.uri if name == "resources/read" else params.name
            if (
                len(_encode(message)) != len(raw)
                or method is None
                or not (method.may_ask and 0 < len(target) <= TARGET_LENGTH)
                or (mirrors is not None and mirrors != (meta.version, name, target))
            ):
                return None
            given = params.arguments
            arguments = self._arguments(name, bytes(given)) if given is not _ABSENT else None
            answers = params.answers
            trace = meta.trace
            if mirrors is not None:
                if target in self._served.header_params and name == "tools/call":
                    mirrored = self._served.header_params[target]
                    check_params(headers, frozenset(), mirrored, arguments)
                if TRACE in headers and not trace:
                    trace = valid_trace(headers[TRACE])
            return _encode(message.id), Request(
                method=name,
                target=target,
                arguments=arguments,
                answers=self._inner(bytes(answers)) if answers is not _ABSENT else None,
                token=params.token or None,
                capabilities=meta.capabilities,
                principal=principal,
                version=meta.version,
                client=meta.client,
                progress_token=meta.progress_token,
                log_level=meta.log_level,
                trace=trace,
                channel=channel,
                encoded_meta=key,
                id=message.id,
            )
        except (ValueError, RecursionError, InvalidRequest):
            return None

    def _with_own(self, raw: bytes) -> EnvelopeMeta:
        """Read a `_meta` that is not known: look up what other requests of its client repeat."""
        try:
            own = _read_own_meta(raw)
        except msgspec.ValidationError:
            return self._learn(raw)
        token, trace = own.progress_token, own.trace
        # The same length means that no member stands twice, as for the whole message.
        if (token is None and not trace and not own.trace_state) or len(_encode(own)) != len(raw):
            return self._learn(raw)
        own.progress_token, own.trace, own.trace_state = None, "", ""
        repeated = _encode(own)
        meta = self._metas.get(repeated) or self._learn(repeated)
        return EnvelopeMeta(
            meta.version,
            meta.capabilities,
            meta.client,
            token,
            meta.log_level,
            valid_trace(trace),
        )

    def _learn(self, raw: bytes) -> EnvelopeMeta:
        """Read a `_meta` that is not known, and keep it unless it belongs to one request."""
        members = self._inner(raw)
        meta = read_meta(members) if type(members) is _OBJECT else None
        if meta is None or IDEMPOTENCY_KEY in members or meta.version not in self._served.versions:
            raise ValueError("to be read in full")
        if len(raw) <= KEPT_META_BYTES and meta.progress_token is None and not meta.trace:
            if len(self._metas) >= KEPT_METAS:
                self._metas.clear()  # clients choose the values
            self._metas[raw] = meta
        return meta

    def _arguments(self, method: str, raw: bytes) -> Any:
        arguments = self._inner(raw)
        if type(arguments) is not _OBJECT:
            raise ValueError("to be read in full")
        if method != "tools/call":
            return check_params_of(method, None, {"arguments": arguments})
        return arguments

    def _inner(self, raw: bytes) -> Any:
        """Decode what encodes to the same bytes again: it has no member twice.

        Raises:
            ValueError: It does not, or may be nested too deeply.
        """
        value = _decode(raw)
        brackets = raw.count(b"{") + raw.count(b"[") if len(raw) > 2 * self._brackets else 0
        if _encode(value) != raw or brackets > self._brackets:
            raise ValueError("to be read in full")
        return value
