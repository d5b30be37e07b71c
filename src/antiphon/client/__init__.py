"""The client: it calls a server and answers what the server asks.

Names are loaded when first used: the plain values, the answerers and the terminal need no official
SDK, which only `Client` and `BlockingClient` load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.client.answers import Answers as Answers
    from antiphon.client.answers import Deny as Deny
    from antiphon.client.answers import FirstOf as FirstOf
    from antiphon.client.answers import Scripted as Scripted
    from antiphon.client.asks import Accept as Accept
    from antiphon.client.asks import Cancel as Cancel
    from antiphon.client.asks import Decline as Decline
    from antiphon.client.asks import FormAsk as FormAsk
    from antiphon.client.asks import Roots as Roots
    from antiphon.client.asks import RootsAsk as RootsAsk
    from antiphon.client.asks import SampleAsk as SampleAsk
    from antiphon.client.asks import Sampled as Sampled
    from antiphon.client.asks import Step as Step
    from antiphon.client.asks import UrlAsk as UrlAsk
    from antiphon.client.asks import answer_from_json as answer_from_json
    from antiphon.client.blocking import BlockingClient as BlockingClient
    from antiphon.client.client import Client as Client
    from antiphon.client.eras import Eras as Eras
    from antiphon.client.errors import AbilityMissing as AbilityMissing
    from antiphon.client.errors import AnswerFailed as AnswerFailed
    from antiphon.client.errors import AnswerTimeExceeded as AnswerTimeExceeded
    from antiphon.client.errors import AnswerUnfit as AnswerUnfit
    from antiphon.client.errors import CallTimeout as CallTimeout
    from antiphon.client.errors import CannotConnect as CannotConnect
    from antiphon.client.errors import ClientError as ClientError
    from antiphon.client.errors import ConnectionLost as ConnectionLost
    from antiphon.client.errors import InvalidResponse as InvalidResponse
    from antiphon.client.errors import Pass as Pass
    from antiphon.client.errors import RemoteError as RemoteError
    from antiphon.client.errors import ReplyTimeExceeded as ReplyTimeExceeded
    from antiphon.client.errors import RoundsExceeded as RoundsExceeded
    from antiphon.client.errors import SavedCallInvalid as SavedCallInvalid
    from antiphon.client.errors import StateRefused as StateRefused
    from antiphon.client.errors import TaskCancelled as TaskCancelled
    from antiphon.client.errors import TaskExpired as TaskExpired
    from antiphon.client.errors import TaskGone as TaskGone
    from antiphon.client.errors import TimeExceeded as TimeExceeded
    from antiphon.client.errors import Unanswered as Unanswered
    from antiphon.client.flow_types import PendingCall as PendingCall
    from antiphon.client.flow_types import Timeouts as Timeouts
    from antiphon.client.read_asks import Task as Task
    from antiphon.client.terminal import Terminal as Terminal

_HOMES = {
    "antiphon.client.answers": "Answers Deny FirstOf Scripted",
    "antiphon.client.blocking": "BlockingClient",
    "antiphon.client.client": "Client",
    "antiphon.client.errors": (
        "AbilityMissing AnswerFailed AnswerUnfit CannotConnect ClientError ConnectionLost "
        "InvalidResponse Pass CallTimeout RemoteError ReplyTimeExceeded RoundsExceeded "
        "SavedCallInvalid StateRefused TaskCancelled TaskExpired TaskGone AnswerTimeExceeded "
        "TimeExceeded Unanswered"
    ),
    "antiphon.client.eras": "Eras",
    "antiphon.client.terminal": "Terminal",
    "antiphon.client.asks": (
        "Accept Cancel Decline FormAsk Roots RootsAsk SampleAsk Sampled Step UrlAsk "
        "answer_from_json"
    ),
    "antiphon.client.flow_types": "PendingCall Timeouts",
    "antiphon.client.read_asks": "Task",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'antiphon.client' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(_HOME)
