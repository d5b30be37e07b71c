"""The tokens of calls: sealing a journal with what it waits for, and getting it back.

Owns what a token claims, how long it lives, and where a journal goes that no token should carry.
"""

import msgspec

from antiphon.core.asks import seconds
from antiphon.core.digest import arguments_digest, short_digest
from antiphon.core.journal import Handle, Journal, Pending
from antiphon.core.request import Request
from antiphon.engine.asking import check_secret
from antiphon.engine.call import Call
from antiphon.engine.environment import Environment
from antiphon.engine.execution import Execution
from antiphon.engine.handler import Handler
from antiphon.errors import StateTooLarge, StoreError, TokenRefused, Unavailable
from antiphon.seal.claims import (
    FORMAT,
    Binding,
    Claims,
    check,
    decode_journal,
    encode,
    encode_journal,
    largest,
)

_SEGMENT_BYTES = 32 * 1024 * 1024
"""Stored journals of one caller; anonymous callers of one transport share it."""


class Tokens:
    """Seals and opens the tokens of one server's calls."""

    def __init__(self, services: Environment) -> None:
        self._services = services

    def binding(self, round: Request, handler: Handler) -> Binding:
        """Say what a token of this request must be bound to."""
        return Binding(
            method=round.method,
            target=round.target,
            arguments=arguments_digest(round.arguments),
            principal=round.principal,
            audience=self._services.sealer.audience,
            handler=handler.identity,
        )

    async def open(self, token: str | None, binding: Binding) -> tuple[Claims, Call]:
        """Open a token; returns its claims, and the call as it stood.

        Raises:
            TokenRefused: It is not one of ours, or not for this request.
        """
        try:
            claims = self._services.sealer.open(token, binding)
            if not isinstance(claims, Claims):
                claims = await claims
        except TokenRefused as refusal:
            if refusal.reason != "expired":
                raise
            claims = await self._late(token, binding)
        journal = claims.journal
        if journal is None:
            assert claims.handle is not None
            journal = Journal(claims.handle.seed)
        call = Call(
            id=claims.call,
            number=claims.round,
            deadline=claims.deadline,
            journal=journal,
            entropy=self._services.entropy,
            pending=claims.pending,
            trace=claims.trace,
            handle=claims.handle,
        )
        if call.handle is not None and not call.handle.seed:
            # Written by an earlier release: the answers cannot be compared without the journal.
            await load_journal(self._services, call)
        return claims, call

    async def _late(self, token: str | None, binding: Binding) -> Claims:
        """Open a token that has expired before the deadline of its call.

        Only the ledger knows whether its round has begun and is not finished, for instance because
        an operator has to settle an effect first. Such a round can still be redeemed.
        """
        claims = await self._services.sealer.inspect(token)
        check(claims, binding, claims.issued)
        return claims

    async def seal(self, run: Execution, journal: Journal, pending: tuple[Pending, ...]) -> str:
        """Make the token of the next round."""
        sealer, call, budget = self._services.sealer, run.call, self._services.limits.state_bytes
        handle = None
        if [entry for entry in journal.entries if entry.secret]:
            handle = await self._keep(run, journal)
        request, handler, now = run.request, run.handler, self._services.clock()
        telemetry, binding = self._services.telemetry, run.binding
        digest = arguments_digest(request.arguments) if binding is None else binding.arguments
        ttl = handler.options.ttl
        if ttl is not None or [a for a in run.asked.values() if a.question.ask.ttl is not None]:
            ttl = _ttl(run)
        claims = Claims(
            format=FORMAT,
            issued=now,
            expires=min(now + (sealer.ttl if ttl is None else seconds(ttl)), call.deadline),
            method=request.method,
            target=request.target,
            arguments=digest,
            principal=request.principal,
            audience=sealer.audience,
            call=call.identity()[0],
            round=call.number + 1,
            deadline=call.deadline,
            handler=handler.identity,
            version=handler.options.version,
            pending=pending,
            trace=call.trace or (request.trace if telemetry is None else self._here(run)),
            journal=journal if handle is None else None,
            handle=handle,
        )
        plain = encode(claims)
        # The journal is part of the claims: only where they are large is its own size looked at.
        if len(plain) > budget and handle is None:
            size = len(encode_journal(journal))
            if size > budget:
                handle = await self._keep(run, journal, size)
                claims = msgspec.structs.replace(claims, journal=None, handle=handle)
                plain = encode(claims)
        token = sealer.seal(plain, journal=claims.journal)
        return token if isinstance(token, str) else await token

    def _here(self, run: Execution) -> str:
        telemetry = self._services.telemetry
        return run.request.trace if telemetry is None else telemetry.here() or run.request.trace

    async def _keep(self, run: Execution, journal: Journal, size: int = 0) -> Handle:
        """Put a journal that no token should carry into the store."""
        services, call = self._services, run.call
        if not services.spill:
            for entry in journal.entries:
                check_secret(run, entry.kind, entry.key, secret=entry.secret)
            raise StateTooLarge(size, services.limits.state_bytes, largest(journal))
        number = call.number + 1
        data = await services.protect(encode_journal(journal), f"journal {call.id} {number}")
        digest = short_digest(data)
        now = services.clock()
        ttl = _ttl(run)
        kept = await services.store.keep(
            call.id,
            number,
            digest,
            data,
            owner=run.request.principal.owner,
            quota=_SEGMENT_BYTES,
            ttl=min(services.sealer.ttl if ttl is None else ttl, call.deadline - now) + _SLACK,
        )
        if not kept:
            raise Unavailable("this caller has too many large calls open")
        return Handle(number, digest, call.seed)


_SLACK = 600.0
"""Seconds that a stored journal outlives its token. The token is sealed a little later, and expires
by the clock of the server that reads it, which may be behind the clock of the store."""


async def load_journal(services: Environment, call: Call) -> None:
    """Fetch the journal of a call whose token does not carry it.

    Raises:
        TokenRefused: It is gone, or not the one that the token means.
        Unavailable: The store cannot be reached.
    """
    handle = call.handle
    assert handle is not None
    try:
        data = await services.store.fetch(call.id, handle.round, handle.digest)
    except StoreError as error:
        raise services.trouble.refused(error) from error
    if data is None or short_digest(data) != handle.digest:
        raise TokenRefused("segment", "its journal is no longer in the store")
    place = f"journal {call.id} {handle.round}"
    call.take_journal(decode_journal(await services.reveal(data, place)))


def _ttl(run: Execution) -> float | None:
    own = run.handler.options.ttl
    if not any(a.question.ask.ttl is not None for a in run.asked.values()):
        return None if own is None else seconds(own)
    # The most patient ask of the round counts; one that says nothing has the usual patience.
    usual = run.environment.sealer.ttl if own is None else seconds(own)
    spans = (a.question.ask.ttl for a in run.asked.values())
    return max(usual if span is None else seconds(span) for span in spans)
