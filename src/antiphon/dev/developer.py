"""Who calls a server that its author runs with `antiphon dev`, in place of its `auth=`."""

from collections.abc import Mapping
from typing import Any

from antiphon.core.request import Principal
from antiphon.transports.http.access import HttpRefusal
from antiphon.transports.http.principal import IdentifiedCaller, insufficient_scope

DEVELOPER = IdentifiedCaller(Principal("antiphon dev", "developer"), scopes=None)


class DeveloperAccess:
    """Asks for no access token: whoever calls is the author, who has every scope."""

    async def identify(self, scope: Mapping[str, Any]) -> IdentifiedCaller | HttpRefusal:
        """Return the author."""
        return DEVELOPER

    def document(self, scope: Mapping[str, Any]) -> HttpRefusal | None:
        """Nobody issues tokens."""
        return None

    def insufficient(self, needed: frozenset[str]) -> HttpRefusal:
        """Return what a request without enough scopes would be told."""
        return insufficient_scope(needed)
