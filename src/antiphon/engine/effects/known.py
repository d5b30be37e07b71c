"""How an effect ended."""

import msgspec

from antiphon.core.journal import EntryOutcome


class Known(msgspec.Struct, frozen=True):
    """How an effect ended, as the journal keeps it."""

    outcome: EntryOutcome
    payload: bytes
    reused: bool = False
