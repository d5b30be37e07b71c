"""`antiphon audit`: export the records of calls, and check their chain."""

import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, NoReturn

import msgspec
import typer

from antiphon import Server
from antiphon.cli.operating.calls import source_of, with_store
from antiphon.cli.output import USAGE, fail
from antiphon.cli.readable_help import ReadableGroup
from antiphon.errors import ConfigError
from antiphon.integrations.audit.lines import read_end
from antiphon.ports import AuditStore, Store
from antiphon.protocol.audit import (
    AuditCheck,
    AuditRecord,
    VerifiedAudit,
    read_record,
    write_record,
)
from antiphon.protocol.chain import ChainHead
from antiphon.protocol.text import safe_line

_AT_ONCE = 1_000

audit: typer.Typer = typer.Typer(
    cls=ReadableGroup,
    no_args_is_help=True,
    help="Export the records of calls, or check that none was touched.",
)
FROM = Annotated[
    str,
    typer.Argument(
        metavar="STORE_OR_SERVER",
        help="URL of the store, with --server; or module:server, or path/to/file.py[:server].",
    ),
]
WHAT = Annotated[
    str,
    typer.Argument(
        metavar="FILE_OR_STORE_OR_SERVER",
        help="What `export` or a server has written; or the URL of a store, with --server; or "
        "module:server, or path/to/file.py[:server].",
    ),
]
NAMED = Annotated[
    str | None,
    typer.Option("--server", metavar="NAME", help="The server's name, for the URL of a store."),
]
KNOWN = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="NUMBER:HASH",
        help="A record that was the last on some earlier day, as `verify` printed it.",
    ),
]


class ExportEnd(msgspec.Struct, frozen=True):
    """The last line of an export: what the store said was the last record."""

    head: ChainHead


@audit.command()
def export(source: FROM, server: NAMED = None) -> None:
    """Write every record of a server to standard output, one JSON object in a line.

    Each holds the hash of the one before it; the last line names the last record, so that `antiphon
    audit verify` also finds what was cut off. Hashes and digests are base64.

    Exit codes: 0 written, 1 the store failed, 2 wrong arguments or settings.

    Examples:

    \b
      antiphon audit export shop.py > audit.jsonl
      antiphon audit export postgresql://db/shop --server shop > audit.jsonl
    """
    where, name = _named(source, server)
    with_store(where, lambda store: _export(_kept(store), name), server)


async def _export(store: AuditStore, server: str) -> None:
    head = await store.audit_head(server)
    async for record in _all(store, server):
        if record.sequence > head.sequence:
            break  # written since; the export ends with the head of its beginning
        sys.stdout.write(write_record(record).decode() + "\n")
    sys.stdout.write(msgspec.json.encode(ExportEnd(head)).decode() + "\n")
    sys.stdout.flush()


@audit.command()
def verify(what: WHAT, server: NAMED = None, head: KNOWN = None) -> None:
    """Check the chain of records: of a store, of an export, or of a file that a server writes.

    Finds a record that was changed, put in, moved or taken out, also at the end: a store and a
    server's file keep the last record apart, and an export names it in its last line. Whoever can
    write both can cut both. Against that keep what this command prints, elsewhere, and give it to a
    later check as --head. Records whose time is over are removed with a checkpoint in the chain; a
    --head from before that cannot be compared, which is said and no success.

    Exit codes: 0 every record holds, 1 the chain breaks, with the number of the record, or --head
    cannot be compared; 2 wrong arguments, or no records.

    Examples:

    \b
      antiphon audit verify audit.jsonl
      antiphon audit verify shop.py
      antiphon audit verify postgresql://db/shop --server shop --head 47:9f...
    """
    known = None if head is None else _head(head)
    if "://" not in what and Path(what).is_file() and not what.endswith(".py"):
        if server is not None:
            fail("--server goes with the URL of a store", USAGE)
        _tell(_verify_file(Path(what), known))
        return
    where, name = _named(what, server)
    _tell(with_store(where, lambda store: _verify_store(_kept(store), name, known), server))


def _tell(found: VerifiedAudit) -> None:
    if found.broken is not None:
        fail(f"the chain breaks at record {found.broken.sequence}: {found.broken}")
    if not found.count:
        fail("no records: nothing was checked", USAGE)
    if not found.compared:
        fail(
            "the record of --head is no longer kept, so that it cannot be compared: give what a "
            "later check has printed"
        )
    end = f"{found.head.sequence}:{found.head.hash.hex()}"
    print(f"{found.count} records hold; the last is {end}")


async def _verify_store(store: AuditStore, server: str, known: ChainHead | None) -> VerifiedAudit:
    while True:
        oldest = await store.audit_records(server, limit=1)
        check = AuditCheck(known)
        async for record in _all(store, server):
            check.take(record)
        found = check.end(await store.audit_head(server))
        moved = found.broken is not None and await _moved(store, server, oldest, found)
        if not moved:
            return found


async def _moved(
    store: AuditStore, server: str, oldest: Sequence[AuditRecord], found: VerifiedAudit
) -> bool:
    """Tell whether records came or were removed by their time while they were read."""
    now = await store.audit_records(server, limit=1)
    if oldest and now and now[0].sequence > oldest[0].sequence:
        return True
    assert found.broken is not None
    return found.broken.reason == "end" and bool(
        await store.audit_records(server, after=found.head.sequence, limit=1)
    )


async def _all(store: AuditStore, server: str) -> AsyncGenerator[AuditRecord]:
    """Yield the records of a server, with those that come while they are read."""
    after = 0
    while records := await store.audit_records(server, after=after, limit=_AT_ONCE):
        for record in records:
            yield record
        after = max(after + 1, records[-1].sequence)


def _verify_file(path: Path, known: ChainHead | None) -> VerifiedAudit:
    """Check a file: an export ends with its head, a server's file has it beside."""
    check, ends = AuditCheck(known), list[ChainHead]()
    try:
        kept = read_end(path)
        length = path.stat().st_size if kept is None else kept[1]
        with path.open("rb") as lines:
            for record in _records(lines, length, ends):
                check.take(record)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}", USAGE)
    if kept is not None:
        ends.append(kept[0].head)
    if not ends and check.broken is None:
        fail(
            f"{path} has no end: neither the last line of an export nor a {path.name}.head beside "
            "it says which record is the last, so that records may have been cut off"
        )
    return check.end(next((end for end in ends if end != check.head), None))


def _records(lines: IO[bytes], length: int, ends: list[ChainHead]) -> Iterator[AuditRecord]:
    """Yield the records of a file up to a length; an end among its lines goes to `ends`."""
    number = 0
    while length > 0 and (line := lines.readline()):
        number, length = number + 1, length - len(line)
        if ends:
            fail(f"line {number} stands behind the end of the export")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            if line.startswith(b'{"head":'):
                ends.append(_read_end_line(line))
            else:
                yield read_record(line)
        except ValueError as error:
            fail(safe_line(f"line {number} is no record: {error}", 300))


def _read_end_line(line: bytes) -> ChainHead:
    end = msgspec.json.decode(line, type=ExportEnd)
    if msgspec.json.encode(end) != line:
        raise ValueError("it is not the end of an export as it was written")
    return end.head


def _head(text: str) -> ChainHead:
    number, _, digest = text.partition(":")
    try:
        found = ChainHead(int(number), bytes.fromhex(digest))
    except ValueError:
        _not_a_head()
    if len(found.hash) != 32:
        _not_a_head()
    return found


def _not_a_head() -> NoReturn:
    fail("--head takes what `verify` prints: NUMBER:HASH", USAGE)


def _named(source: str, server: str | None) -> tuple[Server | str, str]:
    """Return where the records are, and whose they are."""
    where = source_of(source)
    if isinstance(where, Server):
        if server is not None:
            fail("--server goes with the URL of a store", USAGE)
        return where, where.audience
    if server is None:
        fail("a store may keep the records of several servers: name one with --server", USAGE)
    return where, server


def _kept(store: Store) -> AuditStore:
    if not isinstance(store, AuditStore):
        raise ConfigError("this store keeps no audit: it is none of SQLite and PostgreSQL")
    return store
