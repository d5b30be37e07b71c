"""Drive handlers through all their rounds in tests: answers, new servers, crashes, time."""

from antiphon.core.inbox import Person as Person
from antiphon.testing import hosts as hosts
from antiphon.testing.decisions import Undecided as Undecided
from antiphon.testing.doubles import BackChannel as BackChannel
from antiphon.testing.doubles import CountingEntropy as CountingEntropy
from antiphon.testing.doubles import Crash as Crash
from antiphon.testing.doubles import FakeClock as FakeClock
from antiphon.testing.doubles import MortalStore as MortalStore
from antiphon.testing.doubles import Process as Process
from antiphon.testing.doubles import RecordingChannel as RecordingChannel
from antiphon.testing.doubles import Tally as Tally
from antiphon.testing.harness import EVERYTHING as EVERYTHING
from antiphon.testing.harness import KEY as KEY
from antiphon.testing.harness import WITH_TASKS as WITH_TASKS
from antiphon.testing.harness import Rounds as Rounds
from antiphon.testing.harness import RoundTrip as RoundTrip
from antiphon.testing.script import MISSING as MISSING
from antiphon.testing.script import Raw as Raw
from antiphon.testing.script import Unscripted as Unscripted
from antiphon.testing.script import WireAsk as WireAsk
