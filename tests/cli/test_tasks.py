"""Tasks on the command line: waited for, left, looked at, answered, cancelled, interrupted."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import child_processes as processes
from tests.cli.running import ANTIPHON, antiphon, environment
from tests.cli.terminal import Seat
from tests.client.test_task_rules import shows, task, tasked

FORGOTTEN = "ab" * 24


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs") / "notes"


@pytest.fixture(scope="module")
def jobs(notes: Path) -> Iterator[str]:
    with subprocess.Popen(
        processes.command("tests.client.jobs:server", "--http", "127.0.0.1:0"),
        cwd=processes.ROOT,
        env=processes.environment({"JOBS_NOTES": str(notes)}),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            found = next(
                found
                for line in process.stderr
                if (found := re.search(r"http://127\.0\.0\.1:\d+", line))
            )
            yield f"{found[0]}/mcp"
        finally:
            process.kill()


def detached(jobs: str, tool: str) -> str:
    ran = antiphon("call", jobs, tool, "--detach")
    assert ran.code == 4, ran.err
    return ran.out.strip()


def test_a_call_waits_for_its_task(jobs: str):
    assert antiphon("call", jobs, "work", "label=tea").out == "tea is done\n"
    failed = antiphon("call", jobs, "spoil")
    assert (failed.code, failed.out) == (1, "the milk is sour\n")
    broken = antiphon("call", jobs, "breach")
    assert (broken.code, "no such thing" in broken.err) == (1, True)


def test_a_wait_without_a_terminal_says_what_the_task_does(jobs: str):
    ran = antiphon("call", jobs, "work", "label=tea")
    assert (ran.out, ran.err) == ("tea is done\n", "The task: working on tea\n")


def test_questions_of_a_task_are_answered_like_any(jobs: str):
    answers = ["-a", "who.name=Ada", "-a", "sure.sure=yes"]
    assert antiphon("call", jobs, "ask", *answers).out == "Ada: yes\n"
    assert antiphon("call", jobs, "phases", *answers).out == "Ada answered\n"
    declined = antiphon("call", jobs, "ask", "-a", "who=decline")
    assert declined.code == 3


def test_a_detached_task_is_looked_at_answered_and_waited_for(jobs: str):
    id = detached(jobs, "ask")
    looked = antiphon("tasks", jobs, id)
    assert (looked.code, looked.out.strip()) == (4, id)
    assert f"antiphon tasks {jobs} {id}" in looked.err
    answered = antiphon("tasks", jobs, id, "-a", "who.name=Ada")
    assert answered.code == 4, answered.err
    ended = antiphon("tasks", jobs, id, "--wait", "-a", "sure.sure=no")
    assert (ended.code, ended.out) == (0, "Ada: no\n"), ended.err
    again = antiphon("tasks", jobs, id, "--json")
    assert (again.code, again.json["outcome"]) == (0, "done")


def test_looking_at_a_task_takes_nothing_from_what_it_may_ask(jobs: str, notes: Path):
    id = detached(jobs, "rest")
    looked = antiphon("tasks", jobs, id)
    assert (looked.code, looked.out.strip()) == (4, id)
    assert antiphon("tasks", jobs).code == 0
    notes.with_name("released").touch()
    answered = antiphon("tasks", jobs, id, "-a", "who.name=Ada")
    assert answered.code == 4, answered.err
    ended = antiphon("tasks", jobs, id, "--wait", "-a", "verse=roses")
    assert (ended.code, ended.out) == (0, "Ada: roses\n"), ended.err


def test_what_a_task_asks_is_shown_with_the_way_to_answer(jobs: str):
    ran = antiphon("call", jobs, "ask_both", "-a", "first.name=one", "--json")
    assert (ran.code, ran.json["outcome"]) == (4, "waiting")
    assert list(ran.json["asks"]) == ["second"]
    assert ran.json["task"]["status"] == "input_required"
    id = ran.json["task"]["id"]
    looked = antiphon("tasks", jobs, id)
    assert "waiting for answers" in looked.err
    assert "--answer second.name=" in looked.err
    ended = antiphon("tasks", jobs, id, "--wait", "-a", "second.name=two")
    assert ended.out == "one and two\n"


def test_a_task_is_saved_and_resumed(jobs: str, tmp_path: Path):
    file = tmp_path / "call.json"
    left = antiphon("call", jobs, "phases", "-a", "who.name=Eve", "--detach", "--save", str(file))
    assert left.code == 4, left.err
    assert f"antiphon resume {file}" in left.err
    assert json.loads(file.read_text())["task"]["message"] == "calling Eve"
    unanswered = antiphon("resume", str(file))
    assert (unanswered.code, "sure: Answered?" in unanswered.err) == (4, True)
    ended = antiphon("resume", str(file), "-a", "sure.sure=yes")
    assert (ended.code, ended.out) == (0, "Eve answered\n"), ended.err


def test_a_task_is_cancelled_by_its_id(jobs: str):
    id = detached(jobs, "hold")
    assert antiphon("tasks", jobs, id, "--cancel").code == 0
    ended = antiphon("tasks", jobs, id, "--wait")
    assert (ended.code, "was cancelled" in ended.err) == (1, True)
    assert antiphon("tasks", jobs, id, "--cancel", "--json").json["outcome"] == "done"


def test_waiting_for_a_task_ends_after_its_limit_and_the_task_goes_on(jobs: str):
    id = detached(jobs, "hold")
    waited = antiphon("tasks", jobs, id, "--wait", "--for", "0.3")
    assert (waited.code, waited.out.strip()) == (4, id), waited.err
    assert "Continue with: antiphon tasks" in waited.err
    unanswered = antiphon("tasks", jobs, id, "--for", "0.3", "-a", "who.name=Ada")
    assert unanswered.code == 4, unanswered.err
    assert antiphon("tasks", jobs, id, "--cancel").code == 0


def test_the_beginning_of_an_id_is_enough(jobs: str, own_folder: Path):
    id = detached(jobs, "hold")
    assert antiphon("tasks", jobs, id[:8]).out.strip() == id
    assert antiphon("tasks", jobs, id[:3]).code == 1  # too short to mean anything
    # Another task that was begun here and begins alike.
    (kept,) = own_folder.rglob("*.json")
    other = kept.with_name("other.json")
    other.write_text(kept.read_text().replace(id, id[:10] + "x" * 10))
    twice = antiphon("tasks", jobs, id[:8])
    assert (twice.code, "several tasks begin with" in twice.err) == (2, True)
    assert antiphon("tasks", jobs, id[:11]).out.strip() == id
    assert antiphon("tasks", jobs, id[:11], "--cancel").code == 0
    other.unlink()


def test_a_narrow_list_shows_whole_ids(jobs: str, own_folder: Path):
    id = detached(jobs, "hold")
    with subprocess.Popen(
        [*ANTIPHON, "tasks", jobs],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "COLUMNS": "60"},
    ) as process:
        out, _ = process.communicate(timeout=50)
    assert id in out
    assert antiphon("tasks", jobs, id, "--cancel").code == 0


def test_the_tasks_that_were_begun_here_are_listed_until_they_end(jobs: str, own_folder: Path):
    assert "None of your tasks" in antiphon("tasks", jobs).err
    first, second = detached(jobs, "ask"), detached(jobs, "hold")
    listed = antiphon("tasks", jobs)
    assert listed.code == 0, listed.err
    (row,) = (line for line in listed.out.splitlines() if first in line)
    assert "ask" in row
    tasks = {each["id"]: each for each in antiphon("tasks", jobs, "--json").json["tasks"]}
    assert {id: each["tool"] for id, each in tasks.items()} == {first: "ask", second: "hold"}
    for file in own_folder.rglob("*.json"):
        assert file.stat().st_mode & 0o077 == 0
    assert antiphon("tasks", jobs, second, "--cancel").code == 0
    antiphon("tasks", jobs, first, "--wait", "-a", "who.name=Ada", "-a", "sure.sure=no")
    assert antiphon("tasks", jobs, "--json").json["tasks"] == []
    assert list(own_folder.rglob("*.json")) == []
    assert antiphon("tasks", "--wait", jobs).code == 2


def test_one_bar_shows_a_task_and_is_gone_before_the_result(jobs: str):
    person = Seat("call", jobs, "work", "label=tea", TERM="xterm")
    person.sees("working on tea")
    before = person.sees("tea is done")
    assert person.leaves_with() == 0
    assert "%" not in before, "nobody says how far a task is"
    assert person.screen.strip() == "", "nothing is painted below the result"


def test_a_task_that_was_waited_for_leaves_no_trace(jobs: str, own_folder: Path):
    assert antiphon("call", jobs, "work").code == 0
    assert list(own_folder.rglob("*.json")) == []


def test_an_unknown_task_is_an_error(jobs: str):
    for more in ((), ("--wait",), ("--cancel",)):
        ran = antiphon("tasks", jobs, FORGOTTEN, *more)
        assert (ran.code, f"does not know the task {FORGOTTEN}" in ran.err) == (1, True)
        assert "Check the id" in ran.err
        assert "client." not in ran.err


@pytest.mark.requirement("TASK-50")
@pytest.mark.parametrize("saved", [False, True])
def test_interrupting_the_wait_cancels_the_task_unless_it_is_saved(saved: bool, tmp_path: Path):
    file = tmp_path / "call.json"
    with (
        tasked(shows(task())) as server,
        subprocess.Popen(
            [*ANTIPHON, "call", server.url, "t", *(["--save", str(file)] if saved else [])],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process,
    ):
        while not server.of("tasks/get"):
            server.arrived.clear()
            assert server.arrived.wait(20)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert [each["taskId"] for each in server.of("tasks/cancel")] == ([] if saved else ["t-1"])
    assert file.exists() == saved
    assert ("The task continues" if saved else "Cancelled task t-1") in err
    assert "Traceback" not in err
