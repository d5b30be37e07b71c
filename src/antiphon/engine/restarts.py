"""Calls that a client begins a second time: taking over the one it left, or warning the author.

With `restarts="adopt"` a first request goes on with the unfinished call of the same caller and
arguments (`take_over`). With an idempotency key the client itself names the call (`named_call`).
Without either, `RepeatWatch` logs that effects may happen again. Not to be confused with
`call.py:restart`, which begins a call anew because the version of its handler has changed.

A call that is started over goes on under its own id and seed, with its memos and times and without
answers, so the ledger finds its effects under the names and digests they have. Only its rounds get
new numbers: tokens of the rounds before are refused.
"""

import logging

import msgspec

from antiphon.engine.call import Call
from antiphon.engine.environment import Environment
from antiphon.engine.handler import Handler, call_here
from antiphon.errors import CallerError, ConfigError, InvalidRequest, Unavailable
from antiphon.ports import ROUNDS_PER_START, About, Clock, Restartable, TakenOver
from antiphon.protocol.digest import arguments_digest
from antiphon.protocol.journal import Entry, Journal
from antiphon.protocol.request import Request
from antiphon.seal.claims import decode_journal, encode_journal

log: logging.Logger = logging.getLogger("antiphon")

_WATCHED = 1024
"""Calls of one process that wait after effects and are watched for being started over."""

_WARN_EVERY = 600.0
"""Seconds between two warnings about one tool."""


def restart_names(environment: Environment, handler: Handler, request: Request) -> list[str]:
    """Name what one caller calls, by each key; none when the author wants no taking over.

    Raises:
        ConfigError: Callers cannot be told apart.
    """
    principal, key = request.principal, handler.options.restart_key
    own = None if key is None else call_here(key, request.arguments or {})
    if key is None and principal.anonymous and principal.transport == "http":
        raise ConfigError(
            f'{handler.kind} {handler.name!r} has restarts="adopt", but callers over HTTP are not '
            "authenticated: a call could be taken over by somebody else. Authenticate callers, or "
            "give restart_key=, a function that names the caller by the arguments."
        )
    if key is not None and not own:
        return []
    parts = (
        b"restart",
        principal.owner.encode(),
        str(own or "").encode(),
        handler.identity.encode(),
        arguments_digest(request.arguments),
    )
    return [name.hex() for name in environment.sealer.names(*parts)]


async def restartable(
    environment: Environment, handler: Handler, request: Request, call: Call, memos: list[Entry]
) -> Restartable | None:
    """Return what an effect of a call keeps so that the call can be taken over."""
    names = restart_names(environment, handler, request)
    if not names:
        return None
    name = names[0]
    known = encode_journal(Journal(call.seed, kept=memos))
    return Restartable(name, await environment.protect(known, _place(name)), call.generation)


async def take_over(
    environment: Environment, handler: Handler, request: Request, call: Call
) -> Call | None:
    """Take over what this caller has left unfinished, in place of a call that just begins.

    Raises:
        ConfigError: Callers cannot be told apart.
        StoreError: The store cannot be reached.
    """
    about = About(handler.name, request.principal.owner)
    ttl = call.deadline - environment.clock()
    for name in restart_names(environment, handler, request):
        taken = await environment.store.take_over(name, ttl=ttl, about=about)
        if taken is not None:
            log.info("call %s of %s was started over by its caller", taken.call, handler.identity)
            known = await environment.reveal(taken.seed, _place(name))
            return _started_over(environment, call, taken, decode_journal(known))
    return None


def _started_over(environment: Environment, call: Call, taken: TakenOver, known: Journal) -> Call:
    number = taken.generation * ROUNDS_PER_START + 1
    again = Call.of(number, call.deadline, known, environment.entropy, id=taken.call)
    again.unasked = call.unasked
    return again


def _place(name: str) -> str:
    return f"seed {name}"


# --- calls that their client has named ----------------------------------------------------------

_SECRET_KEY = 16
"""Characters of a key that tells callers apart who are not authenticated."""


def named_call(environment: Environment, handler: Handler, request: Request, call: Call) -> Call:
    """Return the call that a client means by its idempotency key, in place of one that begins.

    Its id and its seed follow from the caller and the key, so that a second run finds the effects
    of the first.

    Raises:
        InvalidRequest: The caller is not authenticated, and the key could be guessed.
    """
    principal, key = request.principal, request.idempotency_key or ""
    if principal.anonymous and principal.transport == "http" and len(key) < _SECRET_KEY:
        raise InvalidRequest(
            "an idempotency key of a caller who is not authenticated must be hard to guess: use "
            f"at least {_SECRET_KEY} random characters"
        )
    parts = (
        principal.owner.encode(),
        handler.identity.encode(),
        key.encode("utf-8", "surrogatepass"),
    )
    names = environment.sealer.names
    id, seed = names(b"named call", *parts)[0], names(b"named seed", *parts)[0]
    return Call.of(1, call.deadline, Journal(seed), environment.entropy, id=id[:16].hex())


def begun_before(request: Request) -> CallerError:
    """Return what a caller is told whose first round was run before, and not for this request."""
    if request.idempotency_key is None:
        return Unavailable("the same call was begun again at the same time, and that one goes on")
    return InvalidRequest(
        "this idempotency key was used before: with other arguments, or for a call that has gone "
        "on since; resume that call, or choose another key"
    )


# --- without the option ------------------------------------------------------------------------


class _WatchedCall(msgspec.Struct, frozen=True, gc=False):
    caller: tuple[str, str]
    arguments: bytes
    deadline: float


class RepeatWatch:
    """Warns when a call that waits after effects is begun again with the same arguments.

    Looks only at calls of this process that have effects; for all others it costs nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.calls: dict[str, _WatchedCall] = {}
        """By call, the oldest first."""

        self._callers: dict[tuple[str, str], dict[bytes, str]] = {}
        self._warned: dict[str, float] = {}

    def wait(self, handler: Handler, request: Request, call: Call) -> None:
        """Note that a call with effects waits for an answer."""
        caller = (request.principal.owner, handler.identity)
        arguments = arguments_digest(request.arguments)
        self.calls[call.id] = _WatchedCall(caller, arguments, call.deadline)
        self._callers.setdefault(caller, {})[arguments] = call.id
        if len(self.calls) > _WATCHED:
            self.end(next(iter(self.calls)))

    def end(self, call: str) -> None:
        """Forget a call that has ended."""
        waiting = self.calls.pop(call, None)
        if waiting is None:
            return
        mine = self._callers.get(waiting.caller, {})
        if mine.get(waiting.arguments) == call:  # else a later call with the same arguments counts
            del mine[waiting.arguments]
            if not mine:
                del self._callers[waiting.caller]

    def begin(self, handler: Handler, request: Request) -> None:
        """Warn if the caller has left the same call unfinished, once in a while for each tool."""
        mine = self._callers.get((request.principal.owner, handler.identity))
        left = None if mine is None else mine.get(arguments_digest(request.arguments))
        if left is None:
            return
        now = self._clock()
        if now >= self.calls[left].deadline:
            self.end(left)
        elif now >= self._warned.get(handler.identity, 0.0):
            self._warned[handler.identity] = now + _WARN_EVERY
            log.warning(
                "%s %r was begun again with the same arguments by the same caller while call %s "
                "waits for an answer: if the client starts over, the effects of that call happen "
                'again. restarts="adopt" takes them over.',
                handler.kind,
                handler.name,
                left,
            )
