"""What the engine needs from the outside, as small atomic operations. Protocols and values only.

A store is one object that fulfils `Store`. Each method is atomic across every process that shares
the store; callers never build a decision out of two of them. A store that cannot be reached
raises `StoreError`, one that has no space left `StoreFull`; the round is refused, and nothing runs
unguarded.

Times. Leases and lifetimes (`lease=`, `ttl=`, `window=`) are durations in seconds and run on the
store's own clock, so that the clocks of two servers need not agree. What a method returns as a
point in time (`started`, `expires`) is in seconds since the epoch by that clock.
"""

from antiphon.ports.audit import AuditStore as AuditStore
from antiphon.ports.audit import AuditTrail as AuditTrail
from antiphon.ports.carrier import Carrier as Carrier
from antiphon.ports.carrier import RunTask as RunTask
from antiphon.ports.carrier import Space as Space
from antiphon.ports.carrier import caller_of as caller_of
from antiphon.ports.effects import ROUNDS_PER_START as ROUNDS_PER_START
from antiphon.ports.effects import STANDS as STANDS
from antiphon.ports.effects import Begin as Begin
from antiphon.ports.effects import Busy as Busy
from antiphon.ports.effects import CallRow as CallRow
from antiphon.ports.effects import Effect as Effect
from antiphon.ports.effects import EffectRow as EffectRow
from antiphon.ports.effects import Effects as Effects
from antiphon.ports.effects import EqualCalls as EqualCalls
from antiphon.ports.effects import FailedEffect as FailedEffect
from antiphon.ports.effects import Finished as Finished
from antiphon.ports.effects import InEqualCall as InEqualCall
from antiphon.ports.effects import LeasedRound as LeasedRound
from antiphon.ports.effects import LeasedTaskRun as LeasedTaskRun
from antiphon.ports.effects import LeaseLost as LeaseLost
from antiphon.ports.effects import Mismatch as Mismatch
from antiphon.ports.effects import Restartable as Restartable
from antiphon.ports.effects import Started as Started
from antiphon.ports.effects import TakenOver as TakenOver
from antiphon.ports.effects import Uncertain as Uncertain
from antiphon.ports.environment import Clock as Clock
from antiphon.ports.environment import Entropy as Entropy
from antiphon.ports.environment import Level as Level
from antiphon.ports.environment import Telemetry as Telemetry
from antiphon.ports.inbox import HeldCall as HeldCall
from antiphon.ports.inbox import Inbox as Inbox
from antiphon.ports.inbox import ItemFilter as ItemFilter
from antiphon.ports.inbox import Notification as Notification
from antiphon.ports.incarnations import Incarnation as Incarnation
from antiphon.ports.incarnations import Incarnations as Incarnations
from antiphon.ports.ledger import NOTHING_KNOWN as NOTHING_KNOWN
from antiphon.ports.ledger import About as About
from antiphon.ports.ledger import Claim as Claim
from antiphon.ports.ledger import Claimed as Claimed
from antiphon.ports.ledger import Ledger as Ledger
from antiphon.ports.ledger import Recorded as Recorded
from antiphon.ports.ledger import Running as Running
from antiphon.ports.ledger import Spent as Spent
from antiphon.ports.overview import MinuteCount as MinuteCount
from antiphon.ports.overview import Overview as Overview
from antiphon.ports.overview import Settlement as Settlement
from antiphon.ports.overview import UncertainEffect as UncertainEffect
from antiphon.ports.overview import WaitingTask as WaitingTask
from antiphon.ports.store import Segments as Segments
from antiphon.ports.store import Store as Store
from antiphon.ports.tasks import Due as Due
from antiphon.ports.tasks import LateTasks as LateTasks
from antiphon.ports.tasks import NewTask as NewTask
from antiphon.ports.tasks import TaskChange as TaskChange
from antiphon.ports.tasks import TaskRow as TaskRow
from antiphon.ports.tasks import Tasks as Tasks
