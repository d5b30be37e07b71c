"""What a native handler returns to end its round and ask. A value; it decides nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.core.asks import Ask


class InputRequired(msgspec.Struct, frozen=True):
    """End the round and ask. Without asks it is state-only: the client comes back at once."""

    asks: Mapping[str, Ask] = msgspec.field(default_factory=dict[str, Ask])
    state: Any = None
    """Any JSON value; given back as `ctx.state` in the next round."""
