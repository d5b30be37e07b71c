"""Which lines are marked when they run again, read from the source alone."""

import pytest

from antiphon.dev.advice import Reason, read_source

HANDLER = """
import logging, random, time, uuid
from datetime import datetime

log = logging.getLogger()
TOTALS = {{}}

class Form: ...

def plain(x):
    return str(x).upper()

def noisy(x):
    print(x)

def outer(x):
    return plain(x) + str(noisy(x))

async def tool(ctx: Context, name: str, shop: Shop) -> str:
    own = []
    {line}
    return name
"""


def reason_of(line: str) -> Reason | None:
    source = HANDLER.format(line=line)
    number = next(at for at, text in enumerate(source.splitlines(), 1) if text.strip() == line)
    found = read_source(source).reasons.get(number)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("await charge(name)", "effect"),
        ("x = await shop.charge(name)", "effect"),
        ("async with lock: pass", "effect"),
        ("shop.charge(name)", "read"),
        ("x = load(name)", "read"),
        ("if shop.is_open(): pass", "read"),
        ("noisy(name)", "read"),
        ("outer(name)", "read"),
        ("print(name)", "output"),
        ('log.info("made %s", name)', "output"),
        ("x = time.time()", "volatile"),
        ("x = datetime.now()", "volatile"),
        ("x = uuid.uuid4()", "volatile"),
        ("x = random.choice([1])", "volatile"),
        ("TOTALS[name] = 1", "state"),
        ("global TOTALS; TOTALS = {}", "state"),
        ("del TOTALS[name]", "state"),
        ("TOTALS.update(name=1)", "state"),
        ("x = len(name) + int(name)", None),
        ("own.append(name.strip())", None),
        ("x = Form(name)", None),
        ("x = plain(name)", None),
        ('x = f"{name}"', None),
        ("x = [each for each in own]", None),
        ('x = await ctx.elicit("Which?", Form)', None),
        ('x = await ctx.once("charge", charge, name)', None),
        ('if not await ctx.approve("Go?"): pass', None),
        ("x = await helper(ctx, name)", None),
        ("pass", None),
    ],
)
def test_a_line_is_marked_by_what_it_may_do(line: str, reason: Reason | None) -> None:
    assert reason_of(line) == reason


def test_a_statement_of_several_lines_counts_as_its_first() -> None:
    reading = read_source(
        "async def tool(ctx):\n    await shop.charge(\n        1,\n        2,\n    )\n"
    )
    assert {reading.first_line[line] for line in (2, 3, 4, 5)} == {2}
    assert set(reading.reasons) == {2}


def test_the_body_of_a_block_is_judged_line_by_line() -> None:
    source = (
        "async def tool(ctx):\n    if 1:\n        load()\n    else:\n        x = 1\n"
        "    try:\n        load()\n    except E:\n        load()\n    finally:\n        x = 2\n"
        "    match x:\n        case 1:\n            load()\n"
    )
    assert sorted(read_source(source).reasons) == [3, 7, 9, 14]


def test_a_file_that_is_no_python_has_nothing_to_say() -> None:
    assert read_source("def (").reasons == {}
