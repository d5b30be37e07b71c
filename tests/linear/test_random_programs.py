"""Random handlers through random trouble: no effect is repeated, no answer is lost or changed.

A program is a list of statements; a handler is made of it anew for every server. In the end every
call either returns what the reference interpreter says, or says that an effect is uncertain, which
it may only after a crash. Handlers change what they were given, handle errors and ask, set
timeouts, use models with aliases and strict fields, pass sets, take different time on every run
and return early; none of that may be taken for other code.
"""

import pickle
import subprocess
import sys
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from antiphon.testing import Tally
from tests.child_processes import PATIENCE, ROOT, environment
from tests.linear import broken_engines
from tests.linear.driving import Play, answer_to, played, troubles
from tests.linear.one_round import Work
from tests.linear.programs import (
    Ask,
    AskDict,
    AskModel,
    Effect,
    EffectChanged,
    EffectFails,
    EffectOfSets,
    Memo,
    MemoChanged,
    MemoFails,
    Reference,
    Together,
    named,
    shapes,
)

EXAMPLES = 1500
SEEN: Counter[str] = Counter()


def drawn(examples: int, *phases: Phase) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases or (Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@pytest.mark.timeout(240)
@drawn(EXAMPLES)
@given(shape=shapes(), troubles=troubles(), seed=st.integers(0, 2**16), retry=st.booleans())
def test_no_effect_is_repeated_and_no_answer_is_lost(shape, troubles, seed, retry):
    end, drive = played(Play(named(shape, count(), retry), seed, troubles))
    SEEN[end] += 1
    SEEN["crashed"] += drive.crashed


def test_the_examples_were_worth_their_time():
    """Most calls must come through, and enough of them through crashes."""
    assert SEEN["done"] + SEEN["uncertain"] + SEEN["spent"] >= 1000
    assert SEEN["done"] >= 900
    assert SEEN["crashed"] >= 200
    assert SEEN["uncertain"] >= 5


@pytest.mark.timeout(120)
@drawn(150)
@given(
    shape=shapes(),
    troubles=troubles(("none", "over", "over", "new server", "duplicate", "leave")),
    seed=st.integers(0, 2**16),
)
def test_a_client_that_starts_over_repeats_effects_once_per_start(shape, troubles, seed):
    played(Play(named(shape, count(), False), seed, troubles))


@pytest.mark.timeout(120)
@drawn(150)
@given(
    shape=shapes(),
    troubles=troubles(("none", "over", "over", "crash", "new server", "duplicate", "leave")),
    seed=st.integers(0, 2**16),
)
def test_a_restart_that_adopts_repeats_no_effect(shape, troubles, seed):
    played(Play(named(shape, count(), False), seed, troubles, options={"restarts": "adopt"}))


SETS = [
    (EffectOfSets("effectofsets0"), Ask("ask1"), EffectOfSets("effectofsets2"), Ask("ask3")),
    (
        Ask("ask0"),
        Together(((EffectOfSets("effectofsets1"), Ask("ask2")), (Memo("memo3"), Ask("ask4")))),
        EffectOfSets("effectofsets5"),
        Ask("ask6"),
    ),
]


@pytest.mark.parametrize("statements", SETS, ids=["in line", "in branches"])
def test_sets_are_the_same_arguments_in_processes_with_other_hash_seeds(statements, tmp_path):
    step = None
    for hash_seed in range(1, 9):
        done = subprocess.run(
            [sys.executable, "-m", "tests.linear.one_round"],
            input=pickle.dumps(Work(statements, 0, tmp_path, step)),
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment({"PYTHONHASHSEED": str(hash_seed)}),
            timeout=PATIENCE,
            check=True,
        )
        step = pickle.loads(done.stdout)
        if not step.waiting:
            break
    assert step is not None
    reference = Reference(lambda key: answer_to(key, 0), lambda key: False)
    assert [block["text"] for block in step.content] == [*reference.block(statements), "end"]
    counts = Tally(tmp_path / "tally.txt").counts
    assert {key: counts[f"effect {key}"] for key in reference.effects} == dict.fromkeys(
        reference.effects, 1
    )


# --- engines that are broken on purpose ---------------------------------------------------------


def holds(leaves: list[Any], **play: Any) -> None:
    """Play up to 200 calls of such statements; raises what the first one that fails raised."""

    @drawn(200, Phase.generate)
    @given(shape=shapes(leaves), troubles=troubles(), seed=st.integers(0, 2**16))
    def hold(shape, troubles, seed):
        played(Play(named(shape, count(), False), seed, troubles, **play))

    hold()


@pytest.mark.parametrize("leaf", [AskDict, AskModel, MemoChanged, EffectChanged])
def test_an_engine_that_hands_out_its_own_objects_is_caught(leaf):
    holds([Ask, leaf])
    with broken_engines.handing_out_kept_objects() as handed, pytest.raises(AssertionError):
        holds([Ask, leaf])
    assert handed["again"]


@pytest.mark.parametrize("leaf", [MemoFails, EffectFails])
def test_an_engine_that_forgets_failures_is_caught(leaf):
    holds([Ask, leaf])
    with broken_engines.forgetting_failures() as forgot, pytest.raises(AssertionError):
        holds([Ask, leaf], store=forgot.store)
    assert forgot.count


def test_an_engine_that_repeats_uncertain_effects_is_caught():
    holds([Ask, Effect])
    repeating = broken_engines.Repeating()
    with pytest.raises(AssertionError, match="happened 2 times"):
        holds([Ask, Effect], store=repeating.store)
    assert repeating.count
