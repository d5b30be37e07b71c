"""Antiphon: MCP servers and clients whose calls take several round trips.

Everything public is named here. The client is loaded when it is first used, because it needs the
official SDK, which a server of modern clients never loads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antiphon.audit import Audit as Audit
from antiphon.engine.context import Context as Context
from antiphon.engine.handler import CachePolicy as CachePolicy
from antiphon.engine.native import CallAnswers as CallAnswers
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
from antiphon.errors import HandlerTimeout as HandlerTimeout
from antiphon.errors import InvalidRequest as InvalidRequest
from antiphon.errors import KeyReused as KeyReused
from antiphon.errors import MemoFailed as MemoFailed
from antiphon.errors import NestedEffect as NestedEffect
from antiphon.errors import NotDone as NotDone
from antiphon.errors import OutcomeUnknown as OutcomeUnknown
from antiphon.errors import Refused as Refused
from antiphon.errors import StartError as StartError
from antiphon.errors import StateTooLarge as StateTooLarge
from antiphon.errors import StoreError as StoreError
from antiphon.errors import StoreFull as StoreFull
from antiphon.errors import SwallowedAsk as SwallowedAsk
from antiphon.errors import ToolError as ToolError
from antiphon.errors import TooManyCalls as TooManyCalls
from antiphon.errors import TooManyRounds as TooManyRounds
from antiphon.errors import UnsupportedForm as UnsupportedForm
from antiphon.forms.choices import Choices as Choices
from antiphon.handlers.middleware import CallInfo as CallInfo
from antiphon.handlers.middleware import Middleware as Middleware
from antiphon.handlers.middleware import Next as Next
from antiphon.handlers.signature import Depends as Depends
from antiphon.handlers.signature import Resolve as Resolve
from antiphon.handlers.steps import Flow as Flow
from antiphon.ports.call_end import CallEnd as CallEnd
from antiphon.protocol.asks import Approval as Approval
from antiphon.protocol.asks import Approve as Approve
from antiphon.protocol.asks import Completion as Completion
from antiphon.protocol.asks import Elicit as Elicit
from antiphon.protocol.asks import ElicitUrl as ElicitUrl
from antiphon.protocol.asks import InputRequired as InputRequired
from antiphon.protocol.asks import ListRoots as ListRoots
from antiphon.protocol.asks import Opened as Opened
from antiphon.protocol.asks import Outcome as Outcome
from antiphon.protocol.asks import RawAsk as RawAsk
from antiphon.protocol.asks import Root as Root
from antiphon.protocol.asks import Sample as Sample
from antiphon.protocol.content import Audio as Audio
from antiphon.protocol.content import Contents as Contents
from antiphon.protocol.content import Embedded as Embedded
from antiphon.protocol.content import Image as Image
from antiphon.protocol.content import Link as Link
from antiphon.protocol.content import Message as Message
from antiphon.protocol.content import Text as Text
from antiphon.protocol.content import ToolResult as ToolResult
from antiphon.protocol.inbox import Approver as Approver
from antiphon.protocol.limits import Limits as Limits
from antiphon.protocol.request import Channel as Channel
from antiphon.protocol.request import Principal as Principal
from antiphon.protocol.request import Request as Request
from antiphon.seal.policy import Seal as Seal
from antiphon.server import Server as Server
from antiphon.stores.memory import MemoryStore as MemoryStore

if TYPE_CHECKING:
    from antiphon.auth import OAuth as OAuth
    from antiphon.client import AbilityMissing as AbilityMissing
    from antiphon.client import Accept as Accept
    from antiphon.client import AnswerFailed as AnswerFailed
    from antiphon.client import Answers as Answers
    from antiphon.client import AnswerTimeExceeded as AnswerTimeExceeded
    from antiphon.client import AnswerUnfit as AnswerUnfit
    from antiphon.client import BlockingClient as BlockingClient
    from antiphon.client import CallTimeout as CallTimeout
    from antiphon.client import Cancel as Cancel
    from antiphon.client import CannotConnect as CannotConnect
    from antiphon.client import Client as Client
    from antiphon.client import ClientError as ClientError
    from antiphon.client import ConnectionLost as ConnectionLost
    from antiphon.client import Decline as Decline
    from antiphon.client import Deny as Deny
    from antiphon.client import Eras as Eras
    from antiphon.client import FirstOf as FirstOf
    from antiphon.client import FormAsk as FormAsk
    from antiphon.client import InvalidResponse as InvalidResponse
    from antiphon.client import Pass as Pass
    from antiphon.client import PendingCall as PendingCall
    from antiphon.client import RemoteError as RemoteError
    from antiphon.client import ReplyTimeExceeded as ReplyTimeExceeded
    from antiphon.client import Roots as Roots
    from antiphon.client import RootsAsk as RootsAsk
    from antiphon.client import RoundsExceeded as RoundsExceeded
    from antiphon.client import SampleAsk as SampleAsk
    from antiphon.client import Sampled as Sampled
    from antiphon.client import SavedCallInvalid as SavedCallInvalid
    from antiphon.client import Scripted as Scripted
    from antiphon.client import StateRefused as StateRefused
    from antiphon.client import Step as Step
    from antiphon.client import Task as Task
    from antiphon.client import TaskCancelled as TaskCancelled
    from antiphon.client import TaskExpired as TaskExpired
    from antiphon.client import TaskGone as TaskGone
    from antiphon.client import Terminal as Terminal
    from antiphon.client import TimeExceeded as TimeExceeded
    from antiphon.client import Timeouts as Timeouts
    from antiphon.client import Unanswered as Unanswered
    from antiphon.client import UrlAsk as UrlAsk
    from antiphon.client import answer_from_json as answer_from_json
    from antiphon.console import Console as Console

__version__ = "0.1.0"

__all__ = [
    "AbilityMissing",
    "Accept",
    "AmbiguousKey",
    "AnswerFailed",
    "AnswerTimeExceeded",
    "AnswerUnfit",
    "Answers",
    "AntiphonError",
    "Approval",
    "Approve",
    "Approver",
    "Audio",
    "Audit",
    "BlockingClient",
    "CachePolicy",
    "CallAnswers",
    "CallEnd",
    "CallInfo",
    "CallTimeout",
    "Cancel",
    "Cancelled",
    "CannotAsk",
    "CannotConnect",
    "Channel",
    "Choices",
    "Client",
    "ClientError",
    "Completion",
    "ConfigError",
    "ConnectionLost",
    "Console",
    "Contents",
    "Context",
    "Decline",
    "Declined",
    "Deny",
    "Depends",
    "Diverged",
    "EffectFailed",
    "EffectUncertain",
    "Elicit",
    "ElicitUrl",
    "Embedded",
    "Eras",
    "Expired",
    "FirstOf",
    "Flow",
    "FormAsk",
    "HandlerTimeout",
    "Image",
    "InputRequired",
    "InvalidRequest",
    "InvalidResponse",
    "KeyReused",
    "Limits",
    "Link",
    "ListRoots",
    "MemoFailed",
    "MemoryStore",
    "Message",
    "Middleware",
    "NestedEffect",
    "Next",
    "NotDone",
    "OAuth",
    "Opened",
    "Outcome",
    "OutcomeUnknown",
    "Pass",
    "PendingCall",
    "Principal",
    "RawAsk",
    "Refused",
    "RemoteError",
    "ReplyTimeExceeded",
    "Request",
    "Resolve",
    "Root",
    "Roots",
    "RootsAsk",
    "RoundsExceeded",
    "Sample",
    "SampleAsk",
    "Sampled",
    "SavedCallInvalid",
    "Scripted",
    "Seal",
    "Server",
    "StartError",
    "StateRefused",
    "StateTooLarge",
    "Step",
    "StoreError",
    "StoreFull",
    "SwallowedAsk",
    "Task",
    "TaskCancelled",
    "TaskExpired",
    "TaskGone",
    "Terminal",
    "Text",
    "TimeExceeded",
    "Timeouts",
    "TooManyCalls",
    "TooManyRounds",
    "ToolError",
    "ToolResult",
    "Unanswered",
    "UnsupportedForm",
    "UrlAsk",
    "answer_from_json",
]

_LATE = {"Console": "antiphon.console", "OAuth": "antiphon.auth"}
"""Settings of parts that few servers have."""


def __getattr__(name: str) -> Any:
    """Load a name of the client when it is first used; its own module says which there are."""
    if name in _LATE:
        return vars(import_module(_LATE[name]))[name]
    if not name.startswith("_"):
        client = import_module("antiphon.client")
        if name in dir(client):
            return getattr(client, name)
    raise AttributeError(f"module 'antiphon' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, those of the client too."""
    return sorted({*globals(), *_LATE, *dir(import_module("antiphon.client"))})
