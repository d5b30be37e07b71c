"""Which lines are marked when they run again, read from the source alone."""

from pathlib import Path

import pytest

from antiphon.apps.dev.advice import AGAIN, read_source
from antiphon.apps.lint.files import check_source

HANDLER = """
import asyncio, json, logging, random, subprocess as sp, sys, time, uuid
from datetime import datetime
from datetime import datetime as moment
from random import choice as pick

log = logging.getLogger()
TOTALS = {{}}

class Form: ...

def plain(x):
    return str(x).upper()

def noisy(x):
    print(x)

def outer(x):
    return plain(x) + str(noisy(x))

async def create_stub(x):
    return f"{{x}}"

async def looks_up(x):
    return f"{{x}}"

def loud(self, x):
    print(x)

async def tool(ctx: Context, name: str, shop: Shop) -> str:
    own = []
    {line}
    return name
"""


def mark_of(line: str) -> str | None:
    """Return why the line is marked when it runs again."""
    source = HANDLER.format(line=line)
    number = next(at for at, text in enumerate(source.splitlines(), 1) if text.strip() == line)
    found = read_source(source).again.get(number)
    return next((kind for kind, rule in AGAIN.items() if rule == found), None)


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("await charge(name)", "effect"),
        ("x = await shop.charge(name)", "effect"),
        ("await asyncio.to_thread(charge, name)", "effect"),
        ("sp.run([name])", "effect"),
        ("await create_stub(name)", "effect"),
        ("async with lock: pass", "unknown"),
        ("x = load(name)", "unknown"),
        ("x = await looks_up(name)", "unknown"),
        ("if shop.is_open(): pass", "unknown"),
        ("noisy(name)", "unknown"),
        ("outer(name)", "unknown"),
        ("x = self.loud(name)", "unknown"),
        ("print(name)", "output"),
        ('log.info("made %s", name)', "output"),
        ('self.logger.info("made %s", name)', "output"),
        ("sys.stdout.write(name)", "output"),
        ("x = time.time()", "volatile"),
        ("x = datetime.now()", "volatile"),
        ("x = moment.now()", "volatile"),
        ("x = uuid.uuid4()", "volatile"),
        ("x = random.choice([1])", "volatile"),
        ("x = pick([1])", "volatile"),
        ("TOTALS[name] = 1", "state"),
        ("global TOTALS; TOTALS = {}", "state"),
        ("del TOTALS[name]", "state"),
        ("TOTALS.update(name=1)", "state"),
        ("self.seen.append(name)", "state"),
        ("self.seen = name", "state"),
        ("first, (*TOTALS[1], last) = name", "state"),
        ("x = len(name) + int(name)", None),
        ("own.append(name.strip())", None),
        ("x = Form(name)", None),
        ("x = plain(name)", None),
        ("x = self.plain(name)", None),
        ("x = TOTALS.get(name)", None),
        ('x = f"{name}"', None),
        ("x = json.dumps({})", None),
        ("x = [each for each in own]", None),
        ("await asyncio.sleep(1)", None),
        ("x = lambda: charge(name)", None),
        ('x = await ctx.elicit("Which?", Form)', None),
        ('x = await ctx.once("charge", charge, name)', None),
        ('if not await ctx.approve("Go?"): pass', None),
        ("x = await helper(ctx, name)", None),
        ("await charge(name)  # antiphon: allow effect-above-ask", None),
        ("load(name)  # antiphon: allow runs-again", None),
        ("pass", None),
    ],
)
def test_a_line_is_marked_by_what_it_may_do(line: str, mark: str | None) -> None:
    assert mark_of(line) == mark


def test_the_page_and_the_linter_say_the_same_of_a_line() -> None:
    source = (
        "async def tool(ctx: Context, name):\n    await pay(name)\n    SEEN.add(name)\n"
        "    try:\n        await ctx.approve(f'Now, {time.time()}?')\n    except BaseException:\n"
        "        pass\n"
    )
    reading = read_source(source)
    shown = {**reading.again, **reading.wrong}
    found = {finding.line: finding.rule for finding in check_source(source, Path("x.py"))}
    assert {line: rule.id for line, rule in found.items()} == {
        2: "effect-above-ask",
        3: "write-above-ask",
        5: "volatile-question",
        6: "swallowed-suspension",
    }
    assert shown == found


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("await charge(name)", 'await ctx.once("charge", charge, name)'),
        ("x = charge(name, 1)", 'x = await ctx.once("charge", charge, name, 1)'),
        ("x = y = pay()", 'x = y = await ctx.once("pay", pay)'),
        ("await shop.charge(name)", None),  # what it returns may be no value
        ("await charge(name, fast=True)", None),
        ("x = load(name)", None),
        (f"await charge('{'x' * 200}')", None),
    ],
)
def test_an_effect_is_shown_as_it_could_be_written(line: str, instead: str | None) -> None:
    source = f"async def tool(ctx: Context, name: str) -> str:\n    {line}\n"
    assert read_source(source).instead.get(2) == instead


def test_methods_of_the_same_name_are_each_read() -> None:
    source = (
        "class A:\n    async def run(self, ctx):\n        await pay()\n"
        "class B:\n    async def run(self, ctx):\n        x = 1\n        load()\n"
    )
    assert sorted(read_source(source).again) == [3, 7]


def test_a_statement_of_several_lines_counts_as_its_first() -> None:
    reading = read_source(
        "async def tool(ctx):\n    await shop.charge(\n        1,\n        2,\n    )\n"
    )
    assert {reading.first_line[line] for line in (2, 3, 4, 5)} == {2}
    assert set(reading.again) == {2}


def test_the_body_of_a_block_is_judged_line_by_line() -> None:
    source = (
        "async def tool(ctx):\n    if 1:\n        load()\n    else:\n        x = 1\n"
        "    try:\n        load()\n    except E:\n        load()\n    finally:\n        x = 2\n"
        "    match x:\n        case 1:\n            load()\n"
    )
    assert sorted(read_source(source).again) == [3, 7, 9, 14]


def test_a_file_that_is_no_python_has_nothing_to_say() -> None:
    assert read_source("def (").again == {}
