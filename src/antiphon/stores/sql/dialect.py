"""Transactions as generators, and what differs between two databases. Does no I/O.

A store method is its transaction: a generator that yields statements with their parameters, is sent
the rows, and returns the answer. A driver runs all statements of one transaction together; it may
start a transaction again after a failure that rolled it back, so a generator is made anew for each
attempt. One driver runs them in a thread (SQLite), one awaits them (PostgreSQL), so that both
stores decide alike.

Statements are written with `:name` parameters. The dialects differ in the type for bytes, in the
clock (SQLite is told the time of its machine, PostgreSQL reads its own), in row locks (SQLite has
one writer at a time) and in what one statement may change.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from antiphon.ports import Due, NewTask, caller_of
from antiphon.stores.views import ServerViews

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


class RoundChanged(NamedTuple):
    """After the commit: wake those who wait for this round."""

    call: str
    round: int


class TaskReady(NamedTuple):
    """After the commit: have this task run."""

    due: Due


class TasksMade(NamedTuple):
    """After the commit: have these new tasks run, each when it is ready."""

    tasks: Sequence[NewTask]


Notice: TypeAlias = RoundChanged | TaskReady | TasksMade


class Committed(NamedTuple):
    """What a transaction returned, and what others are to be told of it."""

    result: Any
    notices: list[Notice]


Rows: TypeAlias = Sequence[tuple[Any, ...]]


class Query(NamedTuple):
    """One statement with its parameters."""

    text: str
    parameters: Mapping[str, Any]


READY = """
id, server, tool, owner, epoch, revision,
CASE WHEN lease > {now} THEN NULL ELSE ready - {now} END AS ready_in
"""
"""What a notice is made of. A task that runs is not ready: the end of its run says when it is."""


def due_of(row: Sequence[Any]) -> Due:
    """Return the task of a row of `READY` that is to be run."""
    id, server, tool, owner, epoch, revision, after = row
    return Due(id, server, tool, caller_of(owner), epoch, revision, max(0.0, after))


def notices(rows: Rows) -> Iterator[TaskReady]:
    """Return the notices of rows of `READY`."""
    return (TaskReady(due_of(row)) for row in rows if row[6] is not None)


def due_of_new(task: NewTask) -> Due:
    """Return a task that was just made as it is to be run."""
    after = 0.0 if task.held is None else task.held.ready
    return Due(task.id, task.server, task.tool, caller_of(task.owner), 0, 1, after)


Step: TypeAlias = Query | Notice
_T = TypeVar("_T")
_P = ParamSpec("_P")
Transaction: TypeAlias = Generator[Step, Rows, _T]


class Kind(Enum):
    """What a driver must do to run a transaction."""

    SEVERAL = "several statements write: all of them are committed together"
    ONE = "the first statement decides and is atomic by itself; what follows only reads"
    READ = "nothing is written"


class Runs(ServerViews, ABC):
    """Whatever runs transactions: a store over SQL. A driver binds `:server` in each statement."""

    @abstractmethod
    async def _run(self, begin: Callable[[], Transaction[_T]], kind: Kind) -> _T:
        """Run a transaction and what it wants done after its commit."""


_R = TypeVar("_R", bound=Runs)
_Method: TypeAlias = Callable[Concatenate[_R, _P], Transaction[_T]]
if TYPE_CHECKING:
    from types import CoroutineType

    # What `async def` returns; Python 3.11 cannot subscript it while running.
    _Operation: TypeAlias = Callable[Concatenate[_R, _P], CoroutineType[Any, Any, _T]]
else:
    _Operation = Callable[Concatenate[_R, _P], Coroutine[Any, Any, _T]]


def _runs_as(kind: Kind, method: _Method[_R, _P, _T]) -> _Operation[_R, _P, _T]:
    @wraps(method)
    async def run(self: _R, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._run(lambda: method(self, *args, **kwargs), kind)  # pyright: ignore[reportPrivateUsage]

    return run


def transaction(method: _Method[_R, _P, _T]) -> _Operation[_R, _P, _T]:
    """Make a store method of a generator whose statements are committed together."""
    return _runs_as(Kind.SEVERAL, method)


def single_statement(method: _Method[_R, _P, _T]) -> _Operation[_R, _P, _T]:
    """Make a store method of a generator whose first statement decides; what follows reads."""
    return _runs_as(Kind.ONE, method)


def reading(method: _Method[_R, _P, _T]) -> _Operation[_R, _P, _T]:
    """Make a store method of a generator that writes nothing."""
    return _runs_as(Kind.READ, method)


class Dialect(NamedTuple):
    """What differs between two databases."""

    blob: str
    now: str
    """The time at this instant, also after a wait for somebody else's lock."""

    moment: str
    """The time when the statement came: one value, by which an index can be searched."""

    greatest: str
    least: str
    lock: str
    skip_locked: str
    parameter: str
    """How a parameter is written; `{}` stands for its name."""

    listed: str
    """Reads the texts of the JSON array `:listed`."""

    owners: str
    """Reads the texts of the JSON array `:owners`."""

    served: str
    """Reads the tools and versions of the JSON array `:served`."""

    pairs: str
    """Reads the names and numbers of the JSON array `:pairs`."""

    narrow: str
    """Said of a table whose few rows are updated all the time: there is space beside each."""

    changes_many: bool
    """Whether one statement may change several tables, saving round trips."""

    lock_owner: str
    """A statement that makes others who count the same owner's segments wait; may be empty."""

    def write(self, statement: str) -> str:
        """Return the statement in this dialect."""
        return _PARAMETER.sub(
            lambda found: self.parameter.format(found[1]), statement.format(**self._asdict())
        )


class OfEveryServer(str):
    """A statement that removes what has expired, whichever server it belonged to.

    Nothing else reads or changes rows without naming a server.
    """

    __slots__ = ()


_OF_SERVERS = r"antiphon_(?!incarnations\b)\w+"
"""Every table but the one that is about the database itself."""

_TABLE = re.compile(rf"\b(?:FROM|JOIN|UPDATE)\s+{_OF_SERVERS}")
_INSERT = re.compile(rf"\bINSERT INTO {_OF_SERVERS}\s*\(\s*([^)]*)\)")
_INNERMOST = re.compile(r"\(([^()]*)\)")
_SERVER = re.compile(r"\bserver\s*=\s*(?::server|\w+\.server)\b")


def names_its_server(statement: str) -> bool:
    """Tell whether each part of a statement that reads or changes a table names its server."""
    inserts = [[name.strip() for name in found.split(",")] for found in _INSERT.findall(statement)]
    if not all("server" in columns for columns in inserts):
        return False
    parts, rest = list[str](), statement
    while (shorter := _INNERMOST.sub(lambda found: parts.append(found[1]) or " ", rest)) != rest:
        rest = shorter
    return all(
        len(_SERVER.findall(part)) >= len(_TABLE.findall(part))
        for part in _branches([*parts, rest])
    )


def _branches(parts: Sequence[str]) -> Iterator[str]:
    """Return the parts of a statement, each branch of a union by itself."""
    return (branch for part in parts for branch in part.split("UNION ALL"))


class Written(dict[str, str]):
    """Statements in one dialect, each written when it is first used."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self.dialect = dialect

    def __missing__(self, statement: str) -> str:
        if not (isinstance(statement, OfEveryServer) or names_its_server(statement)):
            raise AssertionError(f"a statement does not name its server: {statement}")
        text = self[statement] = self.dialect.write(statement)
        return text


SQLITE = Dialect(
    blob="BLOB",
    now=":now",
    moment=":now",
    greatest="max",
    least="min",
    lock="",
    skip_locked="",
    parameter=":{}",
    listed="SELECT value FROM json_each(:listed)",
    owners="SELECT value FROM json_each(:owners)",
    served="SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') "
    "FROM json_each(:served)",
    pairs="SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:pairs)",
    narrow="",
    changes_many=False,
    lock_owner="",
)

POSTGRES = Dialect(
    blob="BYTEA",
    now="CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    moment="CAST(extract(epoch FROM statement_timestamp()) AS double precision)",
    greatest="greatest",
    least="least",
    lock="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    parameter="%({})s",
    listed="SELECT jsonb_array_elements_text(CAST(:listed AS jsonb))",
    owners="SELECT jsonb_array_elements_text(CAST(:owners AS jsonb))",
    served="SELECT one ->> 0, one ->> 1 FROM jsonb_array_elements(CAST(:served AS jsonb)) AS one",
    pairs="SELECT pair ->> 0, CAST(pair ->> 1 AS bigint) "
    "FROM jsonb_array_elements(CAST(:pairs AS jsonb)) AS pair",
    narrow=" WITH (fillfactor = 20)",
    changes_many=True,
    # A statement of its own: what is counted must be read after the lock was taken.
    lock_owner="SELECT pg_advisory_xact_lock(1634628720, hashtext(CAST(:owner AS text)))",
)
