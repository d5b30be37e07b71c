"""Antiphon: MCP servers and clients whose calls take several round trips.

Everything public is named here. The client is loaded when it is first used, because it needs the
official SDK, which a server of modern clients never loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antiphon.app import Server as Server
from antiphon.core.asks import Approval as Approval
from antiphon.core.asks import Completion as Completion
from antiphon.core.asks import Elicit as Elicit
from antiphon.core.asks import ElicitUrl as ElicitUrl
from antiphon.core.asks import ListRoots as ListRoots
from antiphon.core.asks import Opened as Opened
from antiphon.core.asks import Outcome as Outcome
from antiphon.core.asks import Root as Root
from antiphon.core.asks import Sample as Sample
from antiphon.core.content import Audio as Audio
from antiphon.core.content import Contents as Contents
from antiphon.core.content import Embedded as Embedded
from antiphon.core.content import Image as Image
from antiphon.core.content import Link as Link
from antiphon.core.content import Message as Message
from antiphon.core.content import Text as Text
from antiphon.core.content import ToolResult as ToolResult
from antiphon.core.limits import Limits as Limits
from antiphon.core.outcome import InputRequired as InputRequired
from antiphon.core.round import Principal as Principal
from antiphon.errors import AmbiguousKey as AmbiguousKey
from antiphon.errors import AntiphonError as AntiphonError
from antiphon.errors import Cancelled as Cancelled
from antiphon.errors import CannotAsk as CannotAsk
from antiphon.errors import ConfigError as ConfigError
from antiphon.errors import Declined as Declined
from antiphon.errors import Diverged as Diverged
from antiphon.errors import EffectFailed as EffectFailed
from antiphon.errors import EffectUncertain as EffectUncertain
from antiphon.errors import Expired as Expired
from antiphon.errors import InvalidRequest as InvalidRequest
from antiphon.errors import KeyReused as KeyReused
from antiphon.errors import NestedEffect as NestedEffect
from antiphon.errors import NotDone as NotDone
from antiphon.errors import Refused as Refused
from antiphon.errors import StateTooLarge as StateTooLarge
from antiphon.errors import StoreError as StoreError
from antiphon.errors import SwallowedAsk as SwallowedAsk
from antiphon.errors import ToolError as ToolError
from antiphon.errors import TooManyRounds as TooManyRounds
from antiphon.errors import UnsupportedForm as UnsupportedForm
from antiphon.seal.policy import Seal as Seal
from antiphon.server.context import Context as Context
from antiphon.server.forms import Choices as Choices
from antiphon.server.hints import Cache as Cache
from antiphon.server.shapes.steps import Flow as Flow
from antiphon.server.signature import Resolve as Resolve
from antiphon.stores.memory import MemoryStore as MemoryStore

if TYPE_CHECKING:
    from antiphon.client.client import Client as Client

__version__ = "0.1.0"

_CLIENT = frozenset(
    {"Accept", "Cancel", "Client", "Decline", "Deny", "Scripted", "Step", "Terminal"}
)


def __getattr__(name: str) -> Any:
    """Load the client when it is first named."""
    if name in _CLIENT:
        return getattr(import_module("antiphon.client"), name)
    raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
