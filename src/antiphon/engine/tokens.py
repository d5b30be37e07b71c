"""The tokens of calls: sealing a journal with what it waits for, and getting it back (S2, S6).

Owns what a token claims, how long it lives, and where a journal goes that no token should carry.
Does not know why a round ended, nor what a handler is run with.
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
from antiphon.seal.claims import Binding, Claims, decode_journal, encode, encode_journal, largest

_SEGMENTS = 1_000
"""Stored journals of one principal."""


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
        """Open a token; give its claims, and the call as it stood.

        Raises:
            TokenRefused: It is not one of ours, or not for this request.
        """
        claims = self._services.sealer.open(token, binding)
        if not isinstance(claims, Claims):
            claims = await claims
        return claims, self._reopened(claims, claims.journal or await self._fetch(claims))

    def _reopened(self, claims: Claims, journal: Journal) -> Call:
        return Call(
            id=claims.call,
            number=claims.round,
            deadline=claims.deadline,
            journal=journal,
            entropy=self._services.entropy,
            pending=claims.pending,
            trace=claims.trace,
        )

    async def seal(self, run: Execution, journal: Journal, pending: tuple[Pending, ...]) -> str:
        """Make the token of the next round."""
        sealer, call, budget = self._services.sealer, run.call, self._services.limits.state_bytes
        handle = None
        if [entry for entry in journal.entries if entry.secret]:
            handle = await self._keep(run, journal)
        claims = sealer.claims(
            run.binding or self.binding(run.request, run.handler),
            call=call.id,
            round=call.number + 1,
            deadline=call.deadline,
            version=run.handler.options.version,
            journal=journal if handle is None else None,
            handle=handle,
            pending=pending,
            trace=call.trace or self._here(run),
            ttl=_ttl(run),
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
        """Put a journal that no token should carry into the store (S6)."""
        services, call = self._services, run.call
        if not services.spill:
            for entry in journal.entries:
                check_secret(run, entry.kind, entry.key, secret=entry.secret)
            raise StateTooLarge(size, services.limits.state_bytes, largest(journal))
        number = call.number + 1
        data = await services.protect(encode_journal(journal), f"journal {call.id} {number}")
        kept = await services.store.keep(
            call.id,
            number,
            data,
            owner=run.request.principal.owner,
            quota=_SEGMENTS,
            expires=call.deadline,
        )
        if not kept:
            raise Unavailable("this caller has too many large calls open")
        return Handle(number, short_digest(data))

    async def _fetch(self, claims: Claims) -> Journal:
        services, handle = self._services, claims.handle
        assert handle is not None
        try:
            data = await services.store.fetch(claims.call, handle.round)
        except StoreError as error:
            raise Unavailable("the server's store cannot be reached; try again") from error
        if data is None or short_digest(data) != handle.digest:
            raise TokenRefused("segment")
        return decode_journal(await services.reveal(data, f"journal {claims.call} {handle.round}"))


def _ttl(run: Execution) -> float | None:
    own = run.handler.options.ttl
    if not any(a.question.ask.ttl is not None for a in run.asked.values()):
        return None if own is None else seconds(own)
    # The most patient ask of the round counts; one that says nothing has the usual patience.
    usual = run.environment.sealer.ttl if own is None else seconds(own)
    spans = (a.question.ask.ttl for a in run.asked.values())
    return max(usual if span is None else seconds(span) for span in spans)
