"""One call on the command line: who answers, where it is saved, how it ends.

One round at a time in the main thread, so that a person at the terminal can interrupt a question.
"""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli import begun_tasks, output
from antiphon.cli.connect import interactive
from antiphon.cli.output import DONE, FAILED, REFUSED, USAGE, WAITING, Bar, errors, fail, say
from antiphon.cli.saved_calls import check_place, write_call
from antiphon.cli.written_files import NotWritten
from antiphon.client.answers import Answers, Scripted, method_for
from antiphon.client.asks import AnyAsk, Cancel, Decline, Step, view
from antiphon.client.errors import (
    AnswerUnfit,
    CallTimeout,
    ClientError,
    ConnectionLost,
    Pass,
    TaskCancelled,
    TaskExpired,
    TaskGone,
    Unanswered,
)
from antiphon.client.read_asks import Task
from antiphon.client.saved import load
from antiphon.client.terminal import Terminal
from antiphon.errors import AnswerInvalid
from antiphon.protocol.capabilities import Capability
from antiphon.protocol.text import safe

if TYPE_CHECKING:
    from antiphon.client.blocking import BlockingClient

ANSWER = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        "-a",
        metavar="KEY.FIELD=VALUE",
        help="An answer. To a form: key.field=value. To a page to visit: key=accept. Roots: "
        "roots=/a/folder. A completion: sample=TEXT. To refuse: key=decline or key=cancel. "
        "Repeatable.",
    ),
]
SAVE = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="If a question stays open, save the call in this file and exit with 4.",
    ),
]
DETACH = Annotated[
    bool,
    typer.Option("--detach", help="Do not wait for a task: print its id and exit with 4."),
]
NO_INPUT = Annotated[
    bool, typer.Option("--no-input", help="Never ask at the terminal, even if there is one.")
]


@dataclass(slots=True)
class CallSession:
    """One call on the command line: who answers, where it is saved, how it is reported."""

    script: Scripted
    terminal: Terminal | None
    save: Path | None
    json: bool
    detach: bool = False
    """Whether not to wait for a task."""

    later: bool = False
    """Whether a question that stays open can be answered by another command."""

    patience: float | None = None
    """Seconds for which a task is waited for; None waits until it asks or ends."""

    deadline: float = field(default=float("inf"))
    refused: bool = field(default=False)
    bar: Bar | None = None
    step: Step | None = None
    """The latest state of the call."""

    given: tuple[str, ...] = ()
    """The keys and fields that --answer names, without the answers."""

    asked: dict[str, None] = field(default_factory=dict[str, None])
    """The keys of the questions so far, in order."""

    is_own: bool = True
    """Whether the user chose this call: a file that others wrote is saved again as theirs."""

    server: str | list[str] | None = None
    """The server of this call, as `antiphon tasks` finds it again."""

    @classmethod
    def start(
        cls,
        answer: list[str] | None,
        *,
        save: Path | None,
        json: bool,
        ask: bool,
        detach: bool = False,
        of_task: bool = False,
        is_own: bool = True,
        patience: float | None = None,
    ) -> "CallSession":
        """Read the answers of the command line, and find out whether a person can be asked."""

        try:
            script = Scripted.parse(answer or ())
            if save is not None:
                check_place(save)
        except (ValueError, NotWritten) as error:
            fail(str(error), USAGE)
        except OSError as error:
            fail(f"{save} cannot be used: {error.strerror}", USAGE)
        terminal = Terminal(errors()) if ask and interactive() else None
        given = tuple(text.partition("=")[0].strip() for text in answer or ())
        later = save is not None or detach or of_task
        return cls(
            script, terminal, save, json, detach, later, patience, given=given, is_own=is_own
        )

    @property
    def answers(self) -> Any:
        """The answerer of a legacy session, where the server asks during the request."""

        def noted(ask: AnyAsk) -> Any:
            answer = self._one(ask)
            if answer is None:
                raise Pass
            self._note(answer)
            return answer

        able = self.can if self.terminal else self.script.abilities
        return Answers(
            elicit=noted if "form" in able else None,
            elicit_url=noted if "url" in able else None,
            sample=noted if "sampling" in able else None,
            roots=noted if "roots" in able else None,
        )

    @property
    def can(self) -> frozenset[Capability]:
        """The declared capabilities: of --answer, and all if the call can be answered later."""
        needs: set[Capability] = {"form", "url", *self.script.abilities}
        if self.later:
            needs |= {"sampling", "roots"}
        return frozenset(needs)

    def run(self, client: "BlockingClient", begin: Callable[..., Step]) -> int:
        """Start the call, then answer round by round."""
        with output.bar() as self.bar:
            options = {"can": self.can, "on_progress": self.bar}
            return self._guarded(client, lambda: begin(**options))

    def resume(self, client: "BlockingClient", text: str) -> int:
        """Resume a saved call and answer round by round."""

        saved = load(text)
        name = (saved.server or {}).get("name", "")
        asks = {ask.key: view(ask, server=name) for ask in saved.call.asks}
        with output.bar() as self.bar:
            return self._guarded(client, lambda: Step(saved=saved, asks=asks))

    def _guarded(self, client: "BlockingClient", first: Callable[[], Step]) -> int:
        self.server = client.client.target
        try:
            return self._rounds(client, first())
        except ClientError as error:
            return self._failed(error)
        except KeyboardInterrupt:
            self._interrupted(client)
            raise

    def wait_for_task(self) -> float | None:
        """Return for how many seconds a task may be waited for now; None: until it ends."""
        if self.detach:
            return 0.0
        if self.patience is None:
            return None
        self.deadline = min(self.deadline, time.monotonic() + self.patience)
        return max(self.deadline - time.monotonic(), 0.0)

    def _rounds(self, client: "BlockingClient", step: Step) -> int:
        while step.waiting:
            self.step = step
            self._keep_task(step)
            self.asked.update(dict.fromkeys(step.asks))
            wait = self.wait_for_task()
            if step.task is not None and not step.asks and wait == 0.0:
                return self._left(step)
            answers, missing = self._answer(step)
            # A task takes the answers that there are; a round takes all or none.
            if missing and not (step.task and answers):
                return self._unanswered(step, missing)
            # Answers whose arrival is unknown are sent again as they were.
            given = None if step.call.answers is not None and not answers else answers
            step = client.resume(
                step,
                given,
                can=self.can,
                wait=wait,
                on_progress=self.bar,
                on_task=self.bar.task if self.bar else None,
            )
        return self._done(step)

    def _keep_task(self, step: Step) -> None:
        """Let `antiphon tasks` list the task until it has ended."""
        try:
            begun_tasks.keep(step, self.server, begun_tasks.folder())
        except (OSError, NotWritten) as error:
            say(f"warning: `antiphon tasks` will not list this task: {error}")

    def _forget_task(self) -> None:
        if self.step is not None and self.step.task is not None:
            begun_tasks.forget(self.server, self.step.task.id, begun_tasks.folder())

    def _clear(self) -> None:
        """Remove the bar before anything else is printed."""
        if self.bar:
            self.bar.pause()

    def _answer(self, step: Step) -> tuple[dict[str, Any], list[str]]:

        answers: dict[str, Any] = {}
        missing: list[str] = []
        if step.call.answers is not None and not any(self.script.has(key) for key in step.asks):
            return answers, missing
        for key, ask in step.asks.items():
            answer = self._one(ask)
            if answer is None:
                missing.append(key)
                continue
            answers[key] = answer
            self._note(answer)
        return answers, missing

    def _note(self, answer: Any) -> None:
        self.refused = self.refused or isinstance(answer, Decline | Cancel)

    def _one(self, ask: AnyAsk) -> Any:
        self.asked[ask.key] = None
        try:
            return method_for(self.script, ask)(ask)
        except Pass:
            pass
        except AnswerInvalid as error:
            raise AnswerUnfit(error.reasons) from None
        if self.terminal is None or ask.kind not in ("form", "url"):
            return None
        self._clear()
        return method_for(self.terminal, ask)(ask)

    # --- how it ends ---------------------------------------------------------------------------

    def _warn_of_unused(self) -> None:
        """Warn of answers whose key was not asked for: it is often misspelt."""
        unused = [
            name
            for name in self.given
            if not any(name == key or name.startswith(f"{key}.") for key in self.asked)
        ]
        if unused:
            asked = ", ".join(safe(key, 200) for key in self.asked) or "nothing"
            say(f"warning: --answer {', '.join(unused)} was not used: the server asked for {asked}")

    def _done(self, step: Step) -> int:
        self._clear()
        self._forget_task()
        self._warn_of_unused()
        dumped = step.result.model_dump(by_alias=True, mode="json", exclude_none=True)
        failed = bool(dumped.get("isError"))
        code = REFUSED if self.refused else FAILED if failed else DONE
        if self.json:
            word = {REFUSED: "refused", FAILED: "error", DONE: "done"}[code]
            output.as_json(word, result=dumped)
        else:
            output.result(dumped)
        return code

    def _unanswered(self, step: Step, missing: list[str]) -> int:
        self._clear()
        asks = {key: step.asks[key] for key in missing}
        if step.task is not None and self.save is None:
            return self._left(step)
        self._warn_of_unused()
        if self.save is None:
            if self.json:
                output.as_json("unanswered", asks=output.asks_json(asks))
            say("The server asks, and there is no answer:")
            output.open_asks(asks)
            fail("answer with --answer, or save the call with --save FILE", USAGE)
        self._save(self.save, step)
        if self.json:
            output.as_json("waiting", **self._standing(step))
        else:
            say(f"Waiting for answers; saved in {self.save}:")
            output.open_asks(asks)
            say(f"Continue with: {self._resume(self.save)}")
        return WAITING

    def _left(self, step: Step) -> int:
        """Stop waiting for a task; its id is enough to return to it."""
        self._clear()
        task = step.task
        assert task is not None
        self._warn_of_unused()
        if self.save is not None:
            self._save(self.save, step)
        if self.json:
            output.as_json("waiting", **self._standing(step))
        else:
            output.task(task)
            output.open_asks(step.asks)
            say(f"Continue with: {self._comeback(task)}")
        return WAITING

    def _save(self, file: Path, step: Step) -> None:
        try:
            write_call(file, step.dump(), is_own=self.is_own)
        except NotWritten as error:
            fail(str(error))
        except OSError as error:
            fail(f"{file} cannot be written: {error.strerror}")

    def _standing(self, step: Step) -> dict[str, Any]:
        shown: dict[str, Any] = {"asks": output.asks_json(step.asks)}
        if self.save is not None:
            shown["saved"] = str(self.save)
        if step.task is not None:
            shown["task"] = output.task_json(step.task)
        return shown

    def _resume(self, save: Path) -> str:
        """Return the command that continues a saved call."""
        words = ["antiphon", "resume", str(save)]
        if isinstance(self.server, list):
            # A file must not choose a program that is run, so the command line names it.
            words += ["--target", shlex.join(self.server)]
        return shlex.join(words)

    def _comeback(self, task: Task) -> str:
        if self.save is not None:
            return self._resume(self.save)
        server = self.server
        where = shlex.join(server) if isinstance(server, list) else server or "TARGET"
        return shlex.join(["antiphon", "tasks", where, task.id, "--wait"])

    def _interrupted(self, client: "BlockingClient") -> None:
        """Cancel the task whose wait was interrupted, unless the call is saved."""
        step = self.step
        if step is None or step.task is None:
            return
        self._clear()
        if self.save is not None:
            self._save(self.save, step)
            say(f"The task continues; it is saved in {self.save}.")
            return
        try:
            client.cancel(step)
        except ClientError as error:
            say(f"The task could not be cancelled: {error}")
        else:
            self._forget_task()
            say(f"Cancelled task {step.task.id}.")

    def _failed(self, error: ClientError) -> int:
        self._clear()
        if isinstance(error, TaskCancelled | TaskExpired | TaskGone):
            self._forget_task()
        code = USAGE if isinstance(error, AnswerInvalid) else FAILED
        if self.save is not None and error.step is not None and _worth_saving(error):
            self._save(self.save, error.step)
            say(f"The call is saved in {self.save}.")
            code = code if code == USAGE else WAITING
        output.failed(error, json=self.json, code=code)


def _worth_saving(error: ClientError) -> bool:

    return isinstance(error, ConnectionLost | CallTimeout | Unanswered | AnswerInvalid)
