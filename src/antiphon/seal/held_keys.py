"""The keys of this process: taken out of its environment, where every child would find them.

A process has one environment, so there is one place for what was taken out of it.
"""

from collections.abc import Mapping, MutableMapping
from typing import Final

from antiphon.seal.keyring import VARIABLE


class HeldKeys:
    """The text of `ANTIPHON_KEYS` after it has left the environment."""

    def __init__(self) -> None:
        """Hold no keys."""
        self._text = ""

    def hold(self, text: str) -> None:
        """Hold keys that came otherwise than by the environment."""
        self._text = text

    def take(self, environ: MutableMapping[str, str]) -> Mapping[str, str]:
        """Take the keys out of an environment; return it as it was, with the keys held."""
        found = environ.pop(VARIABLE, None)
        if found is not None:
            self._text = found
        return {**environ, VARIABLE: self._text}


HELD: Final = HeldKeys()
