"""`antiphon audit export` and `verify`: whatever was done to the records is found."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.operating import audit as command
from antiphon.errors import StoreError
from antiphon.integrations.audit import lines
from antiphon.integrations.audit.lines import LinesFile, head_file, read_head
from antiphon.protocol.audit import (
    AuditEvent,
    AuditRecord,
    read_record,
    record_events,
    verify_audit,
    write_record,
)
from antiphon.protocol.chain import NO_HEAD, ChainHead
from antiphon.stores.memory import MemoryStore
from antiphon.stores.sqlite import SqliteStore
from tests.cli.running import Ran, antiphon
from tests.servers import opened

EVENTS = [
    AuditEvent(kind="round", at=float(at), server="shop", call=f"call-{at}", outcome="complete")
    for at in range(1, 7)
]


async def _fill(path: Path) -> None:
    async with opened(SqliteStore(path).for_server("shop")) as store:
        await store.append_audit("shop", EVENTS)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    asyncio.run(_fill(path))
    return path


def verify_store(path: Path, *more: str) -> Ran:
    return antiphon("audit", "verify", f"sqlite:///{path}", "--server", "shop", *more)


def exported(path: Path, to: Path) -> list[str]:
    ran = antiphon("audit", "export", f"sqlite:///{path}", "--server", "shop")
    assert ran.code == 0, ran.err
    to.write_text(ran.out)
    return ran.out.splitlines()


def test_an_untouched_store_and_its_export_hold(ledger: Path, tmp_path: Path) -> None:
    ran = verify_store(ledger)
    assert (ran.code, "6 records hold; the last is 6:" in ran.out) == (0, True)
    lines = exported(ledger, tmp_path / "audit.jsonl")
    assert len(lines) == 7
    ran = antiphon("audit", "verify", str(tmp_path / "audit.jsonl"))
    assert (ran.code, "6 records hold" in ran.out) == (0, True)


class Busy(MemoryStore):
    """A store to which somebody writes between any two reads."""

    async def audit_head(self, server: str) -> ChainHead:
        await self.append_audit(server, EVENTS[:1])
        return await super().audit_head(server)

    async def audit_records(
        self, server: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[AuditRecord]:
        if after < 20:
            await self.append_audit(server, EVENTS[:1])
        return await super().audit_records(server, after=after, limit=min(limit, 3))


async def test_an_export_of_a_server_that_goes_on_serving_holds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = Busy()
    await store.append_audit("shop", EVENTS)
    await command._export(store, "shop")  # pyright: ignore[reportPrivateUsage]
    file = tmp_path / "audit.jsonl"
    file.write_text(capsys.readouterr().out)
    ran = await asyncio.to_thread(antiphon, "audit", "verify", str(file))
    assert (ran.code, "7 records hold" in ran.out) == (0, True), ran.err


def flip(lines: list[str]) -> list[str]:
    record = json.loads(lines[2])
    return [*lines[:2], json.dumps({**record, "outcome": "failed"}), *lines[3:]]


def rehash(lines: list[str]) -> list[str]:
    """Change a record and make its own hash fit again."""
    changed = list(EVENTS)
    changed[2] = AuditEvent(kind="round", at=3.0, server="shop", call="another")
    forged = record_events(changed, NO_HEAD)[2]
    return [*lines[:2], write_record(forged).decode(), *lines[3:]]


def other_chain() -> list[str]:
    events = [AuditEvent(kind="round", at=9.0, server="other", call="other")] * 6
    return [write_record(record).decode() for record in record_events(events, NO_HEAD)]


def inserted(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[2], *lines[3:]]


def with_member(lines: list[str]) -> list[str]:
    """Add a member that no hash was made of."""
    return [*lines[:2], lines[2][:-1] + ',"approved_by":"anna"}', *lines[3:]]


def with_member_twice(lines: list[str]) -> list[str]:
    """Put another outcome before the one that was hashed; some readers take the first."""
    return [*lines[:2], '{"outcome":"failed",' + lines[2][1:], *lines[3:]]


def with_other_base64(lines: list[str]) -> list[str]:
    """Write the same hash in another way: the last character has bits that count for nothing."""
    record = json.loads(lines[2])
    assert record["hash"].endswith("=")
    last = record["hash"][-2]
    other = record["hash"][:-2] + chr(ord(last) + 1) + "="
    return [*lines[:2], lines[2].replace(record["hash"], other), *lines[3:]]


TOUCHED: dict[str, Callable[[list[str]], list[str]]] = {
    "a member added": with_member,
    "a member twice": with_member_twice,
    "another base64": with_other_base64,
    "a blank line": lambda those: [*those[:2], " ", *those[2:]],
    "spliced from another chain": lambda those: [*those[:2], *other_chain()[2:6], those[6]],
    "flipped": flip,
    "flipped with a hash that fits": rehash,
    "the first dropped": lambda those: those[1:],
    "one dropped": lambda those: [*those[:2], *those[3:]],
    "the last dropped": lambda those: [*those[:5], those[6]],
    "the end dropped": lambda those: those[:6],
    "the last and the end dropped": lambda those: those[:5],
    "all dropped": lambda those: those[6:],
    "inserted": inserted,
    "appended": lambda those: [*those[:6], those[5], those[6]],
    "behind the end": lambda those: [*those, those[5]],
    "reordered": lambda those: [those[1], those[0], *those[2:]],
    "the last two reordered": lambda those: [*those[:4], those[5], those[4], those[6]],
    "no record": lambda those: [*those[:2], "{}", *those[3:]],
}


@pytest.mark.parametrize("touch", TOUCHED.values(), ids=TOUCHED)
def test_an_export_that_was_touched_is_found(
    touch: Callable[[list[str]], list[str]], ledger: Path, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    lines = exported(ledger, file)
    file.write_text("\n".join(touch(lines)) + "\n")
    ran = antiphon("audit", "verify", str(file))
    assert ran.code == 1, ran.out
    assert ran.err


IN_THE_DATABASE = {
    "flipped": """UPDATE antiphon_audit SET record = CAST(replace(CAST(record AS text), 'complete',
        'failed') AS blob) WHERE sequence = 3""",
    "dropped": "DELETE FROM antiphon_audit WHERE sequence = 3",
    "the first dropped": "DELETE FROM antiphon_audit WHERE sequence = 1",
    "the last dropped": "DELETE FROM antiphon_audit WHERE sequence = 6",
    "all dropped": "DELETE FROM antiphon_audit",
    "the head set back": "UPDATE antiphon_audit_heads SET sequence = 5",
    "a member added": """UPDATE antiphon_audit SET record = CAST(replace(CAST(record AS text),
        '{"kind"', '{"note":"x","kind"') AS blob) WHERE sequence = 3""",
    "hidden from its call": "UPDATE antiphon_audit SET call = 'another' WHERE sequence = 3",
    "made older": "UPDATE antiphon_audit SET at = 0.5 WHERE sequence = 1",
    "another hash beside": "UPDATE antiphon_audit SET hash = x'00' WHERE sequence = 6",
    "given another place": """UPDATE antiphon_audit SET sequence = sequence + 10""",
    "exchanged": """UPDATE antiphon_audit SET record = (SELECT record FROM antiphon_audit AS other
        WHERE other.sequence = 7 - antiphon_audit.sequence)""",
    "no record": "UPDATE antiphon_audit SET record = CAST('x' AS blob) WHERE sequence = 2",
}


@pytest.mark.parametrize("statement", IN_THE_DATABASE.values(), ids=IN_THE_DATABASE)
def test_a_store_that_was_touched_is_found(statement: str, ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(statement)
    ran = verify_store(ledger)
    assert ran.code == 1, ran.out


def test_the_chain_of_another_server_is_not_taken_for_this_one(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE antiphon_audit SET server = 'till'")
        connection.execute("UPDATE antiphon_audit_heads SET server = 'till'")
    ran = antiphon("audit", "verify", f"sqlite:///{ledger}", "--server", "till")
    assert ran.code == 1, ran.out
    assert "changed in the database" in ran.err


def test_a_server_without_records_is_no_success(ledger: Path) -> None:
    ran = antiphon("audit", "verify", f"sqlite:///{ledger}", "--server", "shpo")
    assert (ran.code, "no records" in ran.err) == (2, True)


def test_a_known_head_is_compared_or_it_is_said_that_it_cannot_be(tmp_path: Path) -> None:
    """Who can write the store can also forge a checkpoint, to get around a head that is known."""
    records = record_events(EVENTS, NO_HEAD)
    mark = AuditEvent(
        kind="checkpoint", at=9.0, server="shop", through=3, through_hash=records[2].hash
    )
    (end,) = record_events([mark], ChainHead(records[-1].sequence, records[-1].hash))
    file = tmp_path / "audit.jsonl"
    head = json.loads(write_record(end))
    last = json.dumps({"head": {"sequence": 7, "hash": head["hash"]}}, separators=(",", ":"))
    lines = [write_record(record).decode() for record in (*records[3:], end)]
    file.write_text("\n".join([*lines, last]) + "\n")

    def verified(known: ChainHead) -> Ran:
        return antiphon(
            "audit", "verify", str(file), "--head", f"{known.sequence}:{known.hash.hex()}"
        )

    assert verified(ChainHead(4, records[3].hash)).code == 0
    assert verified(ChainHead(3, records[2].hash)).code == 0, "the checkpoint names it"
    ran = verified(ChainHead(3, records[0].hash))
    assert (ran.code, "record 3" in ran.err) == (1, True)
    ran = verified(ChainHead(2, records[1].hash))
    assert (ran.code, "cannot be compared" in ran.err) == (1, True)


def test_a_chain_that_was_cut_together_with_its_head_is_found_by_a_head_of_before(
    ledger: Path,
) -> None:
    known = verify_store(ledger).out.split()[-1]
    with closing(sqlite3.connect(ledger)) as connection, connection:
        (left,) = connection.execute(
            "SELECT hash FROM antiphon_audit WHERE sequence = 5"
        ).fetchone()
        connection.execute("DELETE FROM antiphon_audit WHERE sequence = 6")
        connection.execute("UPDATE antiphon_audit_heads SET sequence = 5, hash = ?", (left,))
    assert verify_store(ledger).code == 0
    ran = verify_store(ledger, "--head", known)
    assert ran.code == 1
    assert "record 6" in ran.err


def test_a_head_of_before_is_found_again_in_a_longer_chain(ledger: Path) -> None:
    known = verify_store(ledger).out.split()[-1]
    asyncio.run(_fill(ledger))
    assert verify_store(ledger, "--head", known).code == 0
    assert verify_store(ledger, "--head", "6:" + "0" * 64).code == 1
    assert verify_store(ledger, "--head", "six").code == 2


def test_a_prefix_is_missed_unless_a_checkpoint_of_the_chain_says_that_its_time_was_over() -> None:
    records = record_events(EVENTS, NO_HEAD)
    last = records[2]
    mark = AuditEvent(kind="checkpoint", at=9.0, server="shop", through=3, through_hash=last.hash)
    head = ChainHead(records[-1].sequence, records[-1].hash)
    (end,) = record_events([mark], head)
    assert verify_audit([*records[3:], end]).broken is None
    for left in (records[3:], [*records[2:], end], [*records[4:], end]):
        broken = verify_audit(left).broken
        assert broken is not None
        assert broken.reason == "start"
    assert verify_audit([*records[3:], end], known=ChainHead(2, records[1].hash)).broken is None


# --- files that servers write ---------------------------------------------------------------------


def test_processes_that_write_one_file_at_once_continue_one_chain(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    code = (
        "import sys; from pathlib import Path\n"
        "from antiphon.integrations.audit.lines import LinesFile\n"
        "from antiphon.protocol.audit import AuditEvent\n"
        "lines = LinesFile(Path(sys.argv[1]))\n"
        "for at in range(25):\n"
        "    lines.append([AuditEvent(kind='round', at=float(at), server='shop')] * 2)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for _ in range(3)]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    ran = antiphon("audit", "verify", str(file))
    assert "150 records hold" in ran.out, ran.err
    assert file.stat().st_mode & 0o077 == 0


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = LinesFile(tmp_path / "audit.jsonl")
    for event in EVENTS:
        file.append([event])
    return file.path


WRITTEN: dict[str, Callable[[list[str]], list[str]]] = {
    name: touch for name, touch in TOUCHED.items() if "end" not in name and name != "appended"
}


@pytest.mark.parametrize("touch", WRITTEN.values(), ids=WRITTEN)
def test_a_file_of_a_server_that_was_touched_is_found(
    touch: Callable[[list[str]], list[str]], written: Path
) -> None:
    lines = written.read_text().splitlines()
    changed = touch([*lines, ""])
    written.write_text("\n".join(line for line in changed if line) + "\n")
    assert antiphon("audit", "verify", str(written)).code == 1


@pytest.mark.parametrize("how", ["cut", "longer", "head gone"])
def test_a_file_that_was_cut_or_continued_by_somebody_else_is_found_and_not_written_to(
    how: str, written: Path
) -> None:
    lines = written.read_text().splitlines(keepends=True)
    head = read_head(written)
    assert head is not None
    if how == "cut":
        written.write_text("".join(lines[:-1]))
    elif how == "longer":
        (forged,) = record_events(EVENTS[:1], head.head)
        written.write_text("".join(lines) + write_record(forged).decode() + "\n")
    else:
        head_file(written).unlink()
    assert antiphon("audit", "verify", str(written)).code == 1
    with pytest.raises(StoreError, match="changed by somebody else"):
        LinesFile(written).append(EVENTS[:1])


@pytest.mark.parametrize("wrote", ["nothing", "half", "all"])
def test_lines_of_a_process_that_died_while_it_wrote_break_nothing(
    wrote: str, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written.read_bytes()
    whole = LinesFile(written)
    real, count = lines._overwrite, 0  # pyright: ignore[reportPrivateUsage]

    def dies(file: Any, at: int, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == 1:
            real(file, at, data)
        elif count == 2:
            real(file, at, data[: {"nothing": 0, "half": 60, "all": len(data)}[wrote]])
            raise KeyboardInterrupt

    monkeypatch.setattr(lines, "_overwrite", dies)
    with pytest.raises(KeyboardInterrupt):
        whole.append(EVENTS[:1])
    monkeypatch.undo()
    if wrote == "nothing":
        assert written.read_bytes() == before
    ran = antiphon("audit", "verify", str(written))
    assert (ran.code, ran.err) == (0, ""), "a process that died is no tampering"
    LinesFile(written).append(EVENTS[1:3])
    ran = antiphon("audit", "verify", str(written))
    assert ran.code == 0, ran.err
    assert f"{9 if wrote == 'all' else 8} records hold" in ran.out


def test_a_process_that_dies_while_it_replaces_the_head_leaves_one_that_can_be_read(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, heads = lines._overwrite, list[bytes]()  # pyright: ignore[reportPrivateUsage]

    def keep(file: Any, at: int, data: bytes) -> None:
        real(file, at, data)
        heads.append(head_file(written).read_bytes())

    monkeypatch.setattr(lines, "_overwrite", keep)
    LinesFile(written).append(EVENTS[:1])
    monkeypatch.undo()
    during, _, after = heads
    # It has written the new head, and not yet cut off what is left of the one before.
    head_file(written).write_bytes(after + during[len(after) :])
    assert antiphon("audit", "verify", str(written)).code == 0
    LinesFile(written).append(EVENTS[:1])
    assert "8 records hold" in antiphon("audit", "verify", str(written)).out


def test_a_file_is_verified_while_a_server_writes_to_it(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = read_record

    def read_while_another_comes(line: bytes) -> AuditRecord:
        LinesFile(written).append(EVENTS[:1])
        return real(line)

    monkeypatch.setattr(command, "read_record", read_while_another_comes)
    ran = antiphon("audit", "verify", str(written))
    assert (ran.code, "6 records hold" in ran.out) == (0, True), ran.err


def test_a_command_without_what_it_needs_says_so(ledger: Path, tmp_path: Path) -> None:
    assert antiphon("audit", "verify", f"sqlite:///{ledger}").code == 2
    assert (
        antiphon("audit", "export", f"sqlite:///{tmp_path / 'none.db'}", "--server", "x").code == 2
    )
    assert verify_store(ledger, "--head", "7:aa").code == 2
