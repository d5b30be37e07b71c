"""The tokens of calls: sealing a journal with what it waits for, and getting it back.

Owns what a token claims, how long it lives, and where a journal goes that no token should carry.
"""

from collections.abc import Mapping
from operator import attrgetter

import msgspec

from antiphon.engine.call import Call
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.engine.mistakes import check_secret
from antiphon.engine.questions import Asked, note_asks
from antiphon.errors import StateTooLarge, StoreError, TokenRefused, Unavailable
from antiphon.protocol.asks import seconds
from antiphon.protocol.digest import arguments_digest, short_digest
from antiphon.protocol.journal import Journal
from antiphon.protocol.request import Request
from antiphon.seal.claims import (
    FORMAT,
    Binding,
    Claims,
    Handle,
    Pending,
    check,
    decode_journal,
    encode,
    encode_journal,
    largest,
)
from antiphon.seal.sealer import Ready

_SEGMENT_BYTES = 32 * 1024 * 1024
"""Of the journals of one caller in the store, where each is a *segment*; anonymous callers of one
transport share it."""


class Tokens:
    """Seals and opens the tokens of one server's calls."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._sealer = environment.sealer

    def binding(self, request: Request, handler: Handler) -> Binding:
        """Say what a token of this request must be bound to."""
        return Binding(
            request.method,
            request.target,
            arguments_digest(request.arguments),
            request.principal,
            self._sealer.audience,
            handler.identity,
        )

    def open(self, token: str | None, binding: Binding) -> Ready[tuple[Claims, Call]]:
        """Open a token; returns its claims, and the call as it stood, or what to await for them.

        Raises:
            TokenRefused: It is not one of ours, or not for this request.
        """
        try:
            claims = self._sealer.open(token, binding)
        except TokenRefused as refusal:
            if refusal.reason != "expired":
                raise
            return self._open_late(token, binding)
        if type(claims) is not Claims or claims.journal is None:
            return self._open_waiting(claims, token, binding)
        return claims, self._call(claims, claims.journal)

    def _call(self, claims: Claims, journal: Journal) -> Call:
        return Call.of(
            claims.round,
            claims.deadline,
            journal,
            self._environment.entropy,
            claims.call,
            claims.pending,
            claims.trace,
            claims.incarnation,
        )

    async def _open_waiting(
        self, opening: Ready[Claims], token: str | None, binding: Binding
    ) -> tuple[Claims, Call]:
        """Open a token with a custom codec, or one whose journal is in the store."""
        try:
            claims = opening if isinstance(opening, Claims) else await opening
        except TokenRefused as refusal:
            if refusal.reason != "expired":
                raise
            return await self._open_late(token, binding)
        return await self._with_journal(claims)

    async def _with_journal(self, claims: Claims) -> tuple[Claims, Call]:
        handle = claims.handle
        if handle is None:
            assert claims.journal is not None
            return claims, self._call(claims, claims.journal)
        call = self._call(claims, Journal(handle.seed))
        call.handle = handle
        return claims, call

    async def _open_late(self, token: str | None, binding: Binding) -> tuple[Claims, Call]:
        """Open a token that has expired before the deadline of its call.

        Only the ledger knows whether its round has begun and is not finished, for instance because
        an operator has to settle an effect first. Such a round can still be redeemed.
        """
        claims = await self._sealer.inspect(token)
        check(claims, binding, claims.issued)
        return await self._with_journal(claims)

    def seal(self, execution: Execution, asks: Mapping[str, Asked]) -> Ready[str]:
        """Make the token of the next round, in which the answers to these asks come."""
        environment, sealer, call = self._environment, self._sealer, execution.call
        request, handler, binding = execution.request, execution.handler, execution.binding
        now, ttl = environment.clock(), handler.options.ttl
        if request.audit is not None:
            note_asks(request.audit, asks)
        pending: list[Pending] = []
        for key, asked in asks.items():
            pending.append(asked.pending(key, now, call.pending.get(key), execution.native))
            if asked.question.ask.ttl is not None:
                ttl = _ask_seconds(execution)
        journal = execution.journal()
        expires = min(now + (sealer.ttl if ttl is None else seconds(ttl)), call.deadline)
        trace, telemetry = call.trace, environment.telemetry
        if telemetry is not None:
            request.call = call.id
            telemetry.waits(expires)
        if not trace:
            trace = request.trace if telemetry is None else environment.first_trace(request)
        claims = Claims(
            FORMAT,
            now,
            expires,
            request.method,
            request.target,
            arguments_digest(request.arguments) if binding is None else binding.arguments,
            request.principal,
            sealer.audience,
            call.id,
            call.number + 1,
            call.deadline,
            handler.identity,
            handler.options.version,
            tuple(pending),
            trace,
            journal,
            incarnation=environment.incarnation,
        )
        known = [*journal.entries, *journal.kept] if journal.kept else journal.entries
        if known and True in map(_secret_of, known):
            return self._seal_apart(execution, claims, journal)
        plain, budget = encode(claims), environment.limits.state_bytes
        # The journal is part of the claims: only where they are large is its own size looked at.
        if len(plain) > budget:
            size = len(encode_journal(journal))
            if size > budget:
                return self._seal_apart(execution, claims, journal, size)
        return sealer.seal(plain, "token", b"", journal)

    async def _seal_apart(
        self, execution: Execution, claims: Claims, journal: Journal, size: int = 0
    ) -> str:
        """Seal claims whose journal is kept in the store."""
        handle = await self._keep(execution, journal, size)
        plain = encode(msgspec.structs.replace(claims, journal=None, handle=handle))
        token = self._sealer.seal(plain, "token", b"", journal)
        return token if isinstance(token, str) else await token

    async def _keep(self, execution: Execution, journal: Journal, size: int = 0) -> Handle:
        """Put a journal that no token should carry into the store."""
        environment, call = self._environment, execution.call
        if not environment.spill:
            for entry in journal.entries:
                check_secret(execution, entry.kind, entry.key, secret=entry.secret)
            raise StateTooLarge(size, environment.limits.state_bytes, largest(journal))
        number = call.number + 1
        data = await environment.protect(encode_journal(journal), f"journal {call.id} {number}")
        digest = short_digest(data)
        ttl, left = _ask_seconds(execution), call.deadline - environment.clock()
        kept = await environment.store.keep(
            call.id,
            number,
            digest,
            data,
            owner=execution.request.principal.owner,
            quota=_SEGMENT_BYTES,
            ttl=min(self._sealer.ttl if ttl is None else ttl, left) + _SLACK,
        )
        if not kept:
            raise Unavailable("this caller has too many large calls open")
        return Handle(number, digest, call.seed)


_secret_of = attrgetter("secret")

_SLACK = 600.0
"""Seconds that a stored journal outlives its token. The token is sealed a little later, and expires
by the clock of the server that reads it, which may be behind the clock of the store."""


async def load_journal(environment: Environment, call: Call) -> None:
    """Fetch the journal of a call whose token does not carry it.

    Raises:
        TokenRefused: It is gone, or not the one that the token means.
        Unavailable: The store cannot be reached.
    """
    handle = call.handle
    assert handle is not None
    try:
        data = await environment.store.fetch(call.id, handle.round, handle.digest)
    except StoreError as error:
        raise environment.trouble.refused(error) from error
    if data is None or short_digest(data) != handle.digest:
        raise TokenRefused("segment", "its journal is no longer in the store")
    place = f"journal {call.id} {handle.round}"
    call.take_journal(decode_journal(await environment.reveal(data, place)))


def _ask_seconds(execution: Execution) -> float | None:
    """Return how long the asks of a round can be answered, in seconds; None for the usual time."""
    own, asked = execution.handler.options.ttl, execution.asked.values()
    if not any(one.question.ask.ttl is not None for one in asked):
        return None if own is None else seconds(own)
    # The longest counts; an ask without `ttl=` has the usual time.
    usual = execution.environment.sealer.ttl if own is None else seconds(own)
    spans = (one.question.ask.ttl for one in asked)
    return max(usual if span is None else seconds(span) for span in spans)
