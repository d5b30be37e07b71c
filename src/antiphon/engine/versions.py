"""What becomes of a running call when its handler's declared version has changed (P2).

Owns what is carried over and when that is refused. Knows no token and no round.
"""

import msgspec

from antiphon.core.journal import Journal
from antiphon.engine.call import Call
from antiphon.engine.handler import Handler
from antiphon.errors import Diverged


def carried_over(recorded: str, call: Call, handler: Handler) -> Journal:
    """Give the journal to start again with: effects are kept, the rest is dropped.

    Raises:
        Diverged: The author wants no restart, or an effect may not be met again.
    """
    options, journal = handler.options, call.journal
    effects = [e for e in call.entries if e.kind == "effect"]
    if options.on_version_change == "refuse" or any(not e.retry for e in effects):
        raise version_changed(recorded, handler)
    carried = [msgspec.structs.replace(e, carried=True) for e in effects]
    return Journal(journal.seed, carried, None, journal.asked, journal.pauses)


def version_changed(recorded: str, handler: Handler) -> Diverged:
    """Say what changed, and the cure."""
    return Diverged(
        recorded=f"version {recorded!r} of {handler.identity}",
        now=f"version {handler.options.version!r}",
        cure='Start the call again; or on_version_change="restart", which is refused after an '
        "effect that has no retry=True.",
    )
